"""Reads every shard's headers in parallel, and writes the rows to a local folder, so that memory stays bounded.

Memory grows by 8 bytes for each sample, and for an image folder by 240 bytes for each file of the listing.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dataprep.adopt.find import Found, FoundShard
from dataprep.adopt.folder import folder_rows
from dataprep.adopt.img2dataset import RowCounts, count_rows
from dataprep.adopt.rows import MAX_CLASSES, key_hash
from dataprep.adopt.tars import tar_rows
from dataprep.adopt.tfds import FeatureShape
from dataprep.adopt.tfrecords import tfrecord_rows
from dataprep.build.pool import Pool
from dataprep.dataset.index_rows import IndexRow, index_table
from dataprep.dataset.links import open_linked
from dataprep.dataset.records import Event
from dataprep.errors import DataprepError, SourceError
from dataprep.sources.archives import open_archive

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_WORKER_MODULES = ("dataprep.cli", "dataprep.adopt.shards", "pyarrow.parquet")
_JOB = "job.pickle"


class Progress(Protocol):
    """Receiver of progress reports, and the time that a worker may go without progress."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadJob:
    """What a worker needs besides a shard's position among all shards of all splits."""

    data_url: str
    found: Found
    labels: str | None
    digest: bool
    """Whether every image is read for its CRC32C."""


@dataclass(frozen=True, slots=True)
class ReadShard:
    """The content of one shard."""

    index: int
    """Position among all shards of all splits."""
    rows_file: Path
    samples: int
    image_bytes: int
    key_hashes: NDArray[np.uint64]
    """Hashes of the keys, ignoring case; shape (samples,)."""
    labels: Counter[int]
    """Number of samples by label; samples without a label are not counted."""
    events: list[Event]
    features: Counter[FeatureShape]
    """Number of records by shape of each feature, for TFRecords of img2dataset."""
    counts: RowCounts | None
    """Number of img2dataset's rows by status; None for other data, or if it cannot be read."""
    problem: str
    """Reason why `counts` cannot be read; empty otherwise."""

    def rows(self) -> pa.Table:
        """Read the shard's rows of the index."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(self.rows_file).read(use_threads=False)


def read_shards(job: ReadJob, folder: Path, progress: Progress, workers: int) -> list[ReadShard]:
    """Read all shards, and return them in the order of their splits and files.

    Args:
        job: What to read.
        folder: An empty, private folder that outlives the result.
        progress: Receives progress reports.
        workers: Number of worker processes; with 0 this process reads. It always reads image folders itself, because
            their files need not be opened.

    Raises:
        SourceError: The data are damaged; the text says where.
    """
    shards = job.found.shards
    progress.started(len(shards), sum(shard.num_bytes for shard in shards))
    if job.found.images or not workers:
        return [_reported(progress, job, _read(job, folder, index)) for index in range(len(shards))]
    (folder / _JOB).write_bytes(pickle.dumps(job))  # once, not with every task: it lists all shards
    workers = min(workers, len(shards))
    with Pool(workers, progress.warn, preload=_WORKER_MODULES, stall_s=progress.stall_s) as pool:
        results = pool.run(partial(_read_stored, folder), range(len(shards)))
        return sorted((_reported(progress, job, result) for result in results), key=lambda result: result.index)


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
    import numpy as np
    import pyarrow.parquet as pq

    shard = job.found.shards[index]
    events: list[Event] = []
    rows: list[IndexRow] = []
    features: Counter[FeatureShape] = Counter()
    with _open_rows(job, shard, features) as found:
        for row in found:
            if isinstance(row, Event):
                events.append(row)
            else:
                rows.append(row)
    if shard.samples not in (None, len(rows) + len(events)):
        raise SourceError(
            f"{job.data_url}/{shard.name}: {len(rows) + len(events):,} records, its description says "
            f"{shard.samples:,}: it is truncated, or of another version; fetch it again"
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
    job: ReadJob, shard: FoundShard, features: Counter[FeatureShape]
) -> Iterator[Iterator[IndexRow | Event]]:
    data, found = open_linked(job.data_url), job.found
    if found.images:
        images = found.images[shard.split]
        yield folder_rows(data, images, shard.number, labels=bool(found.classes), digest=job.digest)
        return
    num_classes = MAX_CLASSES if found.classes is None else len(found.classes)
    with open_archive(data, shard.name) as reader:
        if found.format == "webdataset":
            yield tar_rows(reader, labels=job.labels, num_classes=num_classes, digest=job.digest)
        else:
            yield tfrecord_rows(
                reader,
                shard=shard.name,
                labels=job.labels,
                num_classes=num_classes,
                digest=job.digest,
                seen=features if found.is_img2dataset else None,
            )
