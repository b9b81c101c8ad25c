"""Try the failed rows of a finished dataset again; what comes now becomes new shards after the last one.

    which rows ─▶ shards, receipts ─▶ index ─▶ dataset_info.json ─▶ dataset.json ─▶ `_retry/` goes

No file of the finished dataset is touched but those three (revision.py). What differs between datasets of ours and
those that img2dataset wrote is a Layout (layout.py, img2dataset.py).

A new shard has a parquet file and stats of its own, with the rows that were tried and how they ended now; their old
rows stay where they are as history. So the newest status of a row is that of the last shard whose parquet file has its
key. The manifest counts every row once, by its newest status: a shard's stats say under `before` what is taken off.

    _retry/plan.json              create-only; which revision it begins with, which rows, and where the rest lies
    _retry/<id>/rows.parquet      rows to try: a row group a new shard
    _retry/<id>/receipts/, tmp/   as in a build (commit.py)

Killed anywhere, the same command goes on: `plan.json` says what was begun. It is the first that goes in the end.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dataprep.adopt import is_adopted
from dataprep.checks.laion import laion_options
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.laion.beside import read_beside
from dataprep.laion.build import Target, WebFetch, fetch_shard
from dataprep.laion.collect import RowOptions
from dataprep.laion.commit import files_of, put_in_place
from dataprep.laion.making import rows_as_made
from dataprep.laion.newest import Choice, RowPlaces, rows_to_try
from dataprep.laion.revision import changed, publish_revision
from dataprep.laion.standing import Standing, open_standing
from dataprep.manifest import MANIFEST
from dataprep.records import Manifest, ShardReceipt
from dataprep.sources.laion import Row
from dataprep.storage import Storage
from dataprep.workspace import (
    RETRY,
    RangeFile,
    finished_shards,
    publish_row_groups,
    read_receipt,
    read_receipts,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from dataprep.web.limits import Limits

RETRY_JSON = f"{RETRY}/plan.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPlan:
    """What `_retry/plan.json` holds."""

    id: str
    revision: int
    """Of the manifest that it begins with."""
    manifest_sha256: str
    choice: dict[str, Any]
    making: dict[str, Any] = field(default_factory=dict)
    """What was said of how img2dataset made its images."""
    shard_rows: tuple[int, ...]
    """Rows of each new shard."""
    first_shard: int
    """Number of the first new one."""

    @property
    def root(self) -> str:
        return f"{RETRY}/{self.id}"


@dataclass(frozen=True, slots=True)
class RetryJob:
    """All that a worker needs besides a shard's index."""

    url: str
    root: str
    """Where receipts and rows lie."""
    manifest_sha256: str
    first_shard: int
    rows: RowOptions
    limits: Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Retried:
    """The dataset as it is now, and what this run did for it."""

    manifest: Manifest
    rows: int
    """That were tried."""
    came: int
    shards: int
    """New ones; none where nothing came."""


Engine = Callable[[RetryJob, list[int]], Iterator[ShardReceipt]]
Planned = Callable[[Sequence[int], set[int]], None]
"""Told the rows of each new shard, and which of them stand already."""


