"""Builds shards from original images: reads their ranges, checks, writes, publishes, and stores a receipt.

A worker reads and checks the images of the next shard while the previous one is published; in a bucket it also writes
and publishes it. Without a receipt a shard is built again, with the same bytes under the same name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from dataprep.builder.claim import OvertakenError
from dataprep.builder.image_folder import ImageWriter, new_files_of
from dataprep.builder.images import CheckedImage, check_image
from dataprep.builder.job import BuildJob
from dataprep.builder.open_build import OpenBuild, open_build
from dataprep.builder.plan import Plan
from dataprep.builder.read_ahead import read_refs
from dataprep.builder.receipts import read_receipt, receipt_file, write_receipt
from dataprep.builder.references import shard_plan
from dataprep.builder.writeback import WritebackFile
from dataprep.dataset.adopted import LINKS
from dataprep.dataset.index import IndexRows
from dataprep.dataset.records import NO_LABEL, Event, Placement, Sample, SampleRef, ShardPlan, ShardReceipt
from dataprep.errors import StorageError
from dataprep.formats import FORMATS
from dataprep.host.heartbeat import beat
from dataprep.sources.unpacked import UnpackedImages, unpacked_sources
from dataprep.storage import disk_errors
from dataprep.storage.base import Originals
from dataprep.storage.checksums import HashingWriter, crc32c_of_file, crc32c_text
from dataprep.storage.errors import GO_ON

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

# Bytes of checked images of the next shards while one is published: 0.75 s of decoding. A kill loses at most these of
# the next shards, whether they are written or not.
CHECKED_AHEAD_BYTES = 48 * 2**20
# Shards of one worker that are published to a bucket at a time. To publish a small shard (the last chunk, two checks, a
# copy, a receipt) takes as long as to read and check the next one; a second one at a time hides that.
MAX_PUBLISHING = 2


@lru_cache(maxsize=1)
def shard_builder(job: BuildJob) -> ShardBuilder:
    """Return this process's builder of a job, which remembers the previous shard."""
    return ShardBuilder(job)


@dataclass(frozen=True, slots=True)
class _Written:
    """A shard whose samples are all written, and its digests."""

    file: str
    num_bytes: int
    sha256: str
    crc32c: str
    spool: Path | None
    """File to publish as `file`; None if nothing is left to publish."""


