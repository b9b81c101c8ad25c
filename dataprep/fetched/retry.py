"""Tries failed rows of a finished dataset again, and adds their images as new shards after the last one.

    which rows ─▶ shards, receipts ─▶ index ─▶ dataset_info.json ─▶ dataset.json ─▶ cards ─▶ `_change/` is removed

    _change/plan.json              create-only; the revision at the beginning, the chosen rows, and the id
    _change/<id>/rows.parquet      rows to try: a row group for each new shard
    _change/<id>/receipts/, tmp/   as in a build (shards.py)

A new shard has its own parquet file and stats, with the rows that were tried and their new status; the old entries of
these rows stay as history. So the newest status of a row is in the last shard whose parquet file has its key. The
manifest counts every row once, by its newest status: the entry `before` in a shard's stats holds the counts to
subtract.

Three files of the dataset are replaced, each atomically and only if it has not changed since it was read: the index,
which begins with all row groups of the old one; dataset_info.json, which lists published shards; and last dataset.json,
which lists all of them. Readers see a complete dataset between any two of these steps, and the steps can be repeated.
After an interruption the same command continues with the stored plan, which is removed first at the end.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Protocol

from msgspec import Meta

from dataprep.arrays import pa
from dataprep.builder import finished
from dataprep.builder.cards import own_cards, replace_cards
from dataprep.builder.plan import refuse_other_codecs
from dataprep.builder.receipts import finished_shards, read_receipts
from dataprep.dataset import index as indexes
from dataprep.dataset import manifest as manifests
from dataprep.dataset.columns import table_of
from dataprep.dataset.documents import Count
from dataprep.dataset.paths import CHANGE, CHANGE_JSON
from dataprep.dataset.records import Change, IndexEntry, Manifest, ShardReceipt, SplitManifest
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched import collect
from dataprep.fetched.existing import Choice, FetchedDataset, Place, open_fetched, rows_to_try
from dataprep.fetched.plan import laion_codecs
from dataprep.fetched.shard import ShardNames, ShardOptions
from dataprep.fetched.shards import Places, Target, WebFetch, entries_of, fetch_shard, fetched, placing, recounted
from dataprep.formats.img2dataset import OTHER, SUCCESS
from dataprep.messages import did_you_mean, quoted
from dataprep.sources.laion import Row
from dataprep.storage import Storage
from dataprep.storage.parquet import open_parquet, read_columns
from dataprep.web.requests import SIGNALS, Status

if TYPE_CHECKING:
    from dataprep.web.requests import Limits


RETRY = "retry-failed"
HTTP_CODE = re.compile(r"http (?!200)[1-5]\d\d")
"""Pattern of the reason for an answer whose status code is not 200."""
FAILURES = tuple(
    dict.fromkeys(
        (
            *(collect.status_reason(status) for status in Status if status not in (Status.SUCCESS, Status.HTTP)),
            *(f"{collect.status_reason(Status.OPT_OUT)}: {signal}" for signal in SIGNALS),
            collect.HASH_MISMATCH,
            collect.NO_ANSWER,
            *collect.FAULT_REASONS.values(),
            collect.CANNOT_BE_ENCODED,
            *collect.SIZE_REASONS,
            OTHER,
        )
    )
)
"""Reasons of failed downloads and failed resizing, without the HTTP statuses."""
_CODE = re.compile(r"(?<!\d)\d{3}(?!\d)")
_NEAR = 0.5
"""Minimum similarity of a suggestion; `404` and `http 404` are just similar enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retried:
    """The dataset after a retry, and this run's work on it."""

    manifest: Manifest
    rows: int
    """Number of rows that were tried."""
    came: int
    """Number of rows that became images."""
    shards: int
    """Number of new shards; 0 if no row became an image."""


class RetryProgress(Protocol):
    """Receiver of a retry's progress reports."""

    def shards(self, samples: Sequence[int], done: set[int]) -> None:
        """The new shards have these numbers of rows; those in `done` are finished."""

    def shard_done(self, receipt: ShardReceipt) -> None:
        """One more shard is done."""

    def log(self, line: str) -> None:
        """Show a line to the user."""


