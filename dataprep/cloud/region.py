"""Judges whether reading a bucket from a place costs money. Pure: values in, a verdict out.

same region, or same zone                   co-located
a dual-region with the reader's region      free
a running Rapid Cache in the reader's zone   cached: a lower price for what the cache holds, in any case
everything else                             paid, by the areas of both; this includes reading a multi-region from inside
a needed fact is unknown                    unknown; the reason names the fact
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dataprep.cloud.prices import Prices, table
from dataprep.errors import UsageError
from dataprep.messages import did_you_mean
from dataprep.storage.gcs_location import BucketLocation

CO_LOCATED, FREE, CACHED, PAID, UNKNOWN = "co-located", "free", "cached", "paid", "unknown"
REGION, ZONE, DUAL_REGION, MULTI_REGION = "region", "zone", "dual-region", "multi-region"
MULTI_REGIONS = ("us", "eu", "asia")
RAPID_CACHE = "rapid-cache"
"""Rapid Cache in the tables of prices."""
REGION_NAME = re.compile(r"[a-z]+-[a-z]+\d+")
ZONE_NAME = re.compile(r"([a-z]+-[a-z]+\d+)-[a-z0-9]+")
_AI_ZONE = re.compile(r"([a-z]+-[a-z]+\d+)-ai\d+[a-z]?")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on reading a bucket from one place."""

    kind: str
    """One of CO_LOCATED, FREE, CACHED, PAID and UNKNOWN."""
    usd_per_gib: float | None
    """Price of the transfer only; None if unknown."""
    reason: str
    """Explanation for people, in one line."""

    @property
    def is_free(self) -> bool:
        """Whether the transfer is known to cost nothing."""
        return self.kind in (CO_LOCATED, FREE)


def verdict(bucket: BucketLocation, where: str | None, prices: Prices) -> Verdict:
    """Compare a bucket's location with its reader's.

    Args:
        bucket: Location of the bucket as given by Cloud Storage, in upper or lower case.
        where: The reader's zone or region; None if unknown.
    """
    if not where:
        return _unknown("where the reader is; give `zone` or `tpu`")
    place = where.lower()
    hit = prices.find("cache_read_per_gib", RAPID_CACHE, region_of(place))
    if place in (bucket.caches or ()) and hit is not None:
        reason = f"{place} has a Rapid Cache of {describe(bucket)}; data that is not in it yet is charged as without it"
        return Verdict(CACHED, hit, reason)
    kind, regions = placement(bucket)
    if kind is None:
        code = bucket.location or "the bucket"
        return _unknown(f"whether {code} is a dual-region or a multi-region: no locationType")
    if kind != MULTI_REGION and not regions:
        missing = "customPlacementConfig.dataLocations" if kind == DUAL_REGION else "location"
        return _unknown(f"which regions the {kind} {bucket.location.upper()} has: {missing} is missing")
    region, shown = region_of(place), describe(bucket)
    if region in regions:
        if kind == DUAL_REGION:
            return Verdict(FREE, 0.0, f"{region} is one of the regions of {shown}")
        if kind == ZONE and place != region and place not in _zones(bucket):
            return Verdict(FREE, 0.0, f"{place} is a different zone in {shown}'s region: free, but not as near")
        return Verdict(CO_LOCATED, 0.0, f"{place} is in {region}, as the bucket is")
    return _paid(bucket, regions or (bucket.location.lower(),), place, prices)


def placement(bucket: BucketLocation) -> tuple[str | None, tuple[str, ...]]:
    """Return the kind of a bucket's location, None if it cannot be determined, and its regions.

    For a multi-region the regions are empty, because it does not name them.
    """
    code, stated = bucket.location.lower(), tuple(dict.fromkeys(region_of(place) for place in _zones(bucket)))
    kind: str | None = bucket.location_type.lower() or None
    if kind is None and (REGION_NAME.fullmatch(code) or ZONE_NAME.fullmatch(code)):
        kind = REGION if REGION_NAME.fullmatch(code) else ZONE
    if kind is None and (code in _predefined() or len(stated) > 1):
        kind = DUAL_REGION
    if kind == MULTI_REGION or kind is None:
        return kind, ()
    if kind == DUAL_REGION:
        return kind, stated or _predefined().get(code, ())
    return kind, stated or ((region_of(code),) if code else ())


def describe(bucket: BucketLocation) -> str:
    """Describe a bucket's location:  `the multi-region US`, `the dual-region NAM4 (us-central1, us-east1)`,
    `europe-west4`."""
    kind, regions = placement(bucket)
    if kind in (None, REGION):
        return bucket.location.lower() if kind else bucket.location or "an unknown place"
    if kind == ZONE:
        return f"the zone {', '.join(_zones(bucket)) or bucket.location.lower()}"
    inside = f" ({', '.join(regions)})" if regions else ""
    return f"the {kind} {bucket.location.upper()}{inside}"


def region_of(place: str) -> str:
    """Return the region of a zone; any other name is returned unchanged."""
    found = ZONE_NAME.fullmatch(place.lower())
    return found[1] if found else place.lower()


def is_zone(place: str) -> bool:
    """Return whether a name is a zone's, not a region's."""
    return ZONE_NAME.fullmatch(place.lower()) is not None


def is_ai_zone(place: str) -> bool:
    """Return whether a zone is an AI zone, such as `us-central1-ai1a`: away from the standard zones of its region."""
    return _AI_ZONE.fullmatch(place.lower()) is not None