class ShardBuilder:
    """Builds shards one after the other.

    While one shard is being published, the first images of the next are read and checked. On a disk they are not
    written, so a killed worker leaves the files of one shard only. In a bucket, where publishing takes several round
    trips, they are written and sent, and a small shard is published beside the one before: no object of the dataset
    exists before its shard is published.
    """

    def __init__(self, job: BuildJob) -> None:
        self._build = open_build(job.output_url, job.root, job.pointer)
        self._source = _originals_of(self._build, job)
        one_file = not FORMATS[self._build.plan.options.format].one_file_per_image
        self._writes_ahead = one_file and not self._build.storage.is_local
        self._max_publishing = MAX_PUBLISHING if self._writes_ahead else 1
        self._threads = ThreadPoolExecutor(self._max_publishing + 1, thread_name_prefix="dataprep-shard")
        self._publishing: deque[tuple[Future[ShardReceipt], int]] = deque()
        """Shards that are being published, the oldest first, and their bytes."""

    def begin(self, index: int) -> Future[ShardReceipt]:
        """See `dataprep.builder.job.begin_shard`."""
        build = self._build
        found = self._threads.submit(read_receipt, build.storage, index, build.root)
        shard = shard_plan(build, index)
        events: list[Event] = []
        checked = checked_samples(build.plan, shard.refs, self._source, events)
        last = () if self._writes_ahead else tuple(future for future, _ in self._publishing)
        ahead = _until_done(checked, (*last, found))
        done = found.result()
        if done is not None:
            return _known(done[0])
        rows = IndexRows(shard.split_index, with_annotations=bool(build.plan.features))
        written = _write(build, shard, self._held_back(_drained(ahead, checked)), rows)
        self._publish_fewer_than(self._max_publishing)
        receipt = ShardReceipt(
            index=index,
            split=shard.split,
            split_index=shard.split_index,
            file=written.file,
            samples=len(rows),
            num_bytes=written.num_bytes,
            sha256=written.sha256,
            crc32c=written.crc32c,
            events=tuple(events),
        )
        future = self._threads.submit(self._finish, written, receipt, rows)
        self._publishing.append((future, written.num_bytes))
        return future

    def _held_back(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Yield samples while the shards after the oldest unpublished one have less than CHECKED_AHEAD_BYTES."""
        ahead_bytes = 0
        for sample in samples:
            while self._publishing and ahead_bytes + self._published_ahead_bytes() >= CHECKED_AHEAD_BYTES:
                self._publish_fewer_than(len(self._publishing))
            ahead_bytes += len(sample.image)
            yield sample

    def _published_ahead_bytes(self) -> int:
        """Return the bytes of the shards that are being published, besides the oldest."""
        return sum(num_bytes for _, num_bytes in islice(self._publishing, 1, None))

    def _publish_fewer_than(self, count: int) -> None:
        """Wait until fewer than so many shards are being published."""
        while True:
            self._publishing = deque((future, num_bytes) for future, num_bytes in self._publishing if not future.done())
            if len(self._publishing) < count:
                return
            wait([future for future, _ in self._publishing], return_when=FIRST_COMPLETED)

    def _finish(self, written: _Written, receipt: ShardReceipt, rows: IndexRows) -> ShardReceipt:
        build = self._build
        if written.spool is not None:
            try:
                build.storage.publish(written.spool, written.file, written.crc32c)
            except BaseException:
                _discard(written.spool)
                raise
        table = rows.table()
        before = partial(_refuse_changed, build, receipt, table) if build.storage.is_local else None
        write_receipt(build.storage, receipt, table, build.root, before)
        if not build.storage.is_local:
            self._withdraw_if_overtaken(receipt.index)
        return receipt

    def _withdraw_if_overtaken(self, index: int) -> None:
        """Remove the receipt if the build was overtaken, because the other build may have cleaned up before the receipt
        was written.
        """
        try:
            self._build.check()
        except OvertakenError:
            self._build.storage.delete(receipt_file(index, self._build.root))
            raise


def _originals_of(build: OpenBuild, job: BuildJob) -> Originals:
    sources = [source for split in build.plan.splits for source in unpacked_sources(split.sources)]
    return UnpackedImages(LINKS[job.links](job.source_url), build.storage, sources)


def _refuse_changed(build: OpenBuild, receipt: ShardReceipt, rows: pa.Table) -> None:
    """Read the files on a disk of a shard that gets its receipt now: what others change later is newer than that.

    Raises:
        StorageError: Some are gone or have other bytes; these are removed.
    """
    storage, changed = build.storage, []
    for name, num_bytes, crc32c in new_files_of(build, receipt, rows):
        path = Path(storage.url_of(name))
        with disk_errors(path):
            try:
                is_same = path.stat().st_size == num_bytes and crc32c_of_file(path) == crc32c_text(crc32c)
            except FileNotFoundError:
                is_same = False
        if not is_same:
            changed.append(name)
        beat()
    # With a receipt, another process has made this shard, and may have moved its images.
    if not changed or storage.stat(receipt_file(receipt.index, build.root)) is not None:
        return
    build.check()
    for name in changed:
        storage.delete(name)
    raise StorageError(f"{storage.url_of(changed[0])}: changed by others while it was new; {GO_ON}")


def _known(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _until_done(samples: Iterator[Sample], awaited: tuple[Future[Any], ...]) -> deque[Sample]:
    """Take samples, at most CHECKED_AHEAD_BYTES, until all futures are done."""
    ahead: deque[Sample] = deque()
    ahead_bytes = 0
    while ahead_bytes < CHECKED_AHEAD_BYTES and not all(future.done() for future in awaited):
        sample = next(samples, None)
        if sample is None:
            break
        ahead.append(sample)
        ahead_bytes += len(sample.image)
    wait(awaited)
    return ahead


def _drained(ahead: deque[Sample], samples: Iterator[Sample]) -> Iterator[Sample]:
    while ahead:
        yield ahead.popleft()
    yield from samples


def checked_samples(plan: Plan, refs: Sequence[SampleRef], source: Originals, events: list[Event]) -> Iterator[Sample]:
    """Read and check some images, and yield the good ones in order; note in `events` what was repaired or rejected."""
    for ref, data in read_refs(source, refs):
        result = check_image(ref.key, data, plan.options.images)
        beat()
        if isinstance(result, Event):
            events.append(result)
            continue
        if result.event is not None:
            events.append(result.event)
        yield _sample(ref, result, plan.classes)


def _sample(ref: SampleRef, checked: CheckedImage, classes: tuple[str, ...]) -> Sample:
    return Sample(
        key=ref.key,
        image=checked.image,
        label=ref.label,
        class_name="" if ref.label == NO_LABEL else classes[ref.label],
        height=checked.height,
        width=checked.width,
        orientation=checked.orientation,
        annotations=ref.annotations,
    )


def _write(build: OpenBuild, shard: ShardPlan, samples: Iterator[Sample], rows: IndexRows) -> _Written:
    """Write the samples in order, and add their index rows."""
    plan = build.plan
    shard_format = FORMATS[plan.options.format]
    name = shard_format.shard_file(plan.options.name, shard.split, shard.split_index, shard.split_shards)
    write = _write_images if shard_format.one_file_per_image else _write_file
    return write(build, shard, name, samples, rows)


def _write_file(build: OpenBuild, shard: ShardPlan, name: str, samples: Iterator[Sample], rows: IndexRows) -> _Written:
    """Write a shard that is one file to a spool file, to be published as a whole."""
    storage = build.storage
    spool = storage.spool_path(name)
    try:
        expected_bytes = sum(ref.num_bytes for ref in shard.refs)
        sending = storage.sending(spool, name, expected_bytes)
        with sending as sent, disk_errors(spool), WritebackFile(spool, sent) as file:
            write_samples(build.plan, cast(BinaryIO, file), samples, rows)
    except BaseException:
        _discard(spool)
        raise
    return _Written(name, file.num_bytes, file.sha256, file.crc32c, spool)


def _write_images(
    build: OpenBuild, shard: ShardPlan, name: str, samples: Iterator[Sample], rows: IndexRows
) -> _Written:
    """Write every image as its own object, and compute digests over the bytes of all of them, in order."""
    digest = HashingWriter(None)
    images = ImageWriter(build, shard)

    def put() -> Iterator[Sample]:
        for sample in samples:
            images.add(sample)
            yield sample

    write_samples(build.plan, cast(BinaryIO, digest), put(), rows)
    images.close()
    return _Written(name, digest.num_bytes, digest.sha256, digest.crc32c, None)


def write_samples(plan: Plan, stream: BinaryIO, samples: Iterator[Sample], rows: IndexRows) -> None:
    """Write samples in the format of a plan, and add their index rows."""
    shard_format = FORMATS[plan.options.format]
    writer = shard_format.open_writer(stream, has_classes=bool(plan.classes), features=plan.features)
    for sample in samples:
        place: Placement = writer.write(sample)
        rows.add(sample.key, sample.image, place, label=sample.label, height=sample.height, width=sample.width)
        rows.annotate(sample.annotations)
    writer.close()


def _discard(spool: Path) -> None:
    spool.unlink(missing_ok=True)