def retry_failed(url: str, choice: Choice, limits: Limits, engine: Engine, progress: RetryProgress) -> Retried:
    """Try failed rows again, or continue an interrupted retry. Raises UsageError if there is no dataset of a table of
    URLs, or a chosen reason is unknown, and ConflictError if another process has changed the dataset meanwhile.

    Args:
        choice: Rows to retry; an interrupted retry keeps its own choice.
        limits: Limits of all workers together.
        engine: Runs `retry_shard` for many indexes, and divides the job's limits among its workers.
    """
    dataset = open_fetched(url)
    check_reasons(choice, dataset.manifest)
    finished.refuse_other_change(dataset.storage, RETRY)
    dataset.storage.remove_stale_spools()
    begun = finished.read_change(dataset.storage, RetryPlan)
    nothing = Retried(manifest=dataset.manifest, rows=0, came=0, shards=0)
    is_gone = begun is not None and dataset.storage.stat(rows_file(begun.root)) is None  # it was being removed
    if begun is not None and (is_gone or begun.manifest_sha256 != dataset.sha256):
        if _tidy_up(dataset, begun, progress):
            return nothing
        begun = None
    plan = _begin(dataset, choice) if begun is None else begun
    if begun is not None and begun.first_shard != dataset.num_shards:
        after = f"after {dataset.num_shards:,} shards"
        raise no_plan(dataset.storage, f"its first shard is number {begun.first_shard}, {after}")
    if plan is None:
        return nothing
    if plan.choice != choice:
        chosen = {"reasons": [*plan.choice.reasons], "everything": plan.choice.everything}
        text = ", ".join(f"{name} {value}" for name, value in chosen.items() if value)
        progress.log(f"continuing with the options of an interrupted run: {text or 'none'}")
    done = finished_shards(dataset.storage, plan.root)
    progress.shards(plan.shard_rows, done)
    missing = [index for index in range(len(plan.shard_rows)) if index not in done]
    if missing:
        job = RetryJob(
            dataset.storage.url,
            plan.root,
            plan.manifest_sha256,
            plan.first_shard,
            plan.first_number,
            dataset.options.rows,
            limits,
            plan.codecs,
        )
        for receipt in engine(job, missing):
            progress.shard_done(receipt)
    return _finish(dataset, plan)


def check_reasons(choice: Choice, manifest: Manifest) -> None:
    """Raise UsageError for an unknown failure reason.

    Raises:
        UsageError: A reason is neither known nor occurs in a row; the text lists the known ones and the nearest.
    """
    counted = {reason for split in manifest.splits for reason in split.reasons} - {SUCCESS}
    for reason in choice.reasons:
        if reason in FAILURES or reason in counted or HTTP_CODE.fullmatch(reason):
            continue
        codes = [code for digits in _CODE.findall(reason) if HTTP_CODE.fullmatch(code := f"http {digits}")]
        known = sorted({*FAILURES, *counted})
        raise UsageError(
            f"`reason` {quoted(reason)}: no row fails for this reason, expected http and a status code such as "
            f"http 404, or one of {', '.join(known)}{did_you_mean(reason, [*codes, *known], cutoff=_NEAR)}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPlan(finished.ChangePlan):
    """The plan of a retry, as `_change/plan.json` holds it."""

    kind: str = RETRY
    choice: Choice
    shard_rows: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1, max_length=manifests.MAX_SHARDS)]
    first_shard: Count
    first_number: Count
    """Number in the name of the first new shard."""
    codecs: dict[str, str]
    """Versions of libraries that every worker must have."""

    def files(self, names: ShardNames) -> Iterator[str]:
        """Yield the files of the new shards."""
        for number in range(self.first_number, self.first_number + len(self.shard_rows)):
            yield from names.files(number)


def retried_files(storage: Storage, names: ShardNames) -> Iterator[str]:
    """Yield the names of files that an interrupted or running retry may have put in place; they need not exist."""
    change = finished.read_change(storage, finished.ChangePlan)
    plan = finished.read_change(storage, RetryPlan) if change is not None and change.kind == RETRY else None
    if plan is not None:
        yield from plan.files(names)


def no_plan(storage: Storage, problem: str) -> FormatError:
    return FormatError(f"{storage.url_of(CHANGE_JSON)}: not a plan of a retry: {problem}; {finished.CHANGE_ADVICE}")


def rows_file(root: str) -> str:
    return f"{root}/rows.parquet"


def rows_schema() -> pa.Schema:
    """Return the columns of `rows.parquet`: the shard that last tried a row, and the row's position there."""
    return pa.schema([("shard", pa.int32()), ("row", pa.int32())])