def can_cache(bucket: BucketLocation, place: str) -> bool | None:
    """Return whether a bucket can have a Rapid Cache in a zone: only in a zone of the bucket's location.

    None if that is not certain, because a multi-region does not name its regions.
    """
    kind, regions = placement(bucket)
    if not is_zone(place) or kind in (None, ZONE):
        return False
    if kind == MULTI_REGION:
        return None if area_of(place) == area_of(bucket.location) else False
    return region_of(place) in regions


def check_place(text: str) -> str:
    """Return the name of a zone or region in lower case.

    Raises:
        UsageError: The text does not have the form of such a name.
    """
    place = text.strip().lower()
    if ZONE_NAME.fullmatch(place) or REGION_NAME.fullmatch(place):
        return place
    guess = did_you_mean(place, sorted({row["zone"] for row in table("tpu_zones.csv")}))
    raise UsageError(f"{text!r} is not a zone or region; expected e.g. us-central1-a or europe-west4{guess}")


def parse_location(text: str) -> BucketLocation:
    """Parse the location of a bucket: a region, a zone, `NAM4`, `US`, or two regions of a configurable dual-region.

    A bucket in a zone has the class Rapid; the class of others stays unknown.

    Raises:
        UsageError: There is no such location.
    """
    code = text.strip().lower()
    if code in MULTI_REGIONS:
        return BucketLocation(location=code.upper(), location_type=MULTI_REGION)
    if "+" in code:
        regions = tuple(map(check_place, code.split("+")))
        if len(set(regions)) != 2 or any(map(is_zone, regions)) or area_of(regions[0]) != area_of(regions[1]):
            raise UsageError(
                f"`bucket_location` {text}: a dual-region is two regions of an area, such as us-central1+us-west1"
            )
        return BucketLocation(location=code.upper(), location_type=DUAL_REGION, data_locations=regions)
    bucket = BucketLocation(location=code.upper())
    kind = placement(bucket)[0]
    if kind is None:
        pairs = sorted(row["code"].upper() for row in table("dual_regions.csv") if row["kind"] == "predefined")
        raise UsageError(
            f"`bucket_location` {text!r}: no such place; expected a multi-region "
            f"({', '.join(MULTI_REGIONS).upper()}), a dual-region ({', '.join(pairs)}, or two regions such as "
            "us-central1+us-west1), or a region or "
            f"zone{did_you_mean(code, (row['zone'] for row in table('tpu_zones.csv')))}"
        )
    return replace(bucket, storage_class="RAPID") if kind == ZONE else bucket


def unknown_regions(places: Iterable[str]) -> list[str]:
    """Return a note for each region that the tables do not list; it may be mistyped, or newer than the tables."""
    known = {row["region"]: None for row in table("cloud_regions.csv")}
    known |= {region_of(row["zone"]): None for row in table("tpu_zones.csv")}
    regions = dict.fromkeys(map(region_of, places))
    return [
        f"{region} is not a region that dataprep knows{did_you_mean(region, known)}"
        for region in regions
        if region not in known
    ]


def area_of(place: str) -> str | None:
    """Return the area whose transfer prices apply to a zone, region or multi-region; None if unknown."""
    found = _area_row(place)
    return found["area"] if found else None


def _area_row(place: str) -> dict[str, str] | None:
    place = region_of(place)
    fitting = [row for row in table("regions.csv") if _starts(place, row["prefix"])]
    return max(fitting, key=lambda row: len(row["prefix"]), default=None)


def _starts(place: str, prefix: str) -> bool:
    return place.startswith(prefix) if prefix.endswith("-") else place == prefix


def _paid(bucket: BucketLocation, froms: Iterable[str], place: str, prices: Prices) -> Verdict:
    """Return the verdict on a transfer between regions; of a bucket's regions, the most expensive one counts."""
    region, shown = region_of(place), describe(bucket)
    found: list[float] = []
    notes: dict[str, None] = {}
    for start in froms:
        price = _transfer_price(bucket, start, region, prices)
        if price is None:
            return _unknown(f"what reading {shown} from {region} costs: no price is published for it")
        found.append(price)
        rows = (_area_row(start), _area_row(region))
        notes.update({row["note"]: None for row in rows if row and row["note"]})
    reason = f"{place} reads from {shown}"
    if placement(bucket)[0] == MULTI_REGION:
        reason += ", and a multi-region belongs to no single region"
    return Verdict(PAID if max(found) else FREE, max(found), "; ".join([reason, *notes]))


def _transfer_price(bucket: BucketLocation, start: str, region: str, prices: Prices) -> float | None:
    """Return the price between two regions: for exactly this pair, as in contracts, else for their areas."""
    for of in (start, bucket.location.lower()):
        price = prices.find("transfer_per_gib", of, region)
        if price is not None:
            return price
    areas = area_of(start), area_of(region)
    if areas[0] is None or areas[1] is None:
        return None
    return prices.find("transfer_per_gib", areas[0], areas[1])


def _predefined() -> dict[str, tuple[str, ...]]:
    rows = table("dual_regions.csv")
    return {row["code"]: tuple(row["regions"].split()) for row in rows if row["kind"] == "predefined"}


def _zones(bucket: BucketLocation) -> tuple[str, ...]:
    """Return the places that the bucket states for its data: regions, or zones of a zonal bucket."""
    stated = tuple(place.lower() for place in bucket.data_locations)
    return stated or ((bucket.location.lower(),) if ZONE_NAME.fullmatch(bucket.location.lower()) else ())


def _unknown(what: str) -> Verdict:
    return Verdict(UNKNOWN, None, f"it is not known {what}")
