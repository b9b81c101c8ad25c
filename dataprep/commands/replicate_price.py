"""Calculates the prices of planned copies, and when they pay off, for `dataprep replicate`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dataprep.cloud.copy_price import copy_verdict, copying_cost
from dataprep.cloud.cost import Amount, Cost, epochs_to_pay, reading_cost
from dataprep.cloud.placement import bucket_name, is_bucket
from dataprep.cloud.prices import Prices
from dataprep.cloud.region import CO_LOCATED, UNKNOWN, Verdict, describe, placement, verdict
from dataprep.cloud.replicate import Copying
from dataprep.commands.check_region import Training, examine
from dataprep.errors import AccessError, StorageError, UndecidedError
from dataprep.messages import counted, human_bytes, usd
from dataprep.storage.gcs_location import BucketLocation, bucket_location, stored_objects


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCopy:
    """A planned copy and its price; the price is None if a fact is unknown, which the verdict explains."""

    copying: Copying
    verdict: Verdict
    cost: Cost | None
    """Cost of copying the missing objects."""
    target: BucketLocation | None = None
    """Location of the target's bucket; None for a folder on disk."""
    reader: str | None = None
    """Region of the copy's readers; None if epochs are not calculated, or the bucket has no region."""
    epochs: int | None = None
    """Number of epochs, read in that region, after which the copy pays off; None if never, or unknown."""

    @property
    def lines(self) -> list[str]:
        """The copy in lines for the user."""
        copying, price = self.copying, self.verdict.usd_per_gib
        verb = "exists" if copying.existing == 1 else "exist"
        existing = f", {copying.existing:,} more {verb} there already" if copying.existing else ""
        found = [
            f"{copying.source.url} -> {copying.target.url}",
            f"  copy      {counted(copying.objects, 'object')}, {human_bytes(copying.num_bytes)}{existing}",
        ]
        if copying.kept:
            found.append(f"  keep      {' and '.join(copying.kept)}: another is there already, and stays")
        if not copying.objects:
            return found
        found.append(f"  transfer  {self.verdict.reason}" + (f" at ${price:g} per GiB" if price else ""))
        if self.cost is None:
            return [*found, "  price     not known"]
        parts = f"{usd(self.cost.transfer)} transfer, {usd(self.cost.retrieval)} retrieval"
        found.append(f"  price     {usd(self.cost.total)} once ({parts}, {usd(self.cost.operations)} operations)")
        if self.reader is not None:
            plural = "" if self.epochs == 1 else "s"
            often = f"after {self.epochs:,} epoch{plural}" if self.epochs else "never by cheaper reading alone, if"
            found.append(f"  pays      {often} read in {self.reader}")
        return found


def planned_copy(copying: Copying, prices: Prices, *, epochs: bool) -> PlannedCopy:
    """Calculate the price of a copy from the locations of the buckets and the classes of the objects.

    Args:
        copying: The copy.
        prices: Prices to apply.
        epochs: Also calculate after how many epochs the copy pays off, which reads a part of the dataset's index.

    Raises:
        AccessError: A bucket does not exist, or there are no credentials.
    """
    source_url, target_url = copying.source.url, copying.target.url
    if not is_bucket(target_url):
        return _to_disk(copying, source_url)
    try:
        target = bucket_location(bucket_name(target_url))
        source = bucket_location(bucket_name(source_url)) if is_bucket(source_url) else None
    except AccessError:
        raise
    except (StorageError, UndecidedError) as error:
        return PlannedCopy(copying=copying, verdict=Verdict(UNKNOWN, None, str(error)), cost=None)
    if source is None:
        free = Verdict(CO_LOCATED, 0.0, f"from this machine to {describe(target)}: Cloud Storage charges no uploads")
        cost = copying_cost([_amount("standard", copying.objects, copying.num_bytes)], target, target, prices)
        return PlannedCopy(copying=copying, verdict=free, cost=cost, target=target)
    amounts = _amounts(copying, source)
    cost = copying_cost(amounts, source, target, prices)
    regions = placement(target)[1]
    reader = regions[0] if regions and epochs else None
    pays = _epochs(copying, target, reader, cost, prices) if reader and cost else None
    found = copy_verdict(source, target, prices)
    return PlannedCopy(copying=copying, verdict=found, cost=cost, target=target, reader=reader, epochs=pays)


def _to_disk(copying: Copying, source_url: str) -> PlannedCopy:
    if is_bucket(source_url):
        reason = "this machine reads the bucket; `dataprep check-region` says what that costs"
        return PlannedCopy(copying=copying, verdict=Verdict(UNKNOWN, None, reason), cost=None)
    free = Cost(transfer=0.0, retrieval=0.0, operations=0.0)
    return PlannedCopy(copying=copying, verdict=Verdict(CO_LOCATED, 0.0, "from disk to disk"), cost=free)


def _amounts(copying: Copying, source: BucketLocation) -> list[Amount]:
    """Sum up the missing objects by storage class; if the objects' classes may not be seen, that of the bucket is
    used."""
    bucket, _, prefix = copying.source.url.partition("://")[2].partition("/")
    try:
        classes = {each.name: each.storage_class for each in stored_objects(bucket, prefix)}
    except StorageError:
        classes = {}
    default = (source.storage_class or "standard").lower()
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for phase in copying.phases:
        for info in phase:
            of_class = sums[classes.get(info.name, default)]
            of_class[0] += 1
            of_class[1] += info.num_bytes
    return [_amount(name, objects, num_bytes) for name, (objects, num_bytes) in sorted(sums.items())]


def _epochs(copying: Copying, target: BucketLocation, reader: str, once: Cost, prices: Prices) -> int | None:
    """Return the number of epochs, read in the target's region, after which the copy pays off."""
    report = examine(copying.source.url, reader, Training(), prices)
    if report.reading is None or report.one_pass is None:
        return None
    storage_class = (target.storage_class or "standard").lower()
    gets = Amount(storage_class=storage_class, num_bytes=report.reading.num_bytes, objects=0, gets=report.reading.gets)
    near = reading_cost([gets], target, verdict(target, reader, prices), prices)
    passes = report.reading.passes
    return None if near is None else epochs_to_pay(once, far=report.one_pass.times(passes), near=near.times(passes))


def _amount(storage_class: str, objects: int, num_bytes: int) -> Amount:
    return Amount(storage_class=storage_class, num_bytes=num_bytes, objects=objects, gets=0)
