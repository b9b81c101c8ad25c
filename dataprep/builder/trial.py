"""Does a worker's work on a few originals, and leaves nothing behind, to find out how long a build takes."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from dataprep.builder.duration import Tried
from dataprep.builder.plan import Plan
from dataprep.builder.read_ahead import READS_FACTOR
from dataprep.builder.shard import checked_samples, write_samples
from dataprep.builder.writeback import SYNC_BYTES
from dataprep.dataset.index import IndexRows
from dataprep.dataset.randomness import spread
from dataprep.dataset.records import Sample, SampleRef
from dataprep.dataset.spill import SpilledReferences
from dataprep.errors import DataprepError, SourceError
from dataprep.formats import FORMATS
from dataprep.messages import human_bytes
from dataprep.sources.unpacked import unpacked_sources
from dataprep.storage import Storage
from dataprep.storage.base import NO_VERSION, Originals
from dataprep.storage.checksums import HashingWriter
from dataprep.storage.errors import disk_errors

MAX_IMAGES = 64
MAX_S = 2.0
"""Time after which no further image is begun."""
MAX_NETWORK_BYTES = 8_000_000
"""Bytes that are read over a network; 64 photographs of 110 kB have 7 MB."""


def sample_refs(splits: Sequence[SpilledReferences]) -> list[SampleRef]:
    """Return up to MAX_IMAGES references that are spread over all splits; every beginning of the list is, too."""
    total = sum(map(len, splits))
    found = [ref for refs in splits for ref in refs.sample(-(-MAX_IMAGES * len(refs) // max(1, total)))]
    return [found[position] for position in spread(len(found), MAX_IMAGES)]


def scratch_folder(plan: Plan, output: Storage) -> Path | None:
    """Return the folder on the output's disk in which a trial writes; None if it does not write.

    It does not write to a bucket, which would be charged, nor files of one image each, which need names.
    """
    if not output.is_local or FORMATS[plan.options.format].one_file_per_image:
        return None
    folder = Path(output.url)
    return next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())


def try_images(plan: Plan, source: Originals, refs: Sequence[SampleRef], scratch: Path | None = None) -> Tried:
    """Read, check, encode, digest and write some images as a worker does, and measure that.

    The first images are not counted, because modules are imported and connections opened for them.

    Args:
        plan: Plan of the build.
        source: The originals.
        refs: The images, of which only as many are tried as the limits on time and bytes allow.
        scratch: Folder on the disk that is written to, into a file without a name; None: nothing is written.

    Raises:
        DataprepError: No image can be read; says why.
    """
    if any(unpacked_sources(split.sources) for split in plan.splits):
        raise SourceError("the build first unpacks its images from parquet files")
    trial = _Trial(plan, _TimedReads(source))
    if source.reads_in_flight == 1:
        chunks = [refs[:1], *([ref] for ref in refs)]
    else:
        refs = _of_bytes(refs, MAX_NETWORK_BYTES)
        half = len(refs) // 2
        chunks = [refs[: max(1, half)], refs[half : half + 1], refs[half + 1 :]]
    rows = IndexRows(0, with_annotations=bool(plan.features))
    with disk_errors(scratch or "."), _scratch_file(scratch) as file:
        stream = HashingWriter(file)
        write_samples(plan, cast(BinaryIO, stream), trial.samples(chunks), rows)
        if not trial.measured:
            raise trial.fault or SourceError("there is no image")
        found = tried_of(trial.measured, source.reads_in_flight)
        if file is None:
            return found
        written = max(1, len(rows))  # all may have been rejected
        return replace(found, sync_s=_sync_s(file, stream.num_bytes) * found.images / written)


@dataclass(frozen=True, slots=True)
class Measured:
    """What some images took that a worker reads at the same time."""

    images: int
    num_bytes: int
    cpu_s: float
    waits_s: tuple[float, ...]
    """Time of each read, without its CPU time."""


def tried_of(measured: Sequence[Measured], reads_in_flight: int) -> Tried:
    """Sum up what was measured.

    Args:
        measured: On a disk each image. Over a network one image alone, then others at the same time: what these take
            longer than the one is taken for the time of the transfer, because it is only latency that reads at the same
            time do not prolong.
        reads_in_flight: Number of reads that the storage asks for; 1 on a disk.
    """
    images = sum(each.images for each in measured)
    waits_s = [wait_s for each in measured for wait_s in each.waits_s]
    wait_s, transfer_s = sum(waits_s), 0.0
    if reads_in_flight > 1 and waits_s:
        together = measured[-1].waits_s or waits_s
        usual_s = statistics.median(together)
        wait_s = images * usual_s / (READS_FACTOR * reads_in_flight)
        transfer_s = images * max(0.0, usual_s - waits_s[0]) / len(together)
    return Tried(
        images=images,
        num_bytes=sum(each.num_bytes for each in measured),
        cpu_s=sum(each.cpu_s for each in measured),
        wait_s=wait_s,
        transfer_s=transfer_s,
        reads_ahead=reads_in_flight > 1,
    )


class _Trial:
    """The images that are tried, as samples, and what they took."""

    def __init__(self, plan: Plan, reads: _TimedReads) -> None:
        self._plan, self._reads = plan, reads
        self.measured: list[Measured] = []
        self.fault: DataprepError | None = None
        """The first error."""

    def samples(self, chunks: Iterable[Sequence[SampleRef]]) -> Iterator[Sample]:
        """Yield the good images of some chunks, each of which is read as one shard is, and measure all but the first.

        When the next chunk is begun, the caller has written the samples of the one before.
        """
        started_s, is_first = time.monotonic(), True
        for refs in chunks:
            if not refs or (self.measured and time.monotonic() - started_s > MAX_S):
                continue
            self._reads.waits_s.clear()
            before_s = time.process_time()
            try:
                yield from checked_samples(self._plan, refs, self._reads, [])
            except DataprepError as error:
                self.fault = self.fault or error
            else:
                cpu_s, num_bytes = time.process_time() - before_s, sum(ref.num_bytes for ref in refs)
                if not is_first:
                    self.measured.append(Measured(len(refs), num_bytes, cpu_s, tuple(self._reads.waits_s)))
            is_first = False


@contextmanager
def _scratch_file(folder: Path | None) -> Iterator[BinaryIO | None]:
    """Open a file without a name, which is gone when it is closed; None where the folder is None or takes no file."""
    with ExitStack() as stack:
        file = None
        if folder is not None:
            with suppress(OSError):
                file = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile(dir=folder)))
        yield file


def _sync_s(file: BinaryIO, num_bytes: int) -> float:
    """Return the time in which the disk takes what was written, of so many bytes, asked once for every SYNC_BYTES."""
    all_s = _synced_s(file)
    file.write(b"\0")
    latency_s = _synced_s(file)
    return latency_s * num_bytes / SYNC_BYTES + max(0.0, all_s - latency_s)


def _synced_s(file: BinaryIO) -> float:
    """Wait until the disk has what was written; return how long that took."""
    file.flush()
    started_s = time.monotonic()
    os.fsync(file.fileno())
    return time.monotonic() - started_s


class _TimedReads:
    """Originals that note how long each read waits."""

    def __init__(self, source: Originals) -> None:
        self._source = source
        self.reads_in_flight = source.reads_in_flight
        self.waits_s: list[float] = []

    def url_of(self, name: str) -> str:
        """Return the full URL or path of an original file."""
        return self._source.url_of(name)

    def read_range(self, name: str, offset: int, num_bytes: int, version: int = NO_VERSION) -> bytes:
        """Return a range of an original file."""
        started_s, cpu_s = time.monotonic(), time.thread_time()
        data = self._source.read_range(name, offset, num_bytes, version)
        self.waits_s.append(max(0.0, time.monotonic() - started_s - (time.thread_time() - cpu_s)))
        return data


def _of_bytes(refs: Sequence[SampleRef], most: int) -> list[SampleRef]:
    """Return the first references whose images have at most so many bytes together."""
    found: list[SampleRef] = []
    for ref in refs:
        most -= ref.num_bytes
        if most < 0:
            break
        found.append(ref)
    if refs and not found:
        raise SourceError(f"an image has {human_bytes(refs[0].num_bytes)}, too much to be read for an estimate")
    return found