def retry_failed(
    url: str,
    choice: Choice,
    limits: Limits,
    engine: Engine,
    *,
    planned: Planned,
    shard_done: Callable[[ShardReceipt], None],
    log: Callable[[str], None],
    making: Mapping[str, Any] | None = None,
) -> Retried:
    """Try failed rows again, or go on with what an interrupted run began.

    Args:
        url: Of a finished dataset.
        choice: Which rows; what was begun keeps its own.
        limits: Of one worker.
        engine: Runs `retry_shard` for many indexes.
        planned: Told once.
        shard_done: Told of each new shard.
        log: Takes lines for people.
        making: How images are made for a dataset of img2dataset, by field of EncodeOptions or RowFilter; what was
            begun keeps its own.

    Raises:
        UsageError: There is no dataset of a table of URLs, or it must be said how its images were made.
        ConflictError: Another process has changed the dataset meanwhile.
    """
    standing = open_standing(url)
    storage, manifest = standing.storage, standing.manifest
    storage.remove_stale_spools()
    plan = _read_plan(storage)
    if plan is not None and plan.manifest_sha256 != standing.sha256:
        if manifest.revision > plan.revision:
            log(f"revision {plan.revision + 1} stands already: an earlier run was interrupted when all was done")
        _clean_up(storage, plan)
        if manifest.revision == plan.revision + 1:
            return Retried(manifest=manifest, rows=0, came=0, shards=0)
        plan = None
    said = dict(making or {})
    given = said if plan is None else plan.making
    rows = _row_options(standing, given, log)
    plan = plan or _begin(standing, choice, said)
    if plan is None:
        return Retried(manifest=manifest, rows=0, came=0, shards=0)
    if plan.making != given:  # another process has begun meanwhile
        rows = _row_options(standing, plan.making, log)
    told = plan.choice | plan.making
    if told != _document(choice) | said:
        text = ", ".join(f"{name} {value}" for name, value in told.items() if value)
        log(f"going on with what an interrupted run was told: {text or 'nothing'}")
    done = finished_shards(storage, plan.root)
    planned(plan.shard_rows, done)
    missing = [index for index in range(len(plan.shard_rows)) if index not in done]
    if missing:
        job = RetryJob(storage.url, plan.root, plan.manifest_sha256, plan.first_shard, rows, limits)
        for receipt in engine(job, missing):
            shard_done(receipt)
    return _finish(standing, plan)


def retry_shard(job: RetryJob, index: int) -> ShardReceipt:
    """One new shard, or what became of it before: what has a receipt is not asked for again."""
    return _retrier(job).build(index)


@lru_cache(maxsize=1)
def _retrier(job: RetryJob) -> _Retrier:
    """It keeps what it learns of hosts from shard to shard."""
    return _Retrier(job)


class _Retrier:
    def __init__(self, job: RetryJob) -> None:
        standing = open_standing(job.url)
        self._job, self._storage, self._layout = job, standing.storage, standing.layout
        if standing.sha256 != job.manifest_sha256:
            raise ConflictError(changed(self._storage))
        names, schema = self._layout.names, self._layout.schema
        self._target = Target(self._storage, job.root, standing.manifest.format, names, job.rows, schema)
        self._web = WebFetch(job.limits)
        self._places = _open_rows(self._storage, job.root)

    def build(self, index: int) -> ShardReceipt:
        found = read_receipt(self._storage, index, self._job.root)
        if found is not None:
            put_in_place(self._storage, found[0])
            return found[0]
        places = self._places.read_row_group(index, use_threads=False)
        pairs = zip(places.column("shard").to_pylist(), places.column("row").to_pylist(), strict=True)
        rows: list[Row] = []
        statuses: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for shard, group in groupby(pairs, key=itemgetter(0)):
            table = read_beside(self._storage, self._layout.parquet_files[shard])
            for fields in table.take([row for _, row in group]).to_pylist():
                rows.append(self._layout.row_of(fields))
                statuses[fields["status"]] += 1
                reasons[self._layout.reason_of(fields["error_message"] or "")] += 1
        before = {"statuses": dict(sorted(statuses.items())), "reasons": dict(sorted(reasons.items()))}
        return fetch_shard(self._target, index, self._job.first_shard + index, rows, self._web, before)


# The plan


