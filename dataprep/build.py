"""Build one shard: read its ranges, check the images, write, publish, and leave a receipt.

`build_shard` is idempotent and picklable: every engine runs it, any number of times, on any machine that reaches source
and output. The receipt is what makes a shard count as done; before it stands, another attempt writes the same bytes to
the same place. The local pool asks for its first part alone, `begin_shard`, so that a worker has the images of the next
shard read and checked while the last one is put in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from dataprep.checksums import HashingWriter, crc32c_of
from dataprep.columns import table_of
from dataprep.errors import SourceError
from dataprep.formats import FORMATS
from dataprep.formats.base import ShardFormat
from dataprep.formats.imagefolder import image_file
from dataprep.images import CheckedImage, check_image
from dataprep.plan import Plan
from dataprep.records import NO_LABEL, Event, Placement, Sample, SampleRef, ShardPlan, ShardReceipt
from dataprep.sources import DATASETS
from dataprep.storage import disk_errors, open_originals, open_storage
from dataprep.storage.base import Storage
from dataprep.workspace import FOLDER, index_schema, open_plan, read_receipt, read_shard_plan, write_receipt
from dataprep.writeback import WritebackFile

if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep.laion.build import ShardFetcher
    from dataprep.web.limits import Limits

T = TypeVar("T")

# Of images read ahead of the one being checked. With 64 requests of 110 kB in flight 7 MB are on their way; the rest
# evens out the sizes and keeps a worker far below its 400 MB.
READ_AHEAD_BYTES = 32 * 2**20
# Of checked images of the next shard, while the last one is put in place: three quarters of a second of decoding.
CHECKED_AHEAD_BYTES = 48 * 2**20
FOLDER_WRITES_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class BuildJob:
    """All that a worker on any machine needs besides a shard's index."""

    output_url: str
    source_url: str
    plan_hash: str
    limits: Limits | None = None
    """How one worker fetches, where the originals are a table of URLs."""


def build_shard(job: BuildJob, index: int) -> ShardReceipt:
    """Build one shard, or find its receipt.

    Raises:
        SourceError: An original ends early or is gone.
        ImageError: An image is bad and `--on-bad fail` was given.
        StorageError: The shard could not be put in place; nothing of it is visible then, or a rerun finishes it.
    """
    if job.limits is not None:
        from dataprep.laion.build import ShardFetcher

        return ShardFetcher(job).build(index)
    return _ShardBuilder(job).begin(index).result()


def begin_shard(job: BuildJob, index: int) -> Future[ShardReceipt]:
    """As `build_shard`, but returns when all images are read, checked and written, and only the end of the shard is
    under way. For one thread of a process: the next call reads ahead until the shard before stands, or has failed.

    Of a shard that is fetched, late rows may be under way, too.
    """
    if job.limits is not None:
        return _fetcher(job).begin(index)
    return _builder(job).begin(index)


@lru_cache(maxsize=1)
def _builder(job: BuildJob) -> _ShardBuilder:
    return _ShardBuilder(job)


@lru_cache(maxsize=1)
def _fetcher(job: BuildJob) -> ShardFetcher:
    """It keeps what it learns of hosts from shard to shard."""
    from dataprep.laion.build import ShardFetcher

    return ShardFetcher(job)


@dataclass(frozen=True, slots=True)
class _Written:
    file: str
    num_bytes: int
    sha256: str
    crc32c: str
    spool: Path | None
    """What is to be put in place as `file`; None where it stands there."""


class _ShardBuilder:
    """Builds shards one after the other. While the end of one is under way, the images of the next are read and
    checked, but nothing of it is written: a worker that is killed has one shard to redo."""

    def __init__(self, job: BuildJob) -> None:
        self._job = job
        self._storage = open_storage(job.output_url)
        self._source = open_originals(job.source_url)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="dataprep-shard")
        self._last: Future[Any] = _known(None)

    def begin(self, index: int) -> Future[ShardReceipt]:
        """See `begin_shard`."""
        found = self._threads.submit(read_receipt, self._storage, index)
        plan, _ = open_plan(self._job.output_url, self._job.plan_hash)
        shard = read_shard_plan(self._job.output_url, self._job.plan_hash, index)
        events: list[Event] = []
        checked = _samples(plan, shard, self._source, events)
        ahead = _until_done(checked, (self._last, found))
        done = found.result()
        if done is not None:
            return _known(done[0])
        rows = _IndexRows(shard.split_index)
        written = _write(self._storage, plan, shard, _drained(ahead, checked), rows)
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
        self._last = self._threads.submit(self._finish, written, receipt, rows)
        return self._last

    def _finish(self, written: _Written, receipt: ShardReceipt, rows: _IndexRows) -> ShardReceipt:
        if written.spool is not None:
            try:
                self._storage.publish(written.spool, written.file, written.crc32c)
            except BaseException:
                _discard(written.spool)
                raise
        write_receipt(self._storage, receipt, rows.table())
        return receipt


