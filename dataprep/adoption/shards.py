"""Reads every shard's headers in parallel, and writes the rows to a local folder, so that memory stays bounded.

Memory grows by 8 bytes for each sample, and for an image folder by 240 bytes for each file of the listing. The
statuses of img2dataset's rows are counted from the sidecars of its shards.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from dataprep.adoption.find import Found, FoundShard, folder_rows
from dataprep.adoption.labels import (
    MAX_CLASSES,
    LabelReader,
    ShardLabels,
    key_hash,
    listed_fields,
    text_classes,
    too_many_texts,
)
from dataprep.adoption.records import FeatureShape, tar_rows, tfrecord_rows, told_apart
from dataprep.arrays import NDArray, np, pa, pq
from dataprep.builder.pool import Pool
from dataprep.dataset.adopted import open_linked
from dataprep.dataset.columns import numbers
from dataprep.dataset.documents import decode
from dataprep.dataset.index import IndexRow, index_table
from dataprep.dataset.records import NO_LABEL, Event
from dataprep.errors import DataprepError, FormatError, SourceError
from dataprep.formats.img2dataset import STATUSES, reason_of, sidecars_of
from dataprep.host.heartbeat import STALL_S
from dataprep.sources.archives import ArchiveReader
from dataprep.storage import Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import read_columns
from dataprep.storage.spool import temporary_folder

_WORKER_MODULES = ("dataprep.adoption.shards", "pyarrow.parquet")
_JOB = "job.pickle"
MAX_STATS_BYTES = 16 << 20
"""Maximum size of a shard's stats; they have a count for each reason, some kB."""


class Progress(Protocol):
    """Receiver of progress reports; also says how long a worker may go without progress."""

    stall_s: float

    def step(self, what: str) -> None:
        """A step of unknown length begins."""

    def started(self, shards: int, num_bytes: int) -> None:
        """This number of shards, with these bytes, will be read."""

    def shard_done(self, samples: int, num_bytes: int) -> None:
        """One more shard was read."""

    def log(self, line: str) -> None:
        """Show a line to the user."""

    def warn(self, line: str) -> None:
        """Show a warning."""


