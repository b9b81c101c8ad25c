"""Tries failed rows of a finished dataset again; their images are added as new shards after the last one.

    which rows ─▶ shards, receipts ─▶ index ─▶ dataset_info.json ─▶ dataset.json ─▶ cards ─▶ `_retry/` is removed

Only the index, dataset_info.json and dataset.json of the finished dataset are replaced (revision.py).

A new shard has its own parquet file and stats, with the rows that were tried and their new status; the old entries of
these rows stay as history. So the newest status of a row is in the last shard whose parquet file has its key. The
manifest counts every row once, by its newest status: the entry `before` in a shard's stats holds the counts to
subtract.

After an interruption the same command continues with the plan in `_retry/plan.json` (retry_plan.py), which is the first
file that is removed at the end. Workers make the shards with retry_shards.py.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from dataprep.builder.cards import own_cards, replace_cards
from dataprep.builder.receipts import finished_shards, read_receipts
from dataprep.dataset.index import publish_row_groups
from dataprep.dataset.paths import RETRY, RETRY_JSON
from dataprep.dataset.records import Manifest, ShardReceipt
from dataprep.errors import ConflictError, UsageError
from dataprep.fetched.commit import Places
from dataprep.fetched.existing import FetchedDataset, open_fetched
from dataprep.fetched.manifest import laion_options
from dataprep.fetched.newest import Choice, RowPlaces, rows_to_try
from dataprep.fetched.plan import laion_codecs
from dataprep.fetched.reasons import check_reasons
from dataprep.fetched.retry_plan import ChoiceEntry, RetryPlan, clean_up, no_plan, read_plan, rows_file
from dataprep.fetched.retry_shards import RetryJob
from dataprep.fetched.revision import publish_revision

if TYPE_CHECKING:
    from dataprep.web.limits import Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Retried:
    """The dataset after a retry, and the work of this run on it."""

    manifest: Manifest
    rows: int
    """Number of rows that were tried."""
    came: int
    """Number of rows that became images."""
    shards: int
    """Number of new shards; 0 if no row became an image."""


Engine = Callable[[RetryJob, list[int]], Iterator[ShardReceipt]]


class RetryProgress(Protocol):
    """Receiver of a retry's progress reports."""

    def shards(self, samples: Sequence[int], done: set[int]) -> None:
        """The new shards have these numbers of rows; the shards in `done` are done already."""

    def shard_done(self, receipt: ShardReceipt) -> None:
        """One more shard is done."""

    def log(self, line: str) -> None:
        """Show a line to the user."""


def retry_failed(
    url: str,
    choice: Choice,
    limits: Limits,
    engine: Engine,
    progress: RetryProgress,
) -> Retried:
    """Try failed rows again, or continue an interrupted retry.

    Args:
        url: URL of a finished dataset.
        choice: Which rows are tried; an interrupted retry keeps its own choice.
        limits: Limits of all workers together.
        engine: Runs `retry_shard` for many indexes, and divides the job's limits among its workers.
        progress: Receives progress reports.

    Raises:
        UsageError: There is no dataset of a table of URLs, or no row can have failed for a chosen reason.
        ConflictError: Another process has changed the dataset meanwhile.
    """
    dataset = open_fetched(url)
    check_reasons(choice, dataset.manifest)
    dataset.storage.remove_stale_spools()
    begun = read_plan(dataset.storage)
    if begun is not None and _is_over(dataset, begun):
        if _tidy_up(dataset, begun, progress):
            return Retried(manifest=dataset.manifest, rows=0, came=0, shards=0)
        begun = None
    plan = _begin(dataset, choice) if begun is None else _checked_begin(dataset, begun)
    if plan is None:
        return Retried(manifest=dataset.manifest, rows=0, came=0, shards=0)
    rows = laion_options(dataset.manifest).rows
    if plan.choice != _document(choice):
        text = ", ".join(f"{name} {value}" for name, value in plan.choice.items() if value)
        progress.log(f"continuing with the options of an interrupted run: {text or 'none'}")
    _make_missing(
        RetryJob(dataset.storage.url, plan.root, plan.manifest_sha256, plan.first_shard, rows, limits, plan.codecs),
        finished_shards(dataset.storage, plan.root),
        plan.shard_rows,
        engine,
        progress,
    )
    return _finish(dataset, plan)


def _is_over(dataset: FetchedDataset, begun: RetryPlan) -> bool:
    """Return whether an interrupted retry is one of another manifest, or was being removed."""
    return begun.manifest_sha256 != dataset.sha256 or dataset.storage.stat(rows_file(begun.root)) is None