def _known(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _until_done(samples: Iterator[Sample], awaited: tuple[Future[Any], ...]) -> deque[Sample]:
    """Samples while something is awaited, CHECKED_AHEAD_BYTES of them at most; returns when nothing is any more."""
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


class _IndexRows:
    """The index rows of one shard, column by column."""

    def __init__(self, split_index: int) -> None:
        self._split_index = split_index
        self._rows: list[tuple[object, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, sample: Sample, place: Placement) -> None:
        self._rows.append(
            (
                sample.key,
                self._split_index,
                place.record_offset,
                place.record_bytes,
                place.image_offset,
                place.image_bytes,
                crc32c_of(sample.image),
                sample.label,
                sample.height or None,
                sample.width or None,
            )
        )

    def table(self) -> pa.Table:
        schema = index_schema()
        return table_of(zip(*self._rows, strict=True) if self._rows else [()] * len(schema), schema)


def _samples(plan: Plan, shard: ShardPlan, source: Storage, events: list[Event]) -> Iterator[Sample]:
    """The shard's good images in order; what was repaired or rejected is added to `events`."""
    for ref, data in read_refs(source, shard.refs):
        result = check_image(ref.key, data, plan.options.images)
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
    )


def read_refs(source: Storage, refs: tuple[SampleRef, ...]) -> Iterator[tuple[SampleRef, bytes]]:
    """The originals of some references, in their order, read ahead in bounded memory.

    Raises:
        SourceError: A range cannot be read whole.
    """
    if source.reads_in_flight == 1:
        for ref in refs:
            yield ref, _read(source, ref)
        return
    pool = _threads(source.reads_in_flight)
    ahead: deque[tuple[SampleRef, Future[bytes]]] = deque()
    ahead_bytes, waiting = 0, iter(refs)
    next_ref = next(waiting, None)
    try:
        while ahead or next_ref is not None:
            while next_ref is not None and (not ahead or ahead_bytes + next_ref.num_bytes <= READ_AHEAD_BYTES):
                ahead.append((next_ref, pool.submit(_read, source, next_ref)))
                ahead_bytes += next_ref.num_bytes
                next_ref = next(waiting, None)
            ref, future = ahead.popleft()
            yield ref, future.result()
            ahead_bytes -= ref.num_bytes
    finally:
        for _, future in ahead:
            future.cancel()


@lru_cache(maxsize=2)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="dataprep-io")


def _read(source: Storage, ref: SampleRef) -> bytes:
    try:
        return source.read_range(ref.source, ref.offset, ref.num_bytes)
    except FileNotFoundError as error:
        raise SourceError(
            f"{source.url_of(ref.source)} is gone; it held {ref.key} when the build was planned. "
            "Put it back and run the same command again"
        ) from error


def _write(storage: Storage, plan: Plan, shard: ShardPlan, samples: Iterator[Sample], rows: _IndexRows) -> _Written:
    shard_format = FORMATS[plan.options.format]
    if shard_format is None:
        return _write_folder(storage, plan, shard, samples, rows)
    return _write_file(storage, shard_format, plan, shard, samples, rows)


def _write_file(
    storage: Storage,
    shard_format: ShardFormat,
    plan: Plan,
    shard: ShardPlan,
    samples: Iterator[Sample],
    rows: _IndexRows,
) -> _Written:
    """One file holds the shard: it is spooled on disk, to be put in place at once."""
    name = shard_format.shard_file(plan.options.dataset, shard.split, shard.split_index, shard.split_shards)
    spool = storage.spool_path(name)
    try:
        with storage.sending(spool, name) as sent, disk_errors(spool), WritebackFile(spool, sent) as file:
            writer = shard_format.open_writer(cast(BinaryIO, file), has_classes=bool(plan.classes))
            for sample in samples:
                rows.add(sample, writer.write(sample))
            writer.close()
    except BaseException:
        _discard(spool)
        raise
    return _Written(name, file.num_bytes, file.sha256, file.crc32c, spool)


def _discard(spool: Path) -> None:
    spool.unlink(missing_ok=True)


def _write_folder(
    storage: Storage, plan: Plan, shard: ShardPlan, samples: Iterator[Sample], rows: _IndexRows
) -> _Written:
    """One object an image, many under way at once; digests run over their bytes in the shard's order."""
    dataset = DATASETS[plan.options.dataset]
    linked = plan.options.repeat == "physical" and dataset.repeats(shard.split) > 1
    split = "images" if linked else shard.split
    root = f"{FOLDER}/" if storage.is_local else ""
    digest = HashingWriter(None)
    pool = _threads(FOLDER_WRITES_IN_FLIGHT)
    pending: deque[Future[bool]] = deque()
    for sample in samples:
        name = image_file(split, sample.key, sample.class_name, dataset.image_suffix)
        pending.append(pool.submit(storage.create, root + name, sample.image))
        digest.write(sample.image)
        size = len(sample.image)
        rows.add(sample, Placement(0, size, 0, size))
        if len(pending) >= 2 * FOLDER_WRITES_IN_FLIGHT:
            pending.popleft().result()
    for future in pending:
        future.result()
    file = f"{shard.split}/#{shard.split_index:05d}-of-{shard.split_shards:05d}"
    return _Written(file, digest.num_bytes, digest.sha256, digest.crc32c, None)
