"""Builds shards from original images: reads their ranges, checks, writes, publishes, and stores a receipt.

A worker reads and checks the images of the next shard while the previous one is published; in a bucket it also writes
and publishes it. Without a receipt a shard is built again, with the same bytes under the same name.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from dataprep.arrays import pa
from dataprep.builder.finished import image_files
from dataprep.builder.images import check_image
from dataprep.builder.output import OpenBuild, OvertakenError, open_build, removed_names
from dataprep.builder.plan import Plan, PlannedSplit
from dataprep.builder.receipts import read_receipt, receipt_file, write_receipt
from dataprep.builder.recipe import BuildJob
from dataprep.builder.references import references_of, shard_plan
from dataprep.dataset import records
from dataprep.dataset.adopted import LINKS
from dataprep.dataset.features import Features
from dataprep.dataset.index import IndexRows, open_index
from dataprep.dataset.paths import named
from dataprep.errors import ConflictError, SourceError, StorageError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import REPEATED, image_file, image_suffix, metadata_file, metadata_line, repeat_links
from dataprep.host.heartbeat import beat
from dataprep.sources.unpacked import UnpackedImages, unpacked_sources
from dataprep.storage import ObjectInfo, checksums, open_storage
from dataprep.storage.base import NO_VERSION, ChangedError, Originals, Storage
from dataprep.storage.errors import GO_ON, disk_errors
from dataprep.storage.local import LocalStorage

# Bytes of images read ahead of the image being checked. 128 requests of 110 kB in flight are 14 MB; the rest allows for
# larger images, and keeps a worker below its 400 MB.
READ_AHEAD_BYTES = 32 * 2**20
# Reads in flight, relative to the storage's `reads_in_flight`: 128 from Cloud Storage. With 64 and a latency of 50 ms a
# worker would get at most 1,280 images/s, and fewer with slower reads; a core decodes about as many.
READS_FACTOR = 2


def read_refs(source: Originals, refs: Sequence[records.SampleRef]) -> Iterator[tuple[records.SampleRef, bytes | None]]:
    """Yield the originals of references, in order, reading ahead in bounded memory; None for a missing original. Raises
    SourceError if a file is gone or has changed, or an image does not have the checksum of its reference."""
    if source.reads_in_flight == 1:
        for (name, version, is_missing), run in groupby(refs, _file_of):
            first, *others = run
            with (
                _gone_or_changed(source, first),
                nullcontext() if is_missing else source.reading(name, version) as read,
            ):
                for ref in (first, *others):
                    yield ref, _checked(source, ref, read(ref.offset, ref.num_bytes) if read else None)
        return
    pool = threads(READS_FACTOR * source.reads_in_flight)
    ahead: deque[tuple[records.SampleRef, Future[bytes | None]]] = deque()
    ahead_bytes, waiting = 0, iter(refs)
    next_ref = next(waiting, None)
    try:
        while ahead or next_ref is not None:
            while next_ref is not None and (not ahead or ahead_bytes + next_ref.num_bytes <= READ_AHEAD_BYTES):
                ahead.append((next_ref, pool.submit(_read, source, next_ref)))
                ahead_bytes += next_ref.num_bytes
                next_ref = next(waiting, None)
            ref, future = ahead.popleft()
            yield ref, _checked(source, ref, future.result())
            ahead_bytes -= ref.num_bytes
    finally:
        for _, future in ahead:
            future.cancel()


def _file_of(ref: records.SampleRef) -> tuple[str, int, bool]:
    return ref.source, ref.version, ref.offset == records.MISSING


@lru_cache(maxsize=2)
def threads(count: int) -> ThreadPoolExecutor:
    """Return this process's threads for reading or writing `count` objects at once."""
    return ThreadPoolExecutor(count, thread_name_prefix="dataprep-io")


def _read(source: Originals, ref: records.SampleRef) -> bytes | None:
    if ref.offset == records.MISSING:
        return None
    with _gone_or_changed(source, ref):
        return source.read_range(ref.source, ref.offset, ref.num_bytes, ref.version)


