"""What a server-side copy between buckets costs, and when it has paid. Pure: places, amounts, prices in, USD out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dataprep.cost import Amount, Cost, reading_cost, writing_cost
from dataprep.prices import Prices
from dataprep.region import CO_LOCATED, MULTI_REGION, PAID, Verdict, describe, placement, verdict
from dataprep.storage.gcs_location import BucketLocation


def copy_verdict(source: BucketLocation, target: BucketLocation, prices: Prices) -> Verdict:
    """What lies between two buckets, for a copy from one to the other.

    A copy out of a dual-region is billed also into one of its own regions; of several pairs of regions the dearest
    counts.
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
    """Transfer and retrieval of the source, inserts and replication of the target; None where a price is not known."""
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


def epochs_to_pay(once: Cost, far: Cost, near: Cost) -> int | None:
    """From so many epochs on a copy costs less than reading from afar; None where it never does. Storage is not in it.

    Args:
        far, near: One epoch's reading of the original and of the copy.
    """
    saved = far.total - near.total
    return max(1, math.ceil(once.total / saved)) if saved > 0 else None
