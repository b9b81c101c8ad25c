"""Computes the costs of a server-side copy from bucket to bucket. Pure: locations, amounts and prices in, USD out."""

from __future__ import annotations

from collections.abc import Sequence

from dataprep.cloud.cost import Amount, Cost, reading_cost, writing_cost
from dataprep.cloud.prices import Prices
from dataprep.cloud.region import CO_LOCATED, MULTI_REGION, PAID, Verdict, describe, placement, verdict
from dataprep.storage.gcs_location import BucketLocation


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
    """Return the sum of the source's transfer and retrieval and the target's inserts and replication; None if a price
    is unknown."""
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
