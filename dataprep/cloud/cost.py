"""Costs of reading, writing and copying a dataset, in USD. Pure: amounts, places and prices in, costs out.

1 GiB is 2^30 bytes, as Cloud Storage bills. Operations of class A are inserts, listings and copies; operations of class
B are reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dataprep.cloud.prices import ANYWHERE, Prices, fact
from dataprep.cloud.region import (
    CACHED,
    CO_LOCATED,
    MULTI_REGION,
    PAID,
    RAPID_CACHE,
    ZONE,
    Verdict,
    area_of,
    describe,
    placement,
    verdict,
)
from dataprep.storage.gcs_location import BucketLocation

GIB = 2**30
_STANDARD = "standard"


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """Objects of one storage class, and the operations on them."""

    storage_class: str
    num_bytes: int
    """Number of bytes that are read or copied, each time counted."""
    objects: int
    gets: int
    """Number of requests of class B."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Parts of a cost, in USD."""

    transfer: float
    retrieval: float
    operations: float

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.transfer + self.retrieval + self.operations

    def times(self, count: float) -> Cost:
        """Return the cost of doing the same `count` times."""
        return Cost(
            transfer=count * self.transfer, retrieval=count * self.retrieval, operations=count * self.operations
        )


def reading_cost(amounts: Sequence[Amount], bucket: BucketLocation, found: Verdict, prices: Prices) -> Cost | None:
    """Return the cost of reading the amounts once; None if the price of the transfer is unknown.

    If the verdict is CACHED, all of it is read from the cache, which already holds it.
    """
    if found.usd_per_gib is None:
        return None
    transfer = found.usd_per_gib * sum(amount.num_bytes for amount in amounts) / GIB
    if found.kind == CACHED:
        thousands = sum(amount.gets for amount in amounts) / 1000
        usd_per_1000 = prices.find("cache_operations_per_1000", RAPID_CACHE, ANYWHERE) or 0.0
        return Cost(transfer=transfer, retrieval=0.0, operations=thousands * usd_per_1000)
    retrieval = sum(_retrieval(amount, bucket, prices) for amount in amounts)
    gets = sum(
        amount.gets / 1000 * _operation("class_b_per_1000", amount.storage_class, bucket, prices) for amount in amounts
    )
    return Cost(transfer=transfer, retrieval=retrieval, operations=gets)


def writing_cost(inserts: int, gets: int, bucket: BucketLocation, num_bytes: int, prices: Prices) -> Cost:
    """Return the cost of writing a build's output: requests, and replication in a bucket with several regions."""
    storage_class, kind = _billed_class(bucket.storage_class or _STANDARD, bucket), _kind(bucket)
    operations = inserts / 1000 * _operation("class_a_per_1000", storage_class, bucket, prices)
    operations += gets / 1000 * _operation("class_b_per_1000", storage_class, bucket, prices)
    regions = placement(bucket)[1]
    area = area_of(regions[0] if regions else bucket.location) or ""
    written = prices.find("replication_per_gib", area, kind) or 0.0
    written += prices.find("write_per_gib", storage_class, kind) or 0.0
    return Cost(transfer=written * num_bytes / GIB, retrieval=0.0, operations=operations)


def epochs_to_pay(once: Cost, *, far: Cost, near: Cost) -> int | None:
    """Return the number of epochs after which a copy is cheaper than remote reads; None if it never is.

    Storage of the copy is not counted.

    Args:
        once: Cost of making the copy.
        far: Cost of one epoch, read from the original.
        near: Cost of one epoch, read from the copy.
    """
    saved = far.total - near.total
    return max(1, math.ceil(once.total / saved)) if saved > 0 else None


def _retrieval(amount: Amount, bucket: BucketLocation, prices: Prices) -> float:
    if bucket.autoclass:
        return 0.0
    return amount.num_bytes / GIB * (prices.find("retrieval_per_gib", amount.storage_class, _kind(bucket)) or 0.0)


def _operation(item: str, storage_class: str, bucket: BucketLocation, prices: Prices) -> float:
    """Return the price of a thousand operations; with a hierarchical namespace they cost more."""
    usd = prices.find(item, _billed_class(storage_class, bucket), _kind(bucket)) or 0.0
    return usd * fact("hns_operations_factor") if bucket.hierarchical and _kind(bucket) != ZONE else usd


def _billed_class(storage_class: str, bucket: BucketLocation) -> str:
    """Return the class by which operations are billed: with Autoclass always Standard."""
    return _STANDARD if bucket.autoclass else storage_class.lower()


def _kind(bucket: BucketLocation) -> str:
    return placement(bucket)[0] or "region"


def copy_verdict(source: BucketLocation, target: BucketLocation, prices: Prices) -> Verdict:
    """Return the transfer price of a copy from one bucket to another.

    A copy out of a dual-region is billed even into one of its own regions. If a bucket has several regions, the most
    expensive pair of regions counts.
    """
    (kind, regions), (_, target_regions) = placement(source), placement(target)
    shown = f"from {describe(source)} to {describe(target)}"
    if source.location.lower() == target.location.lower() and (kind, regions) == placement(target):
        return Verdict(CO_LOCATED, 0.0, f"{shown}: the same location")
    starts = [source]
    if kind != MULTI_REGION and regions:
        starts = [BucketLocation(location=region, location_type="region") for region in regions]
    ends = target_regions or (target.location,)
    found = [verdict(start, end, prices) for start in starts for end in ends]
    unknown = next((each for each in found if each.usd_per_gib is None), None)
    if unknown is not None:
        return unknown
    price = max(each.usd_per_gib or 0.0 for each in found)
    return Verdict(PAID if price else CO_LOCATED, price, shown)


def copying_cost(
    amounts: Sequence[Amount], source: BucketLocation, target: BucketLocation, prices: Prices
) -> Cost | None:
    """Return the cost of the source's transfer and retrieval and the target's writes; None if a price is unknown."""
    read = reading_cost(amounts, source, copy_verdict(source, target, prices), prices)
    if read is None:
        return None
    objects, num_bytes = sum(each.objects for each in amounts), sum(each.num_bytes for each in amounts)
    written = writing_cost(objects, 0, target, num_bytes, prices)
    return Cost(
        transfer=read.transfer + written.transfer,
        retrieval=read.retrieval,
        operations=read.operations + written.operations,
    )
