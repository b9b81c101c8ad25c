"""The part of `dataprep plan-input` about places: what reading a bucket from a zone costs, and what it can serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import click
from rich.console import Console
from rich.table import Table

from dataprep.cloud.buckets import cache_command
from dataprep.cloud.placement import bucket_name
from dataprep.cloud.prices import Prices, price_dates
from dataprep.cloud.region import (
    DUAL_REGION,
    MULTI_REGION,
    ZONE,
    Verdict,
    area_of,
    check_place,
    is_zone,
    placement,
    unknown_regions,
    verdict,
)
from dataprep.cloud.tables import fact, table
from dataprep.cloud.ways import CACHE, COPY, DIRECT, Use, Way, ways
from dataprep.commands.plan_data import is_loose
from dataprep.commands.region_options import note_unknown_regions
from dataprep.commands.region_report import Reading, gib, given_reading
from dataprep.commands.region_ways import (
    copy_commands,
    echo_commands,
    echo_stale_prices,
    months_text,
    storage_notes,
    way_document,
)
from dataprep.errors import UsageError
from dataprep.host.piped import print_table
from dataprep.messages import did_you_mean, usd
from dataprep.storage.gcs_location import BucketLocation

MULTI_REGIONS = ("us", "eu", "asia")
_TIB = 2**40
_DATA = "gs://BUCKET/DATASET"
"""Placeholder for the data's URL, which the command is not given."""
PACK = "dataprep build folder --source gs://BUCKET/PICTURES --output gs://BUCKET/DATASET --format webdataset"
"""Command that packs loose pictures into shards; the plan knows no URL."""
_TITLES = {DIRECT: "from the bucket in", CACHE: "through a Rapid Cache in", COPY: "from a copy in"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """The cheapest way to read loose pictures that are packed into shards in the region of their bucket."""

    way: Way
    """The way to read the shards."""
    requests: float
    """Price of the requests that read each picture once, to pack it."""
    multi_region: bool
    """Whether the bucket is in a multi-region, from which any machine that packs pays for the transfer."""

    @property
    def total(self) -> float:
        return self.way.total + self.requests

    def line(self, loose: float) -> str:
        """Say what is saved, in place of the price of the cheapest way without packing."""
        transfer = " and the transfer from the multi-region to the machine that packs"
        return (
            f"Packed into shards in the bucket's region first, the data cost {usd(self.total)} in place of "
            f"{usd(loose)}: {usd(self.requests)} for the requests of the packing, and {usd(self.way.total)} "
            f"{_TITLES[self.way.kind]} {self.way.place.lower()}; without the storage of the shards beside the pictures"
            f"{transfer if self.multi_region else ''}."
        )

    def document(self) -> dict[str, object]:
        """Return the prices as JSON values."""
        return {"way": way_document(self.way), "requests": self.requests, "total": self.total, "command": PACK}


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedPlaces:
    """A bucket, its reader, and the ways to read the data."""

    bucket: BucketLocation
    zone: str
    reading: Reading
    """One pass over the data."""
    use: Use
    verdict: Verdict
    ways: list[Way]
    packed: Packed | None = None
    """What loose pictures cost in shards, if that is at most half of what they cost as they are."""

    @property
    def pack_line(self) -> str:
        """Sentence about packing; empty if it would not save much."""
        return self.packed.line(_cheapest(self.ways).total) if self.packed else ""

    @property
    def notes(self) -> list[str]:
        """Assumptions about the prices."""
        return [*self.reading.notes, *storage_notes(self.ways)]

    @property
    def commands(self) -> list[str]:
        """Commands that make the copy, if one is priced; the bucket has a placeholder for its name."""
        copies = [way.once.total for way in self.ways if way.kind == COPY]
        if not copies:
            return []
        as_shards = self.reading.objects_are_assumed
        return copy_commands(_DATA, self.zone, is_dataset=None, once_usd=copies[0], as_shards=as_shards)

    @property
    def cache_command(self) -> str | None:
        """Command that adds a Rapid Cache, if one is priced."""
        is_priced = any(way.kind == CACHE for way in self.ways)
        return " ".join(cache_command(bucket_name(_DATA), self.zone.lower())) if is_priced else None

    def document(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {
            "bucket_location": self.bucket.location,
            "zone": self.zone,
            "num_bytes": self.reading.num_bytes,
            "objects": sum(amount.objects for amount in self.reading.amounts),
            "gets": self.reading.gets,
            "objects_are_assumed": self.reading.objects_are_assumed,
            "passes": self.use.passes,
            "months": self.use.months,
            "verdict": self.verdict.kind,
            "reason": self.verdict.reason,
            "ways": [way_document(way) for way in self.ways],
            "packed": self.packed.document() if self.packed else None,
            "commands": self.commands,
            "cache_command": self.cache_command,
            "notes": [*unknown_regions([*placement(self.bucket)[1], self.zone]), *self.notes],
            "prices_as_of": {name: read.isoformat() for name, read in price_dates().items()},
        }


def priced_places(
    bucket: BucketLocation, zone: str, num_bytes: int, use: Use, prices: Prices, *, objects: int | None = None
) -> PricedPlaces:
    """Price the reading of data of class Standard, or Rapid where the bucket lies in a zone.

    Args:
        bucket: Location of the bucket.
        zone: The reader's zone or region.
        num_bytes: Size of one pass.
        use: How often the data are read, and for how long a cache or a copy is kept.
        prices: Prices to apply.
        objects: Number of objects that the data are; None if it is not given.
    """
    reading = given_reading(num_bytes, bucket.storage_class, objects)
    found = verdict(bucket, zone, prices)
    priced = ways(reading.amounts, bucket, zone, prices, use)
    packed = None
    if priced and objects is not None and is_loose(num_bytes, objects):
        shards = given_reading(num_bytes, bucket.storage_class)
        packed = Packed(
            way=_cheapest(ways(shards.amounts, bucket, zone, prices, use)),
            requests=priced[0].read.operations / use.passes,
            multi_region=placement(bucket)[0] == MULTI_REGION,
        )
        packed = packed if packed.total <= _cheapest(priced).total / 2 else None
    return PricedPlaces(bucket=bucket, zone=zone, reading=reading, use=use, verdict=found, ways=priced, packed=packed)


def _cheapest(priced: Iterable[Way]) -> Way:
    return min(priced, key=lambda way: way.total)


def parse_location(text: str, *, hns: bool = False) -> BucketLocation:
    """Parse the location of a bucket: a region, a zone, `NAM4`, `US`, or two regions of a configurable dual-region.

    A bucket in a zone has the class Rapid; of others the class stays unknown. A note says if dataprep does not know a
    region of the location.

    Raises:
        UsageError: There is no such location.
    """
    code = text.strip().lower()
    if code in MULTI_REGIONS:
        return BucketLocation(location=code.upper(), location_type=MULTI_REGION, hierarchical=hns)
    if "+" in code:
        regions = tuple(map(check_place, code.split("+")))
        if len(set(regions)) != 2 or any(map(is_zone, regions)) or area_of(regions[0]) != area_of(regions[1]):
            raise UsageError(
                f"--bucket-location {text}: a dual-region is two regions of an area, as us-central1+us-west1"
            )
        note_unknown_regions(regions)
        return BucketLocation(
            location=code.upper(), location_type=DUAL_REGION, data_locations=regions, hierarchical=hns
        )
    bucket = BucketLocation(location=code.upper(), hierarchical=hns)
    if placement(bucket)[0] is None:
        pairs = sorted(row["code"].upper() for row in table("dual_regions.csv") if row["kind"] == "predefined")
        raise UsageError(
            f"--bucket-location {text!r}: no such place; expected a multi-region ({', '.join(MULTI_REGIONS).upper()}), "
            f"a dual-region ({', '.join(pairs)}, or two regions as us-central1+us-west1), or a region or zone"
            f"{did_you_mean(code, (row['zone'] for row in table('tpu_zones.csv')))}"
        )
    note_unknown_regions(placement(bucket)[1])
    return replace(bucket, storage_class="RAPID") if placement(bucket)[0] == ZONE else bucket


def first_requests_per_s(*, hns: bool) -> float:
    """Return the requests a second that a new bucket serves before it has grown."""
    return fact("first_requests_per_s") * (fact("hns_requests_factor") if hns else 1)


def cache_gbps(num_bytes: float) -> float:
    """Return the bandwidth of a Rapid Cache that holds the data, in Gbit/s."""
    return max(fact("cache_first_gbps"), fact("cache_gbps_per_tib") * num_bytes / _TIB)


def places_table(places: PricedPlaces) -> Table:
    """Return a table of the ways, with what each costs."""
    often = "once" if places.use.passes == 1 else f"{places.use.passes:,.0f} times"
    what = f"Reading {gib(places.reading.num_bytes)} {often} in {places.zone}"
    title = f"{what}: {places.verdict.kind}, {places.verdict.reason}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    table.add_column("USD", overflow="fold")
    for name in ("once", f"kept {months_text(places.use.months)}", "read", "requests", "sum"):
        table.add_column(name, justify="right", no_wrap=True)
    for way in places.ways:
        read = way.read.transfer + way.read.retrieval
        amounts = (way.once.total + way.ingest, way.kept, read, way.read.operations, way.total)
        table.add_row(f"{_TITLES[way.kind]} {way.place.lower()}", *map(usd, amounts))
    return table


def print_places(console: Console, places: PricedPlaces) -> None:
    """Print the ways to read the data, the commands that make a copy or a cache, and notes on the prices."""
    print_table(console, places_table(places))
    if places.commands:
        click.echo("  do          copy it beside the reader:")
        echo_commands(places.commands)
    if places.cache_command is not None:
        click.echo(f"  do          {'or ' if places.commands else ''}read it through a Rapid Cache:")
        echo_commands([places.cache_command])
    for note in places.notes:
        click.echo(f"note: {note}")
    echo_stale_prices()
