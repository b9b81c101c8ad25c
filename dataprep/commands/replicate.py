"""`dataprep replicate`: copies of a finished dataset in the regions of its readers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import click

from dataprep.arguments import READ, WHERE, WRITE, Place, Places, command_of, function_of, option, request, texts
from dataprep.builder.finished import shape_faults
from dataprep.cloud.cost import Amount, Cost, amounts_of, copy_verdict, copying_cost
from dataprep.cloud.placement import bucket_name, guard, is_bucket
from dataprep.cloud.prices import Prices
from dataprep.cloud.region import CO_LOCATED, UNKNOWN, Verdict, describe
from dataprep.cloud.replicate import Copying, copy_dataset, dataset_phases, plan_copy, record_copies
from dataprep.commands.progress import CopyProgress, Viewer, Watched, people
from dataprep.commands.region_options import Guarded, Priced
from dataprep.dataset.replicas import Replica
from dataprep.errors import AccessError, CredentialsError, StorageError, UndecidedError, UsageError
from dataprep.messages import counted, human_bytes, printable, usd
from dataprep.storage import open_storage
from dataprep.storage.gcs_location import BucketLocation, StoredObject, bucket_location, stored_objects
from dataprep.storage.readonly import ReadOnlyStorage

EPILOG = """\b
Examples:
  dataprep replicate gs://bucket-eu/imagenet --to gs://bucket-us/imagenet --dry-run
  dataprep replicate gs://bucket-eu/imagenet --to gs://bucket-us/imagenet --max-usd 10
  dataprep replicate shards/imagenet --to gs://bucket-eu/imagenet --to gs://bucket-us/imagenet
  dataprep verify gs://bucket-eu/imagenet --replicas

\b
Exit codes: 0 all copies are complete, 1 a copy failed, or the dataset is damaged, 2 wrong usage, no such dataset or
bucket, a missing permission, or more than --max-usd, 3 --max-usd was given and a price is not known. Between buckets,
Cloud Storage copies by itself. From or to a disk, the bytes pass through this machine, and --region-policy applies.
"""
_WORKERS = 16
"""Default number of threads. They wait for Cloud Storage, which makes the copies, so the number of cores does not
matter."""
_PRICE_ALONE = (
    "; for a price alone, `dataprep check-region URL --bucket-location PLACE --dataset-bytes SIZE --zone ZONE` needs "
    "no credentials"
)


@request
class Replicate(Priced, Guarded, Watched):
    """Copy the finished dataset at URL to other places; replicas.json at each place lists the copies in buckets.

    If reading URL is charged, loaders choose the cheapest copy from that list. No other existing object is replaced,
    and sizes and CRC32C are checked. README.md and croissant.json are copied, too, unless the target has its own. After
    an interruption, the same request copies what is missing.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    to: Places = option("Folder or gs:// prefix of a copy; may be repeated.", metavar="URL", group=WRITE)
    dry_run: bool = option("Print what would be copied, and the price; write nothing.", default=False)
    max_usd: float | None = option(
        "Copy nothing if all copies together cost more than this.", default=None, low=0, metavar="USD"
    )
    workers: int = option("Objects to copy at the same time.", default=_WORKERS, low=1, high=64, group=WHERE, rare=True)

    def places(self) -> list[str]:
        """Return the URLs of the copies. Raises UsageError if one is given twice, or is only read."""
        targets = [open_storage(target) for target in texts(self.to)]
        if unfit := next((each for each in targets if isinstance(each, ReadOnlyStorage)), None):
            raise UsageError(f"`to` {unfit.url}: dataprep only reads from there; choose a folder or gs://bucket/prefix")
        urls = [target.url for target in targets]
        if len(set(urls)) < len(urls):
            raise UsageError(f"`to` {Counter(urls).most_common(1)[0][0]}: given twice; give it once")
        return urls


@dataclass(frozen=True, kw_only=True, slots=True)
class Replication:
    """Result of `replicate`."""

    copies: tuple[PlannedCopy, ...]
    replicas: tuple[Replica, ...] | None
    """Copies that replicas.json lists; None after a dry run."""
    warnings: tuple[str, ...]


def _replicated(
    asked: Replicate, viewer: Viewer | None = None, say: Callable[[str], object] = lambda _line: None
) -> Replication:
    """Make the copies of a request; `say` gets lines about them and their price first."""
    prices, urls, url, viewer = asked.table(), asked.places(), str(asked.url), viewer or asked.viewer()
    if not all(is_bucket(each) for each in (url, *urls)):
        guard(url, asked.region_policy)  # this machine reads what Cloud Storage cannot copy by itself
    with CopyProgress(viewer) as progress:
        progress.step("listing the dataset and its copies")
        try:
            phases = dataset_phases(open_storage(url), shape_faults)
            plans = [planned_copy(plan_copy(url, each, phases), prices) for each in urls]
        except CredentialsError as error:
            raise CredentialsError(f"{error}{_PRICE_ALONE}") if asked.dry_run else error from None
    _check_price(plans, asked.max_usd)
    for line in (line for plan in plans for line in plan.lines):
        say(printable(line) if not line.startswith(" ") else line)
    if asked.dry_run:
        return Replication(copies=tuple(plans), replicas=None, warnings=())
    with CopyProgress(viewer) as progress:
        for plan in plans:
            progress.copying(plan.copying.target.url, plan.copying.objects, plan.copying.num_bytes)
            copy_dataset(plan.copying, workers=asked.workers, copied=progress.copied)
        progress.step("writing replicas.json")
        targets = [plan.copying.target for plan in plans]
        replicas = record_copies(plans[0].copying.source, targets, lambda line: progress.warn(printable(line)))
        warnings = tuple(line.removeprefix("warning: ") for line in progress.notes)
    return Replication(copies=tuple(plans), replicas=tuple(replicas), warnings=warnings)