def row_tables(places: Iterator[Place], rows_per_shard: int, shard_rows: list[int]) -> Iterator[pa.Table]:
    """Yield a table for each new shard, and append its number of rows to `shard_rows`."""
    while held := list(islice(places, rows_per_shard)):
        shard_rows.append(len(held))
        yield table_of([[place.shard for place in held], [place.row for place in held]], rows_schema())


@dataclass(frozen=True, slots=True)
class RetryJob:
    """Everything that a worker needs, except a shard's index."""

    url: str
    root: str
    """Folder of receipts and rows."""
    manifest_sha256: str
    first_shard: int
    first_number: int
    rows: collect.RowOptions
    limits: Limits
    """Limits of the worker; in an engine's job, limits of all workers together."""
    codecs: dict[str, str] = field(hash=False)
    """Versions of libraries that a worker must have."""


Engine = Callable[[RetryJob, list[int]], Iterator[ShardReceipt]]


def retry_shard(job: RetryJob, index: int) -> ShardReceipt:
    """Make one new shard, or return its existing receipt without fetching the rows again."""
    return _retrier(job).build(index)


def _publish(dataset: FetchedDataset, root: str, new: Sequence[ShardReceipt]) -> Manifest:
    """Publish the revision of a dataset with these additional shards, and return its manifest."""
    storage, manifest = dataset.storage, dataset.manifest
    place = placing(storage)
    for receipt in new:
        place(receipt)
    before = manifest.splits[0]
    split = _grown(before, new, finished.replace_index(storage, before, _rows(storage, len(new), root), len(new)))
    files = {entry["file"]: entry for entry in manifest.files}
    files |= {entry["file"]: entry for receipt in new for entry in entries_of(receipt)}
    networks = set(manifest.options.get("allow_networks", ()))
    networks |= {network for receipt in new for network in fetched(receipt).allow_networks}
    consents = {*manifest.options.get("consents", ())} | {each for receipt in new for each in fetched(receipt).consents}
    change = Change(manifest.revision + 1, split.name, "added", len(before.shards), before.samples)
    grown = replace(
        manifest,
        options=manifest.options | {"allow_networks": sorted(networks), "consents": sorted(consents)},
        splits=(split,),
        files=tuple(files.values()),
        changes=(*manifest.changes, change),
    )
    return finished.publish_revision(storage, manifest, dataset.data, grown)


def _rows(storage: Storage, shards: int, root: str) -> Iterator[pa.Table]:
    """Yield the index rows of the new shards."""
    for found in read_receipts(storage, range(shards), root):
        if found is None:
            raise ConflictError(finished.changed(storage))
        yield found[1]


def _tidy_up(dataset: FetchedDataset, begun: RetryPlan, progress: RetryProgress) -> bool:
    """Remove an interrupted but finished retry; return whether it had published the existing revision."""
    revision = dataset.manifest.revision
    if revision > begun.revision:
        progress.log(f"revision {begun.revision + 1} exists: an earlier run was interrupted after publishing it")
    is_published = revision == begun.revision + 1
    if is_published:
        replace_cards(dataset.storage, dataset.manifest, begun.cards)
    finished.end_change(dataset.storage, begun.root, begun.files(dataset.names))
    return is_published


def _begin(dataset: FetchedDataset, choice: Choice) -> RetryPlan | None:
    """Choose the rows and store the plan; None if there are no rows to try."""
    storage, shards = dataset.storage, dataset.num_shards
    chosen = rows_to_try(dataset, choice)
    first = next(chosen, None)
    if first is None:
        storage.delete_tree(CHANGE)  # files of an interrupted cleanup
        return None
    plan = RetryPlan(
        id=uuid.uuid4().hex,
        revision=dataset.manifest.revision,
        manifest_sha256=dataset.sha256,
        choice=choice,
        shard_rows=(),
        first_shard=shards,
        first_number=finished.next_number(dataset.manifest, dataset.manifest.splits[0], 0),
        codecs=laion_codecs(),
        cards=own_cards(storage, dataset.manifest),
    )
    shard_rows: list[int] = []
    tables = row_tables(chain([first], chosen), dataset.options.rows_per_shard, shard_rows)
    indexes.publish_row_groups(storage, rows_file(plan.root), tables, rows_schema())
    plan = replace(plan, shard_rows=tuple(shard_rows))
    try:
        finished.next_number(dataset.manifest, dataset.manifest.splits[0], len(plan.shard_rows))
    except UsageError:
        storage.delete_tree(plan.root)
        raise
    if not finished.begin_change(storage, plan):
        return finished.read_change(storage, RetryPlan)
    for info in list(storage.list(f"{CHANGE}/")):  # files of an interrupted cleanup
        if info.name != CHANGE_JSON and not info.name.startswith(f"{plan.root}/"):
            storage.delete(info.name)
    return plan


