"""Compares ways to read the same data many times: from the bucket where they are, through a Rapid Cache, from a copy.

Pure: amounts, places and prices in, USD out. The first pass through a cache misses: it costs what reading the bucket
costs, and what is written into the cache. The other passes are hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dataprep.cloud.cost import GIB, Amount, Cost, copy_cost, reading_cost
from dataprep.cloud.prices import ANYWHERE, Prices
from dataprep.cloud.region import CACHED, CO_LOCATED, RAPID_CACHE, UNKNOWN, Verdict, can_cache, region_of, verdict
from dataprep.storage.gcs_location import BucketLocation

HOURS_PER_MONTH = 730
DIRECT, CACHE, COPY = "direct", "cache", "copy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to read the data, with its costs in USD."""

    kind: str
    """One of DIRECT, CACHE and COPY."""
    place: str
    """Location of the bucket, zone of the cache, or region of the copy."""
    once: Cost
    """Cost of making the copy; or of the first pass through a cache, which reads the bucket and fills the cache."""
    ingest: float
    """Cost of writing the data into the cache."""
    read: Cost
    """Cost of all passes; with a cache, of all but the first."""
    kept: float
    """Cost of storing the copy or the cache's content; the original is not counted."""

    @property
    def total(self) -> float:
        return self.once.total + self.ingest + self.read.total + self.kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """How the data are used."""

    passes: float
    """How often they are read."""
    months: float = 1.0
    """For how long a cache or a copy is kept."""


def ways(amounts: Sequence[Amount], bucket: BucketLocation, where: str, prices: Prices, use: Use) -> list[Way]:
    """Return the ways whose prices are known, the present one first.

    Args:
        amounts: One pass over the data.
        bucket: Location of the data.
        where: The reader's zone or region.
        prices: Prices to apply.
        use: How the data are used.
    """
    plain = replace(bucket, caches=None)
    found = verdict(plain, where, prices)
    once = reading_cost(amounts, plain, found, prices)
    if once is None:
        return []
    nothing = once.times(0)
    direct = Way(kind=DIRECT, place=bucket.location, once=nothing, ingest=0.0, read=once.times(use.passes), kept=0.0)
    copied = copy_cost(amounts, plain, where, once, found, prices)
    cached = _cache(amounts, plain, where, prices, once, use)
    result = [direct, *([cached] if cached else [])]
    if copied is not None and found.kind not in (CO_LOCATED, UNKNOWN):
        region = region_of(where)
        beside = BucketLocation(location=region, location_type="region", storage_class="standard")
        standard = [replace(amount, storage_class="standard") for amount in amounts]
        near = reading_cost(standard, beside, Verdict(CO_LOCATED, 0.0, ""), prices) or nothing
        kept = copied.storage_per_month * use.months
        result.append(
            Way(kind=COPY, place=region, once=copied.once, ingest=0.0, read=near.times(use.passes), kept=kept)
        )
    return result


def _cache(
    amounts: Sequence[Amount], bucket: BucketLocation, where: str, prices: Prices, once: Cost, use: Use
) -> Way | None:
    """Return the costs of reading through an empty cache in the reader's zone; None if there cannot be one."""
    if can_cache(bucket, where) is False:
        return None
    hit = verdict(replace(bucket, caches=(where.lower(),)), where, prices)
    read = reading_cost(amounts, bucket, hit, prices) if hit.kind == CACHED else None
    stored = prices.find("cache_storage_per_gib_hour", RAPID_CACHE, ANYWHERE)
    ingest = prices.find("cache_ingest_per_gib", RAPID_CACHE, ANYWHERE)
    if read is None or stored is None or ingest is None:
        return None
    gib = sum(amount.num_bytes for amount in amounts) / GIB
    return Way(
        kind=CACHE,
        place=where.lower(),
        once=once,
        ingest=ingest * gib,
        read=read.times(max(0.0, use.passes - 1)),
        kept=stored * HOURS_PER_MONTH * use.months * gib,
    )