def _tidy_up(dataset: FetchedDataset, begun: RetryPlan, progress: RetryProgress) -> bool:
    """Remove an interrupted retry that is over; return whether it had published the existing revision."""
    revision = dataset.manifest.revision
    if revision > begun.revision:
        progress.log(f"revision {begun.revision + 1} exists: an earlier run was interrupted after publishing it")
    is_published = revision == begun.revision + 1
    if is_published:
        replace_cards(dataset.storage, dataset.manifest, begun.cards)
    clean_up(dataset.storage, begun, dataset.layout.names)
    return is_published


def _checked_begin(dataset: FetchedDataset, begun: RetryPlan) -> RetryPlan:
    """Return the plan of an interrupted retry. Raises FormatError if its shards do not follow those of the dataset."""
    shards = len(dataset.layout.parquet_files)
    if begun.first_shard != shards:
        raise no_plan(dataset.storage, f"its first shard is number {begun.first_shard}, after {shards:,} shards")
    return begun


def _make_missing(
    job: RetryJob, done: set[int], shard_rows: Sequence[int], engine: Engine, progress: RetryProgress
) -> None:
    progress.shards(shard_rows, done)
    missing = [index for index in range(len(shard_rows)) if index not in done]
    if missing:
        for receipt in engine(job, missing):
            progress.shard_done(receipt)


def _begin(dataset: FetchedDataset, choice: Choice) -> RetryPlan | None:
    """Choose the rows and store the plan; None if there are no rows to try."""
    storage, layout = dataset.storage, dataset.layout
    chosen = rows_to_try(storage, layout, choice)
    first = next(chosen, None)
    if first is None:
        storage.delete_tree(RETRY)  # files of an interrupted cleanup
        return None
    shards = len(layout.parquet_files)
    places = RowPlaces(layout.shard_rows)
    plan = RetryPlan(
        id=uuid.uuid4().hex,
        revision=dataset.manifest.revision,
        manifest_sha256=dataset.sha256,
        choice=_document(choice),
        shard_rows=(),
        first_shard=shards,
        codecs=laion_codecs(),
        cards=own_cards(storage, dataset.manifest),
    )
    tables = places.tables(chain([first], chosen))
    publish_row_groups(storage, rows_file(plan.root), tables, places.schema())
    plan = replace(plan, shard_rows=tuple(places.shard_rows))
    total = shards + len(plan.shard_rows)
    if len(str(total)) > layout.names.digits:
        storage.delete_tree(plan.root)
        raise UsageError(
            f"{storage.url}: {total:,} shards need longer numbers than the existing {shards:,}, whose names would "
            "change; build the failed rows as a separate dataset"
        )
    try:
        storage.create(RETRY_JSON, json.dumps(asdict(plan), indent=1).encode())
    except ConflictError:  # another process began at the same time
        storage.delete_tree(plan.root)
        return read_plan(storage)
    for info in list(storage.list(f"{RETRY}/")):  # files of an interrupted cleanup
        if info.name != RETRY_JSON and not info.name.startswith(f"{plan.root}/"):
            storage.delete(info.name)
    return plan


def _document(choice: Choice) -> ChoiceEntry:
    """Return a choice as the plan stores it in JSON."""
    return {"reasons": list(choice.reasons), "everything": choice.everything}


def _finish(dataset: FetchedDataset, plan: RetryPlan) -> Retried:
    """Publish the next revision, or remove the new shards if no row became an image."""
    storage, manifest = dataset.storage, dataset.manifest
    new = _sum_up(dataset, plan)
    rows = sum(plan.shard_rows)
    came = sum(receipt.samples for receipt in new)
    if came:
        manifest = publish_revision(dataset, plan.root, new)
        replace_cards(storage, manifest, plan.cards)
    clean_up(storage, plan, dataset.layout.names)
    return Retried(manifest=manifest, rows=rows, came=came, shards=len(new) if came else 0)


def _sum_up(dataset: FetchedDataset, plan: RetryPlan) -> list[ShardReceipt]:
    storage = dataset.storage
    places = Places(root=plan.root, names=dataset.layout.names, first_shard=plan.first_shard)
    found = enumerate(read_receipts(storage, range(len(plan.shard_rows)), plan.root))
    receipts = [places.checked(storage, index, pair[0]) for index, pair in found if pair is not None]
    if len(receipts) != len(plan.shard_rows):
        raise ConflictError(f"{storage.url}: receipts of this retry are gone; another process has finished it")
    return receipts
