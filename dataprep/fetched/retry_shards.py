"""Makes the new shards of a retry of failed rows, one after the other, in workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from dataprep.builder.plan import refuse_other_codecs
from dataprep.builder.receipts import read_receipt
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import ConflictError, FormatError
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.commit import Places, put_in_place
from dataprep.fetched.existing import open_fetched
from dataprep.fetched.make import ShardOptions
from dataprep.fetched.retry_plan import id_of_plan, no_plan, open_rows
from dataprep.fetched.revision import changed
from dataprep.fetched.shards import Target, WebFetch, fetch_shard
from dataprep.sources.laion import Row
from dataprep.storage import Storage
from dataprep.storage.parquet import read_columns

if TYPE_CHECKING:
    from dataprep.web.limits import Limits


@dataclass(frozen=True, slots=True)
class RetryJob:
    """Everything that a worker needs besides a shard's index."""

    url: str
    root: str
    """Folder in which receipts and rows lie."""
    manifest_sha256: str
    first_shard: int
    rows: RowOptions
    limits: Limits
    """Limits of the worker; in the job that an engine gets, those of all workers together."""
    codecs: dict[str, str] = field(hash=False)
    """Versions of libraries that a worker must have."""


def retry_shard(job: RetryJob, index: int) -> ShardReceipt:
    """Make one new shard, or return its existing receipt without fetching the rows again."""
    return _retrier(job).build(index)


@lru_cache(maxsize=1)
def _retrier(job: RetryJob) -> _Retrier:
    """Return this process's retrier of a job, which keeps what it learns about hosts from shard to shard."""
    return _Retrier(job)


class _Retrier:
    def __init__(self, job: RetryJob) -> None:
        refuse_other_codecs(job.codecs)
        dataset = open_fetched(job.url)
        self._job, self._storage, self._layout = job, dataset.storage, dataset.layout
        if dataset.sha256 != job.manifest_sha256:
            raise ConflictError(changed(self._storage))
        names, schema = self._layout.names, self._layout.schema
        check = partial(_refuse_overtaken, self._storage, job)
        places = Places(root=job.root, names=names, first_shard=job.first_shard)
        staged = self._storage.staged(job.root, check)
        self._target = Target(staged, places, ShardOptions(dataset.manifest.format, job.rows, schema), check)
        self._web = WebFetch(job.limits)
        self._places = open_rows(self._storage, job.root)

    def build(self, index: int) -> ShardReceipt:
        found = read_receipt(self._storage, index, self._job.root)
        if found is not None:
            receipt = self._target.places.checked(self._storage, index, found[0])
            put_in_place(self._target.storage, receipt)
            return receipt
        pairs = self._rows_of(index)
        rows: list[Row] = []
        statuses: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for shard, group in groupby(pairs, key=itemgetter(0)):
            table = read_columns(self._storage, self._layout.parquet_files[shard])
            places = [row for _, row in group]
            if not 0 <= min(places) <= max(places) < table.num_rows:
                raise no_plan(self._storage, f"row {max(places)} of {table.num_rows:,} in shard {shard}")
            for fields in table.take(places).to_pylist():
                rows.append(self._layout.row_of(fields))
                statuses[fields["status"]] += 1
                reasons[fields["error_message"] or ""] += 1
        before = {"statuses": dict(sorted(statuses.items())), "reasons": dict(sorted(reasons.items()))}
        return fetch_shard(self._target, index, rows, self._web, before)

    def _rows_of(self, index: int) -> list[tuple[int, int]]:
        """Return the old shard and position of each row that is tried in a new shard."""
        try:
            table = self._places.read_row_group(index)
            pairs = list(zip(table.column("shard").to_pylist(), table.column("row").to_pylist(), strict=True))
        except (IndexError, KeyError, ValueError, OSError) as error:
            raise no_plan(self._storage, f"its rows of shard {index} cannot be read: {error}") from error
        shards = len(self._layout.parquet_files)
        for shard, row in pairs:
            if not (isinstance(shard, int) and 0 <= shard < shards and isinstance(row, int)):
                raise no_plan(self._storage, f"shard {shard} of {shards:,}")
        return pairs


def _refuse_overtaken(storage: Storage, job: RetryJob) -> None:
    """Raise ConflictError if this retry's plan is gone: the dataset was overwritten, or another process finished."""
    try:
        current = id_of_plan(storage)
    except (FileNotFoundError, ValueError, RecursionError, FormatError):
        current = None
    if current != job.root.rpartition("/")[2]:
        raise ConflictError(changed(storage))