class Quiet:
    """Progress that is not shown."""

    stall_s = STALL_S

    def step(self, what: str) -> None: ...

    def started(self, shards: int, num_bytes: int) -> None: ...

    def shard_done(self, samples: int, num_bytes: int) -> None: ...

    def log(self, line: str) -> None: ...

    def warn(self, line: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadJob:
    """Everything that a worker needs in addition to a shard's position among all shards of all splits."""

    data_url: str
    found: Found
    labels: str | None
    digest: bool
    """Whether every image is read for its CRC32C."""


@dataclass(frozen=True, slots=True)
class ReadShard:
    index: int
    """Position among all shards of all splits."""
    rows_file: Path
    samples: int
    image_bytes: int
    key_hashes: NDArray[np.uint64]
    """Hashes of the keys, ignoring case; shape (samples,)."""
    labels: Counter[int]
    """Number of samples by label; samples without a label are not counted."""
    kind: ShardLabels
    """Whether labels are integers or texts."""
    fields: Counter[str]
    """Number of samples that have each field, such as a caption."""
    events: list[Event]
    features: Counter[FeatureShape]
    """Number of records by shape of each feature, for TFRecords of img2dataset."""
    counts: RowCounts | None
    """Number of img2dataset's rows by status; None for other data, or if it cannot be read."""
    problem: str
    """Reason that `counts` cannot be read; empty otherwise."""
    label_of: tuple[int, ...] = ()
    """Label for each number in `rows_file`, once the classes of texts are known; empty if numbers are labels."""

    def rows(self) -> pa.Table:
        """Read the shard's rows of the index."""
        rows = pq.ParquetFile(self.rows_file).read(use_threads=False)
        if not self.label_of:
            return rows
        at = rows.schema.get_field_index("label")
        labels = [NO_LABEL if number < 0 else self.label_of[number] for number in rows.column(at).to_pylist()]
        return rows.set_column(at, rows.schema.field(at), numbers(labels, rows.schema.field(at).type))


def read_shards(job: ReadJob, folder: Path, progress: Progress, workers: int) -> list[ReadShard]:
    """Read all shards, and return them in the order of their splits and files. Raises SourceError if the data are
    damaged; the text says where.

    Args:
        folder: An empty, private folder that outlives the result.
        workers: Number of worker processes; with 0 this process reads. It always reads image folders itself, because
            their files need not be opened.
    """
    shards = job.found.shards
    progress.started(len(shards), sum(shard.num_bytes for shard in shards))
    workers = min(workers, len(shards))
    if job.found.images or not workers:
        here = (_read(job, folder, index) for index in range(len(shards)))
        return list(_bounded(job.data_url, (_reported(progress, job, result) for result in here)))
    (folder / _JOB).write_bytes(pickle.dumps(job))  # written once, not sent with every task: it lists all shards
    with Pool(workers, progress.warn, preload=_WORKER_MODULES, stall_s=progress.stall_s) as pool:
        results = pool.run(partial(_read_stored, folder), range(len(shards)))
        reported = _bounded(job.data_url, (_reported(progress, job, result) for result in results))
        return sorted(reported, key=lambda result: result.index)


def read_first(job: ReadJob) -> ReadShard:
    """Read the first shard to describe it; its rows are not kept. Raises SourceError, saying where it is damaged."""
    with temporary_folder() as folder:
        return _read(job, folder, 0)


def with_classes(url: str, results: Sequence[ReadShard]) -> tuple[list[ReadShard], tuple[str, ...]]:
    """Number labels that are texts in sorted order; return the shards, and the names of the classes.

    If no labels are texts, return the shards as they are, and no names. Raises SourceError if labels are integers in
    some shards and texts in others, or too many texts for classes.
    """
    samples = sum(result.labels.total() for result in results)
    classes = text_classes((result.kind for result in results), samples, where=url)
    number_of = {text: number for number, text in enumerate(classes)}
    numbered = []
    for result in results:
        label_of = tuple(number_of[text] for text in result.kind.texts)
        labels = Counter({label_of[number]: count for number, count in result.labels.items()}) if label_of else None
        numbered.append(replace(result, label_of=label_of, labels=labels) if labels is not None else result)
    return numbered, classes


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Number of rows of a shard by status and reason, minus the earlier statuses of retried rows."""

    statuses: Counter[str]
    reasons: Counter[str]
    """Number of rows by reason; `success` for rows without a reason."""


def count_rows(storage: Storage, shard: str) -> RowCounts:
    """Count a shard's rows by status and reason. Raises FormatError for missing, damaged or foreign sidecars."""
    parquet, stats = sidecars_of(shard)
    table = read_columns(storage, parquet, ("status", "error_message"))
    statuses, messages = (table.column(name).to_pylist() for name in ("status", "error_message"))
    ends = zip(messages, statuses, strict=True)
    reasons = (reason_of(message) if message else status for message, status in ends)
    counts = RowCounts(Counter(statuses), Counter(reasons))
    if unknown := sorted(map(str, set(counts.statuses) - set(STATUSES)))[:3]:
        raise FormatError(f"{storage.url_of(parquet)}: status {', '.join(unknown)}, expected {', '.join(STATUSES)}")
    where = f"{storage.url_of(stats)}: not the stats of img2dataset"
    data = read_bounded(storage, stats, MAX_STATS_BYTES, advice="restore it")
    if data is None:
        raise FormatError(f"{where}: not found; restore it")
    before = decode(data, _Stats, where=where, advice="restore it").before
    counts.statuses.subtract(before.statuses)
    counts.reasons.subtract(before.reasons)
    return counts


def _bounded(url: str, results: Iterable[ReadShard]) -> Iterator[ReadShard]:
    """Yield the shards, with one copy in memory of each text that several shards share. Raises SourceError as soon as
    there are too many texts for classes."""
    texts: set[str] = set()
    samples = 0
    for result in results:
        texts.update(map(sys.intern, result.kind.texts))
        samples += result.labels.total()
        if len(texts) > MAX_CLASSES:
            raise too_many_texts(texts, samples, where=url)
        kind = replace(result.kind, texts=tuple(map(sys.intern, result.kind.texts)))
        yield replace(result, kind=kind)


def _reported(progress: Progress, job: ReadJob, result: ReadShard) -> ReadShard:
    progress.shard_done(result.samples, job.found.shards[result.index].num_bytes)
    return result


@lru_cache(maxsize=1)
def _stored_job(folder: Path) -> ReadJob:
    job: ReadJob = pickle.loads((folder / _JOB).read_bytes())  # written by the parent, into a private folder
    return job


def _read_stored(folder: Path, index: int) -> ReadShard:
    return _read(_stored_job(folder), folder, index)


def _read(job: ReadJob, folder: Path, index: int) -> ReadShard:
    """Write the rows of one shard to the folder; idempotent."""
    shard = job.found.shards[index]
    events: list[Event] = []
    rows: list[IndexRow] = []
    features: Counter[FeatureShape] = Counter()
    fields: Counter[str] = Counter()
    labels = LabelReader(job.labels, None if job.found.classes is None else len(job.found.classes))
    with _open_rows(job, shard, labels, fields, features) as found:
        for row in found:
            if isinstance(row, Event):
                events.append(row)
            else:
                rows.append(row)
    if events and job.found.format == "webdataset":
        events = told_apart(events, {row.key for row in rows})
    if shard.samples not in (None, len(rows) + len(events)):
        raise SourceError(
            f"{job.data_url}/{shard.name}: {len(rows) + len(events):,} records, but its description says "
            f"{shard.samples:,}: it is truncated, or from another version; download it again"
        )
    rows_file = folder / f"{index:07d}.parquet"
    pq.write_table(index_table(rows, shard.number, with_files=bool(job.found.images)), rows_file)
    counts, problem = _counts(job, shard)
    return ReadShard(
        index=index,
        rows_file=rows_file,
        samples=len(rows),
        image_bytes=sum(row.image_bytes for row in rows),
        key_hashes=np.fromiter((key_hash(row.key) for row in rows), np.uint64, len(rows)),
        labels=Counter(row.label for row in rows if row.label >= 0),
        kind=labels.labels(),
        fields=listed_fields(fields),
        events=events,
        features=features,
        counts=counts,
        problem=problem,
    )


def _counts(job: ReadJob, shard: FoundShard) -> tuple[RowCounts | None, str]:
    """Count a shard's rows by status, or return why they cannot be counted."""
    if not job.found.is_img2dataset:
        return None, ""
    try:
        return count_rows(open_linked(job.data_url), shard.name), ""
    except DataprepError as error:
        return None, str(error)


@contextmanager
def _open_rows(
    job: ReadJob, shard: FoundShard, labels: LabelReader, fields: Counter[str], features: Counter[FeatureShape]
) -> Iterator[Iterator[IndexRow | Event]]:
    data, found = open_linked(job.data_url), job.found
    if found.images:
        images = found.images[shard.split]
        yield folder_rows(data, images, shard.number, labels=bool(found.classes), digest=job.digest)
        return
    with ArchiveReader(data, shard.name) as reader:
        if found.format == "webdataset":
            yield tar_rows(reader, labels=labels, fields=fields, digest=job.digest)
        else:
            yield tfrecord_rows(
                reader,
                shard=shard.name,
                labels=labels,
                fields=fields,
                digest=job.digest,
                seen=features if found.is_img2dataset else None,
            )


@dataclass(frozen=True, slots=True)
class _Before:
    """Earlier statuses and reasons of rows that were tried again."""

    statuses: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Stats:
    """The part of a shard's stats that is read."""

    before: _Before = field(default_factory=_Before)