def _print(asked: Replicate, *, as_json: bool) -> None:
    def say(line: str) -> None:
        if not as_json:
            click.echo(line, err=not asked.dry_run)

    found = _replicated(asked, people(asked, quiet=as_json), say)
    if as_json:
        listed = (
            None if found.replicas is None else [{"url": each.url, **asdict(each.bucket)} for each in found.replicas]
        )
        source = found.copies[0].copying.source.url
        document = {"source": source, "copies": [_json(plan) for plan in found.copies], "replicas": listed}
        click.echo(json.dumps({**document, "warnings": list(found.warnings)}))
    elif found.replicas is not None:
        for plan in found.copies:
            copying = plan.copying
            objects = counted(copying.objects + copying.existing, "object")
            copied = f"{copying.objects:,} of them copied ({human_bytes(copying.num_bytes)})"
            did = copied if copying.objects else "nothing was missing"
            click.echo(f"{copying.target.url} is a complete copy: {objects}, {did}")


def _check_price(plans: Sequence[PlannedCopy], max_usd: float | None) -> None:
    if max_usd is None:
        return
    unknown = next((plan for plan in plans if plan.cost is None), None)
    if unknown is not None:
        raise UndecidedError(
            f"`max_usd` {max_usd:g}: the price of {unknown.copying.target.url} is not known "
            f"({unknown.verdict.reason}); add the missing information, or leave out `max_usd`"
        )
    total = sum(plan.cost.total for plan in plans if plan.cost)
    if total > max_usd:
        raise UsageError(
            f"copying costs {usd(total)}, more than `max_usd` {max_usd:g}; nothing was copied: allow more, or run "
            "with `dry_run` to see why"
        )


def _json(plan: PlannedCopy) -> dict[str, object]:
    copying, cost = plan.copying, plan.cost
    return {
        "url": copying.target.url,
        "objects": copying.objects,
        "num_bytes": copying.num_bytes,
        "standing": copying.existing,
        "kept": list(copying.kept),
        "verdict": plan.verdict.kind,
        "usd_per_gib": plan.verdict.usd_per_gib,
        "reason": plan.verdict.reason,
        "usd": None if cost is None else {**asdict(cost), "total": cost.total},
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCopy:
    """A planned copy and its price; the price is None if a fact is unknown, which the verdict explains."""

    copying: Copying
    verdict: Verdict
    cost: Cost | None
    """Cost of copying the missing objects."""

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
            found.append(f"  keep      {' and '.join(copying.kept)}: the target has its own already, which stays")
        if not copying.objects:
            return found
        found.append(f"  transfer  {self.verdict.reason}" + (f" at ${price:g} per GiB" if price else ""))
        if self.cost is None:
            return [*found, "  price     not known"]
        parts = f"{usd(self.cost.transfer)} transfer, {usd(self.cost.retrieval)} retrieval"
        found.append(f"  price     {usd(self.cost.total)} once ({parts}, {usd(self.cost.operations)} operations)")
        return found


def planned_copy(copying: Copying, prices: Prices) -> PlannedCopy:
    """Calculate the price of a copy from the locations of the buckets and the classes of the objects. Raises
    AccessError if a bucket does not exist, or there are no credentials."""
    source_url, target_url = copying.source.url, copying.target.url
    if not copying.source.is_local and not (is_bucket(source_url) and is_bucket(target_url)):
        reason = "this machine reads the bucket; `dataprep check-region` says what that costs"
        return PlannedCopy(copying=copying, verdict=Verdict(UNKNOWN, None, reason), cost=None)
    if not is_bucket(target_url):
        nothing = Cost(transfer=0.0, retrieval=0.0, operations=0.0)
        return PlannedCopy(copying=copying, verdict=Verdict(CO_LOCATED, 0.0, "from disk to disk"), cost=nothing)
    try:
        target = bucket_location(bucket_name(target_url))
        source = bucket_location(bucket_name(source_url)) if is_bucket(source_url) else None
    except AccessError:
        raise
    except (StorageError, UndecidedError) as error:
        return PlannedCopy(copying=copying, verdict=Verdict(UNKNOWN, None, str(error)), cost=None)
    if source is None:
        uploaded = Amount(storage_class="standard", num_bytes=copying.num_bytes, objects=copying.objects, gets=0)
        free = Verdict(CO_LOCATED, 0.0, f"from this machine to {describe(target)}: Cloud Storage charges no uploads")
        cost = copying_cost([uploaded], target, target, prices)
        return PlannedCopy(copying=copying, verdict=free, cost=cost)
    cost = copying_cost(_amounts(copying, source), source, target, prices)
    return PlannedCopy(copying=copying, verdict=copy_verdict(source, target, prices), cost=cost)


def _amounts(copying: Copying, source: BucketLocation) -> list[Amount]:
    """Sum up the missing objects by storage class; if the objects' classes may not be seen, the bucket's class is
    used."""
    bucket, _, prefix = copying.source.url.partition("://")[2].partition("/")
    try:
        classes = {each.name: each.storage_class for each in stored_objects(bucket, prefix)}
    except StorageError:
        classes = {}
    default = (source.storage_class or "standard").lower()
    missing = (info for phase in copying.phases for info in phase)
    return amounts_of(StoredObject(info.name, info.num_bytes, classes.get(info.name, default)) for info in missing)


replicate = function_of(Replicate, _replicated, "replicate")
command = command_of(Replicate, _print, "replicate", epilog=EPILOG)