@contextmanager
def _gone_or_changed(source: Originals, ref: records.SampleRef) -> Iterator[None]:
    """Raise SourceError if an original is gone, or has another version than the listed one."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(
            f"{source.url_of(ref.source)} is gone; it held {named(ref.key)} when the build was planned. "
            "If it is on a volume that is not mounted, mount it and run the same command again; else start over with "
            "`overwrite`"
        ) from error
    except ChangedError as error:
        raise changed(error) from error


def changed(error: ChangedError) -> SourceError:
    """Return the error for an original whose version differs from the listed one."""
    return SourceError(
        f"{error.what}. A build reads only the files that it listed, and no copies of them: start over with "
        "`overwrite`, or, if they were copied elsewhere, give the folder that was listed"
    )


def refuse_changed_originals(source: Storage, references: pa.Table, unpacked: Container[str]) -> None:
    """Raise SourceError if originals of a shard, except unpacked ones, have other versions than the listed ones."""
    sources, versions = (references.column(name).to_pylist() for name in ("source", "version"))
    pairs = zip(sources, versions, strict=True)
    listed = {name: version for name, version in pairs if version != NO_VERSION and name not in unpacked}
    for (name, version), info in zip(listed.items(), source.stats(list(listed)), strict=True):
        if info is None or info.version != version:
            raise changed(ChangedError(source.url_of(name)))


def _checked(source: Originals, ref: records.SampleRef, data: bytes | None) -> bytes | None:
    """Return an image after comparing its checksum. Call in the order of the references, because a damaged file is
    removed and later reads of it fail. Raises SourceError if the image does not have the checksum of its reference."""
    if data is None or ref.crc32c is None:
        return data
    found = checksums.crc32c_of(data)
    if found == ref.crc32c:
        return data
    if isinstance(source, UnpackedImages):
        source.refuse_damaged(ref, found)
    where = f"{source.url_of(ref.source)}: the image {named(ref.key)} at byte {ref.offset:,}"
    raise SourceError(
        f"{where} has CRC32C {checksums.crc32c_hex(found)}, the index of its dataset has "
        f"{checksums.crc32c_hex(ref.crc32c)}: it is damaged or was changed; restore it, or see what else is wrong with "
        '"dataprep verify"'
    )


WRITES_IN_FLIGHT = 32
WRITES_BETWEEN_CHECKS = 64
"""Number of images written to a bucket between two checks of the build's claim; a check is one request."""


def image_names(plan: Plan, split: PlannedSplit, rows: pa.Table) -> Iterator[str]:
    """Yield the names of the images that references or rows of the index describe."""
    root = FORMATS[plan.options.format].image_root(split.name, split.repeat_stored)
    return image_files(rows, root, plan.classes, plan.options.dataset)


# While shards are built


class ImageWriter:
    """Writes the images of one shard as objects, many at a time."""

    def __init__(self, build: OpenBuild, shard: records.ShardPlan) -> None:
        self._build = build
        self._storage = build.storage if build.storage.is_local else open_storage(build.storage.url)
        self._aside = f"{_aside(build)}/" if build.storage.is_local else ""
        split, _ = build.plan.locate(shard.index)
        self._root = FORMATS[build.plan.options.format].image_root(split.name, split.repeat_stored)
        self._suffix = image_suffix(build.plan.options.dataset)
        self._pool = threads(WRITES_IN_FLIGHT)
        self._pending: deque[Future[None]] = deque()
        self._number = 0

    def add(self, sample: records.Sample) -> None:
        """Begin to write one image to a free name; waits while too many writes are in flight. Raises OvertakenError if
        another build owns the output now, and StorageError if an earlier image could not be written."""
        if self._number % WRITES_BETWEEN_CHECKS == 0 and not self._build.storage.is_local:
            self._build.check()
        self._number += 1
        name = image_file(self._root, sample.key, sample.class_name, self._suffix)
        self._pending.append(self._pool.submit(self._put, name, sample.image))
        if len(self._pending) >= 2 * WRITES_IN_FLIGHT:
            self._await_first()

    def close(self) -> None:
        while self._pending:
            self._await_first()

    def _await_first(self) -> None:
        self._pending.popleft().result()
        beat()

    def _put(self, name: str, data: bytes) -> None:
        try:
            self._storage.create(self._aside + name, data)
        except ConflictError:
            if self._storage.is_local or name not in _removed_before(self._build):
                raise
            existing = self._storage.stat(name)
            self._build.check()  # after the stat, because an image of a later build has another generation
            if existing is not None:
                self._storage.delete_exactly(existing)
            self._storage.create(name, data)