def _finish(dataset: FetchedDataset, plan: RetryPlan) -> Retried:
    """Publish the next revision, or remove the new shards if no row became an image."""
    storage, manifest = dataset.storage, dataset.manifest
    names = replace(dataset.names, shift=plan.first_number - plan.first_shard)
    places = Places(root=plan.root, names=names, first_shard=plan.first_shard)
    found = enumerate(read_receipts(storage, range(len(plan.shard_rows)), plan.root))
    new = [places.checked(storage, index, pair[0]) for index, pair in found if pair is not None]
    if len(new) != len(plan.shard_rows):
        raise ConflictError(f"{storage.url}: receipts of this retry are gone; another process has finished it")
    rows = sum(plan.shard_rows)
    came = sum(receipt.samples for receipt in new)
    if came:
        manifest = _publish(dataset, plan.root, new)
        replace_cards(storage, manifest, plan.cards)
    finished.end_change(storage, plan.root, plan.files(dataset.names))
    return Retried(manifest=manifest, rows=rows, came=came, shards=len(new) if came else 0)


class _Retrier:
    """Makes the new shards of a job; it remembers hosts from shard to shard."""

    def __init__(self, job: RetryJob) -> None:
        refuse_other_codecs(job.codecs)
        dataset = open_fetched(job.url)
        self._job, self._storage, self._dataset = job, dataset.storage, dataset
        if dataset.sha256 != job.manifest_sha256:
            raise ConflictError(finished.changed(self._storage))
        check = partial(finished.refuse_overtaken_change, self._storage, job.root)
        names = replace(dataset.names, shift=job.first_number - job.first_shard)
        places = Places(root=job.root, names=names, first_shard=job.first_shard)
        staged = self._storage.staged(job.root, check)
        self._target = Target(
            staged, places, ShardOptions(dataset.manifest.format, job.rows, dataset.options.schema), check
        )
        self._web = WebFetch(job.limits)
        self._places = open_parquet(self._storage, rows_file(job.root))

    def build(self, index: int) -> ShardReceipt:
        done = self._target.done(index)
        if done is not None:
            return done
        pairs = self._rows_of(index)
        rows: list[Row] = []
        statuses: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for shard, group in groupby(pairs, key=itemgetter(0)):
            table = read_columns(self._storage, self._dataset.parquet_file(shard))
            places = [row for _, row in group]
            if not 0 <= min(places) <= max(places) < table.num_rows:
                raise no_plan(self._storage, f"row {max(places)} of {table.num_rows:,} in shard {shard}")
            for fields in table.take(places).to_pylist():
                rows.append(self._dataset.row_of(fields))
                statuses[fields["status"]] += 1
                reasons[fields["error_message"] or ""] += 1
        before = {"statuses": dict(sorted(statuses.items())), "reasons": dict(sorted(reasons.items()))}
        return fetch_shard(self._target, index, rows, self._web, before)

    def _rows_of(self, index: int) -> list[tuple[int, int]]:
        """Return the old shard and position of each row in a new shard."""
        try:
            table = self._places.read_row_group(index)
            pairs = list(zip(table.column("shard").to_pylist(), table.column("row").to_pylist(), strict=True))
        except (IndexError, KeyError, ValueError, OSError) as error:
            raise no_plan(self._storage, f"its rows of shard {index} cannot be read: {error}") from error
        shards = self._dataset.num_shards
        for shard, row in pairs:
            if not (isinstance(shard, int) and 0 <= shard < shards and isinstance(row, int)):
                raise no_plan(self._storage, f"shard {shard} of {shards:,}")
        return pairs


_retrier = lru_cache(maxsize=1)(_Retrier)


def _grown(split: SplitManifest, new: Sequence[ShardReceipt], index: IndexEntry) -> SplitManifest:
    """Return a split with its new shards; every row is counted by its newest status."""
    return replace(
        recounted(split, new),
        samples=split.samples + sum(receipt.samples for receipt in new),
        num_bytes=split.num_bytes + sum(receipt.num_bytes for receipt in new),
        shards=(*split.shards, *(manifests.shard_entry(receipt) for receipt in new)),
        index=index,
    )