def _read_plan(storage: Storage) -> RetryPlan | None:
    try:
        document = json.loads(storage.read(RETRY_JSON))
        plan = RetryPlan(**{**document, "shard_rows": tuple(document["shard_rows"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{storage.url_of(RETRY_JSON)}: no plan of a retry ({error}); remove {RETRY}/") from error
    if storage.stat(_rows_file(plan.root)) is None:  # a cleaning up took it between
        _clean_up(storage, plan)
        return None
    return plan


def _row_options(standing: Standing, making: Mapping[str, Any], log: Callable[[str], None]) -> RowOptions:
    """What becomes of a row: as the manifest says, or as img2dataset would have it. Raises UsageError."""
    if is_adopted(standing.manifest):
        return rows_as_made(standing, making, log)
    if making:
        flag = next(iter(making)).replace("_", "-")
        raise UsageError(f"--{flag}: how {standing.storage.url} makes its images stands in its manifest; leave it out")
    return laion_options(standing.manifest).rows


def _begin(standing: Standing, choice: Choice, making: Mapping[str, Any]) -> RetryPlan | None:
    """Choose rows and store which; None where there are none."""
    storage, layout = standing.storage, standing.layout
    chosen = rows_to_try(storage, layout, choice)
    first = next(chosen, None)
    if first is None:
        storage.delete_tree(RETRY)  # what an interrupted cleaning up left
        return None
    shards = len(layout.parquet_files)
    places = RowPlaces(layout.shard_rows)
    plan = RetryPlan(
        id=uuid.uuid4().hex,
        revision=standing.manifest.revision,
        manifest_sha256=standing.sha256,
        choice=_document(choice),
        making=dict(making),
        shard_rows=(),
        first_shard=shards,
    )
    tables = places.tables(chain([first], chosen))
    publish_row_groups(storage, _rows_file(plan.root), tables, places.schema())
    plan = replace(plan, shard_rows=tuple(places.shard_rows))
    total = shards + len(plan.shard_rows)
    if len(str(layout.names.offset + total)) > layout.names.digits:
        storage.delete_tree(plan.root)
        raise UsageError(
            f"{storage.url}: {total:,} shards have longer numbers than the {shards:,} there, whose names would change; "
            "build the failed rows as a dataset of their own"
        )
    try:
        storage.create(RETRY_JSON, json.dumps(asdict(plan), indent=1).encode())
    except ConflictError:  # another process began at the same time
        storage.delete_tree(plan.root)
        return _read_plan(storage)
    for info in list(storage.list(f"{RETRY}/")):  # what an interrupted cleaning up left
        if info.name != RETRY_JSON and not info.name.startswith(f"{plan.root}/"):
            storage.delete(info.name)
    return plan


def _document(choice: Choice) -> dict[str, Any]:
    """As it comes back from JSON."""
    return {"reasons": list(choice.reasons), "everything": choice.everything}


def _rows_file(root: str) -> str:
    return f"{root}/rows.parquet"


def _open_rows(storage: Storage, root: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if storage.is_local:
        return pq.ParquetFile(storage.url_of(_rows_file(root)))
    return pq.ParquetFile(pa.PythonFile(RangeFile(storage, _rows_file(root)), mode="r"))


# What it ends with


def _finish(standing: Standing, plan: RetryPlan) -> Retried:
    """Sum up, and publish the next revision; where nothing came, remove what was written."""
    storage, manifest = standing.storage, standing.manifest
    new = _sum_up(storage, plan)
    rows = sum(plan.shard_rows)
    came = sum(receipt.samples for receipt in new)
    if came:
        manifest = publish_revision(standing, plan.root, new)
    elif storage.read(MANIFEST) == standing.data:
        for receipt in new:
            for info in files_of(receipt):
                storage.delete(info.name)
    _clean_up(storage, plan)
    return Retried(manifest=manifest, rows=rows, came=came, shards=len(new) if came else 0)


def _sum_up(storage: Storage, plan: RetryPlan) -> list[ShardReceipt]:
    found = read_receipts(storage, range(len(plan.shard_rows)), plan.root)
    receipts = [pair[0] for pair in found if pair is not None]
    if len(receipts) != len(plan.shard_rows):
        raise ConflictError(f"{storage.url}: receipts of this retry are gone; another process has finished it")
    return receipts


def _clean_up(storage: Storage, plan: RetryPlan) -> None:
    """The plan first, if it is this one's: without it nothing of the rest counts."""
    try:
        if json.loads(storage.read(RETRY_JSON))["id"] != plan.id:
            return
    except FileNotFoundError:
        pass
    storage.delete(RETRY_JSON)
    storage.delete_tree(RETRY)
    storage.remove_stale_spools()