def _aside(build: OpenBuild) -> str:
    return f"{build.root}/folder"


@lru_cache(maxsize=1)
def _removed_before(build: OpenBuild) -> frozenset[str]:
    """Return the names that `overwrite` removed before this build began."""
    return removed_names(build.storage)


# When all shards are done


def place_images(build: OpenBuild) -> None:
    """Move an image folder's finished folders on disk into place, and create links; idempotent."""
    storage = build.storage
    if not FORMATS[build.plan.options.format].one_file_per_image or not isinstance(storage, LocalStorage):
        return
    aside = _aside(build)
    images = storage.root / aside / REPEATED
    folders = sorted(path.name for path in images.iterdir()) if images.is_dir() else []
    repeated = [split for split in build.plan.splits if split.repeat_stored > 1]
    links = [link for split in repeated for link in repeat_links(folders, split.repeat_count, split=split.name)]
    storage.place_folders(aside, links)


def files_of(build: OpenBuild, receipt: records.ShardReceipt, rows: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and CRC32C of the files of a finished shard: one, or one for each image."""
    if not FORMATS[build.plan.options.format].one_file_per_image:
        yield receipt.file, receipt.num_bytes, checksums.crc32c_number(receipt.crc32c)
        return
    split, _ = build.plan.locate(receipt.index)
    columns = (rows.column(name).to_pylist() for name in ("image_bytes", "image_crc32c"))
    yield from zip(image_names(build.plan, split, rows), *columns, strict=True)


# Bytes passed to the writing thread at once: ten images, so that passing them costs next to nothing.
BATCH_BYTES = 2**20
# Batches in flight before `write` waits: bounds the memory, and bridges a sync of 8 MiB.
MAX_BATCHES = 16
# Bytes between two syncs: a tenth of a second of decoding, so that little is left for the last sync.
SYNC_BYTES = 8 * 2**20


class WritebackFile:
    """Writes to an existing file; one thread digests and writes, another syncs.

    Without these threads a worker decodes, digests, waits for the disk, and decodes again; with shards of 32 MiB,
    digests and disk take a third of its time. The code that publishes the file syncs it again, which is then quick. The
    system reports a write error once to each open descriptor, but not to descriptors opened later. So every sync is
    checked here, and a storage syncs through the descriptor that created the file. The `digests` are complete after
    the `with` block.

    Args:
        written: Called with the number of bytes in the file each time it has grown.
    """

    def __init__(self, path: Path, written: Callable[[int], None]) -> None:
        self._written = written
        self._file = path.open("r+b")  # buffered: writes everything, even if the disk first accepts only a part
        self.digests = checksums.HashingWriter()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dataprep-write")
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="dataprep-sync")
        self._pieces: list[bytes] = []
        self._piece_bytes = self._unsynced_bytes = 0
        self._batches: deque[Future[None]] = deque()
        self._sync: Future[None] | None = None

    def __enter__(self) -> WritebackFile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._hand_over()
                while self._batches:
                    self._batches.popleft().result()
                if self._sync is not None:
                    self._sync.result()
        finally:
            self._writer.shutdown(cancel_futures=True)
            self._syncer.shutdown()
            self._file.close()

    def write(self, data: bytes) -> int:
        """Append bytes. Raises OSError if some earlier bytes did not reach the disk."""
        self._pieces.append(data)
        self._piece_bytes += len(data)
        if self._piece_bytes >= BATCH_BYTES:
            self._hand_over()
        return len(data)

    def _hand_over(self) -> None:
        pieces, self._pieces, self._piece_bytes = self._pieces, [], 0
        while self._batches and (self._batches[0].done() or len(self._batches) >= MAX_BATCHES):
            self._batches.popleft().result()
        self._batches.append(self._writer.submit(self._put, pieces))

    def _put(self, pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        self.digests.write(data)
        self._unsynced_bytes += len(data)
        self._file.write(data)
        self._file.flush()
        beat()
        self._written(self.digests.num_bytes)
        if self._unsynced_bytes >= SYNC_BYTES and (self._sync is None or self._sync.done()):
            if self._sync is not None:
                self._sync.result()
            self._sync = self._syncer.submit(_datasync, self._file.fileno())
            self._unsynced_bytes = 0


_datasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)

T = TypeVar("T")

# Bytes of checked images of the next shards while one is published: 0.75 s of decoding. A kill loses at most these
# images of the next shards, written or not.
CHECKED_AHEAD_BYTES = 48 * 2**20
# Shards of one worker that are published to a bucket at a time. Publishing a small shard (the last chunk, two checks, a
# copy, a receipt) takes as long as reading and checking the next one; a second one at a time hides that.
MAX_PUBLISHING = 2


class ShardBuilder:
    """Builds shards one after the other.

    While one shard is being published, the first images of the next are read and checked. On a disk they are not
    written, so a killed worker leaves the files of one shard only. In a bucket, where publishing takes several round
    trips, they are written and sent, and a small shard is published next to the one before: no object of the dataset
    exists before its shard is published.
    """

    def __init__(self, job: BuildJob) -> None:
        self._build = open_build(job.output_url, job.root, job.pointer)
        packed = [source for split in self._build.plan.splits for source in unpacked_sources(split.sources)]
        self._source: Originals = UnpackedImages(LINKS[job.links](job.source_url), self._build.storage, packed)
        one_file = not FORMATS[self._build.plan.options.format].one_file_per_image
        self._writes_ahead = one_file and not self._build.storage.is_local
        self._max_publishing = MAX_PUBLISHING if self._writes_ahead else 1
        self._threads = ThreadPoolExecutor(self._max_publishing + 1, thread_name_prefix="dataprep-shard")
        self._publishing: deque[tuple[Future[records.ShardReceipt], int]] = deque()
        """Shards that are being published, the oldest first, and their bytes."""

    def begin(self, index: int) -> Future[records.ShardReceipt]:
        """See `dataprep.builder.recipe.begin_shard`."""
        build = self._build
        found = self._threads.submit(read_receipt, build.storage, index, build.root)
        shard = shard_plan(build, index)
        events: list[records.Event] = []
        checked = checked_samples(build.plan, shard.refs, self._source, events)
        last = () if self._writes_ahead else tuple(future for future, _ in self._publishing)
        ahead = _until_done(checked, (*last, found))
        done = found.result()
        if done is not None:
            return _known(done[0])
        rows = IndexRows(shard.split_index, with_annotations=bool(build.plan.features))
        written, spool = _write(build, shard, self._held_back(_drained(ahead, checked)), rows)
        self._publish_fewer_than(self._max_publishing)
        receipt = records.ShardReceipt(
            index=index,
            split=shard.split,
            split_index=shard.split_index,
            file=shard.file,
            samples=len(rows),
            num_bytes=written.num_bytes,
            sha256=written.sha256,
            crc32c=written.crc32c,
            events=tuple(events),
        )
        future = self._threads.submit(self._finish, spool, receipt, rows)
        self._publishing.append((future, written.num_bytes))
        return future

    def _held_back(self, samples: Iterator[records.Sample]) -> Iterator[records.Sample]:
        """Yield samples while the shards after the oldest unpublished shard have less than CHECKED_AHEAD_BYTES."""
        ahead_bytes = 0
        for sample in samples:
            while self._publishing:
                later_bytes = sum(num_bytes for _, num_bytes in islice(self._publishing, 1, None))
                if ahead_bytes + later_bytes < CHECKED_AHEAD_BYTES:
                    break
                self._publish_fewer_than(len(self._publishing))
            ahead_bytes += len(sample.image)
            yield sample

    def _publish_fewer_than(self, count: int) -> None:
        """Wait until fewer than `count` shards are being published."""
        while True:
            self._publishing = deque((future, num_bytes) for future, num_bytes in self._publishing if not future.done())
            if len(self._publishing) < count:
                return
            wait([future for future, _ in self._publishing], return_when=FIRST_COMPLETED)

    def _finish(self, spool: Path | None, receipt: records.ShardReceipt, rows: IndexRows) -> records.ShardReceipt:
        """Publish a shard, unless its images are published already, and then its receipt."""
        build = self._build
        if spool is not None:
            try:
                build.storage.publish(spool, receipt.file, receipt.crc32c)
            except BaseException:
                spool.unlink(missing_ok=True)
                raise
        table = rows.table()
        before = partial(_refuse_changed, build, receipt, table) if build.storage.is_local else None
        write_receipt(build.storage, receipt, table, build.root, before)
        if not build.storage.is_local:
            try:
                build.check()
            except OvertakenError:  # the other build may have cleaned up before the receipt was written
                build.storage.delete(receipt_file(receipt.index, build.root))
                raise
        return receipt


shard_builder = lru_cache(maxsize=1)(ShardBuilder)
"""Function that returns this process's builder of a job, which remembers the previous shard."""


def _refuse_changed(build: OpenBuild, receipt: records.ShardReceipt, rows: pa.Table) -> None:
    """Compare the files, on disk, of a shard just before its receipt; later changes by others are newer than that.
    Raises StorageError if some are gone or have other bytes; these are removed."""
    storage, changed = build.storage, []
    aside = f"{_aside(build)}/" if FORMATS[build.plan.options.format].one_file_per_image else ""
    for file, num_bytes, crc32c in files_of(build, receipt, rows):
        name = f"{aside}{file}"
        path = Path(storage.url_of(name))
        with disk_errors(path):
            try:
                is_same = path.stat().st_size == num_bytes and checksums.crc32c_of_file(path) == checksums.crc32c_text(
                    crc32c
                )
            except FileNotFoundError:
                is_same = False
        if not is_same:
            changed.append(name)
        beat()
    # If there is a receipt, another process has made this shard and may have moved its images.
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


def _until_done(samples: Iterator[records.Sample], awaited: tuple[Future[Any], ...]) -> deque[records.Sample]:
    """Take samples, at most CHECKED_AHEAD_BYTES, until all futures are done."""
    ahead: deque[records.Sample] = deque()
    ahead_bytes = 0
    while ahead_bytes < CHECKED_AHEAD_BYTES and not all(future.done() for future in awaited):
        sample = next(samples, None)
        if sample is None:
            break
        ahead.append(sample)
        ahead_bytes += len(sample.image)
    wait(awaited)
    return ahead


def _drained(ahead: deque[records.Sample], samples: Iterator[records.Sample]) -> Iterator[records.Sample]:
    while ahead:
        yield ahead.popleft()
    yield from samples


def checked_samples(
    plan: Plan, refs: Sequence[records.SampleRef], source: Originals, events: list[records.Event]
) -> Iterator[records.Sample]:
    """Read and check images, and yield the good ones in order; repairs and rejections are appended to `events`."""
    for ref, data in read_refs(source, refs):
        result = check_image(ref.key, data, plan.options.images)
        beat()
        if isinstance(result, records.Event):
            events.append(result)
            continue
        if result.event is not None:
            events.append(result.event)
        yield records.Sample(
            key=ref.key,
            image=result.image,
            label=ref.label,
            class_name="" if ref.label == records.NO_LABEL else plan.classes[ref.label],
            height=result.height,
            width=result.width,
            orientation=result.orientation,
            annotations=ref.annotations,
        )


def _write(
    build: OpenBuild, shard: records.ShardPlan, samples: Iterator[records.Sample], rows: IndexRows
) -> tuple[checksums.HashingWriter, Path | None]:
    """Write the samples in order, and add their index rows. Return the digests of the shard, and the file that is left
    to publish, if any."""
    if FORMATS[build.plan.options.format].one_file_per_image:
        return _write_images(build, shard, samples, rows), None
    storage = build.storage
    spool = storage.spool_path(shard.file)
    try:
        expected_bytes = sum(ref.num_bytes for ref in shard.refs)
        sending = storage.sending(spool, shard.file, expected_bytes)
        with sending as sent, disk_errors(spool), WritebackFile(spool, sent) as file:
            write_samples(build.plan, cast(BinaryIO, file), samples, rows)
    except BaseException:
        spool.unlink(missing_ok=True)
        raise
    return file.digests, spool


def _write_images(
    build: OpenBuild, shard: records.ShardPlan, samples: Iterator[records.Sample], rows: IndexRows
) -> checksums.HashingWriter:
    """Write every image as its own object, and compute digests over the bytes of all images, in order."""
    digest = checksums.HashingWriter()
    images = ImageWriter(build, shard)

    def put() -> Iterator[records.Sample]:
        for sample in samples:
            images.add(sample)
            yield sample

    write_samples(build.plan, cast(BinaryIO, digest), put(), rows)
    images.close()
    return digest


def write_samples(plan: Plan, stream: BinaryIO, samples: Iterator[records.Sample], rows: IndexRows) -> None:
    """Write samples in the format of a plan, and add their index rows."""
    shard_format = FORMATS[plan.options.format]
    writer = shard_format.open_writer(stream, has_classes=bool(plan.classes), features=plan.features)
    for sample in samples:
        place: records.Placement = writer.write(sample)
        rows.add(sample.key, sample.image, place, label=sample.label, height=sample.height, width=sample.width)
        rows.annotate(sample.annotations)
    writer.close()


def annotation_files(format_name: str, features: Features, splits: Iterable[str]) -> list[str]:
    """Return the names of the annotation files; none if records hold the annotations, or samples have none."""
    if not features or not FORMATS[format_name].one_file_per_image:
        return []
    return sorted(metadata_file(split) for split in splits)


def publish_annotations(
    build: OpenBuild, splits: Sequence[records.SplitManifest], listed: Mapping[str, str] | None = None
) -> list[records.FileEntry]:
    """Write the annotations of an image folder from the plan and the index, and return the files' entries.

    Args:
        splits: The splits that have shards of the plan.
        listed: SHA-256 digests of existing files, by name, to which the lines are added; None for a new dataset.
    """
    plan, storage, entries = build.plan, build.storage, []
    if not annotation_files(plan.options.format, plan.features, plan.options.splits):
        return []
    for split, planned in zip(splits, plan.splits, strict=True):
        name, lines = metadata_file(split.name), _lines(build, split, planned)
        if listed is not None:
            entries.append(replace_lines(storage, name, listed[name], more=lines))
        else:
            spool, digests = _spooled(storage, name, lines)
            storage.publish(spool, name, digests.crc32c)
            entries.append(records.FileEntry(file=name, bytes=digests.num_bytes, sha256=digests.sha256))
    return entries


def replace_lines(
    storage: Storage, name: str, listed: str, *, without: Container[int] = (), more: Iterable[bytes] = ()
) -> records.FileEntry:
    """Replace lines of a file, unless an earlier run has done it, and return its entry. Raises ConflictError if another
    process has changed it.

    Args:
        listed: SHA-256 digest of the file before.
        without: Numbers of lines to leave out.
        more: Lines to add.
    """
    with storage.open(name) as stream:
        digests = existing = checksums.digests_of(stream)
    if existing.sha256 == listed:
        with storage.open(name) as stream:
            old = (line for number, line in enumerate(stream) if number not in without)
            spool, digests = _spooled(storage, name, chain(old, more))
        before = ObjectInfo(name, existing.num_bytes, existing.crc32c)
        if not storage.replace_file(spool, name, digests.crc32c, before):
            raise ConflictError(f"{storage.url_of(name)}: another process has changed it; {GO_ON}")
    return records.FileEntry(file=name, bytes=digests.num_bytes, sha256=digests.sha256)


def _spooled(storage: Storage, name: str, lines: Iterable[bytes]) -> tuple[Path, checksums.HashingWriter]:
    spool = storage.spool_path(name)
    with disk_errors(spool), spool.open("wb") as written:
        written.writelines(lines)
    with disk_errors(spool), spool.open("rb") as stream:
        return spool, checksums.digests_of(stream)


def _lines(build: OpenBuild, split: records.SplitManifest, planned_split: PlannedSplit) -> Iterator[bytes]:
    index = open_index(build.storage, split)
    for number, shard in enumerate(build.plan.shards_of(split.name)):
        planned = references_of(build, shard)
        annotations = dict(
            zip(planned.column("key").to_pylist(), planned.column("annotations").to_pylist(), strict=True)
        )
        rows = index.read_group(planned_split.first_shard + number, ["key", "label"])
        keys, labels = (rows.column(name).to_pylist() for name in ("key", "label"))
        for key, label, file in zip(keys, labels, image_names(build.plan, planned_split, rows), strict=True):
            class_name = records.class_name_of(label, build.plan.classes) or ""
            yield metadata_line(file.removeprefix(f"{split.name}/"), annotations[key].encode(), class_name)
