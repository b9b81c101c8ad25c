"""Producers, which make batches ahead of the one that is in use: threads of this process, or worker processes.

The memory of batches is reused when nothing refers to it (`Buffers`): fresh memory costs a page fault every 4 KiB, 7 %
of a step. An array's memory is free when the array and every slice, view and tensor made from it are gone. If a user
keeps a batch, a later one needs fresh memory.

Each worker takes every P-th row of the rank's sequence, with its own fetcher and decoding threads, so the batches are
the same as from one process. Shared memory has no name, so nothing remains of it however a process ends.

    loader -> worker    ("map", slot) and its descriptor | ("fill", slot)
    worker -> loader    _Part | an exception
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import queue
import signal
import tempfile
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import prod
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from dataprep.arrays import NDArray, np
from dataprep.dataset.paths import named
from dataprep.errors import DataprepError, StorageError
from dataprep.host.heartbeat import BeatCounter, Standstill
from dataprep.host.processes import WORKER_ENVIRONMENT, Threads, end_or_leave, environment, on_parents_death
from loaders.config import LoaderConfig, spans
from loaders.dataset import Dataset
from loaders.decode.crop import RowView
from loaders.decode.seeding import UNGUARDED, WORKER, check_main, not_portable, unguarded
from loaders.engine.batch import BatchPlan
from loaders.engine.pipeline import (
    CLOSE_S,
    CLOSED,
    BatchWatch,
    Pipeline,
    Rows,
    empty_rows,
    finish,
    require_progress,
    some,
)
from loaders.engine.stats import Moment, StageTimes, Stats
from loaders.order import Pick

if TYPE_CHECKING:
    from loaders.fetch.index import SplitIndex

T = TypeVar("T")

JOIN_S = 5.0
"""Longest wait for workers to end before they are killed."""
FROZEN_S = 5.0
"""Seconds beyond `stall_s` after which a silent worker counts as frozen; a live one reports hanging threads earlier."""
NAMING_S = 5.0
"""Longest time to look up the images that a frozen worker had to read: the index may be on the disk that hangs."""
CLOSED_POLL_S = 1.0
"""Interval at which to check whether another thread closed the loader, seconds."""


class Buffer(NamedTuple):
    """One piece of memory, in use as long as something refers to `data`."""

    number: int
    data: NDArray[np.uint8]


class Buffers:
    """Pieces of memory of one size. Shared ones are mapped by other processes, by the file descriptors that
    `descriptor` returns; the files have no names, so nothing remains of them however the processes end."""

    def __init__(self, num_bytes: int, *, shared: bool = False) -> None:
        self._num_bytes, self._shared = num_bytes, shared
        self._maps: list[mmap.mmap] = []
        self._descriptors: list[int] = []
        self._free: list[int] = []
        self._lock = threading.Lock()

    def take(self) -> Buffer:
        """Return a free piece of memory, or a new one."""
        with self._lock:
            number = self._free.pop() if self._free else self._add()
        # Views of NumPy arrays refer to the object that exports the memory: it ends when the last of them does.
        exporter = (ctypes.c_uint8 * self._num_bytes).from_buffer(self._maps[number])
        # The finaliser may run in any thread at any time, so it appends to the list without the lock.
        weakref.finalize(exporter, self._free.append, number)
        return Buffer(number, np.frombuffer(memoryview(exporter), np.uint8))

    def descriptor(self, number: int) -> int:
        """Return the file descriptor of a piece of shared memory."""
        return self._descriptors[number]

    def __len__(self) -> int:
        return len(self._maps)

    def close(self) -> None:
        """Close the descriptors; memory in use stays until nothing refers to it."""
        with self._lock:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors = []

    def _add(self) -> int:
        if self._shared:
            descriptor = _unnamed_file(self._num_bytes)
            self._descriptors.append(descriptor)
            self._maps.append(mmap.mmap(descriptor, self._num_bytes))
        else:
            self._maps.append(_private_memory(self._num_bytes))
        return len(self._maps) - 1


def _private_memory(num_bytes: int) -> mmap.mmap:
    """Map private memory, in huge pages if Linux has them: its first use then takes a quarter of the time.

    By default `mmap.mmap` shares memory with forked processes, which takes even longer, without huge pages.
    """
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _unnamed_file(num_bytes: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dataprep-batch", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


class _Begun(NamedTuple):
    """Rows of a batch that are being filled."""

    rows: Rows
    futures: list[Future[None]]
    """Done when the rows are filled."""
    numbers: Sequence[int] = ()
    """Numbers of the rows that this worker process fills."""


class Producer(Protocol):
    """Makes the rows of one batch after another."""

    def __next__(self) -> Rows:
        """Return the filled rows of the next batch. Raises the error that prevented it."""

    def fetch_stats(self) -> dict[str, float]:
        """Return the counters of all fetchers, summed."""

    def ready_batches(self) -> int:
        """Return the number of finished batches that wait to be taken; any thread may call this."""

    def close(self) -> None:
        """End threads and processes; this never hangs."""


def open_producer(dataset: Dataset, index: SplitIndex, config: LoaderConfig, plan: BatchPlan, stats: Stats) -> Producer:
    """Start the producer that the settings ask for."""
    kind = ProcessProducer if config.processes else ThreadProducer
    return kind(dataset, index, config, plan, stats)


def image_shape(config: LoaderConfig) -> tuple[int, ...]:
    """Return the shape of a batch's images: NHWC; for packs rows, tokens and bytes of a patch; for views all bytes."""
    if config.packs is not None:
        return config.rows // config.packs.images, config.packs.tokens, config.packs.patch_bytes
    if config.view_groups:
        return (spans(config.view_groups, config.rows)[-1].stop,)
    return config.rows, config.image_size, config.image_size, 3


class ThreadProducer:
    """Plans in one thread and decodes in the pipeline's threads, `prefetch_batches` ahead."""

    def __init__(
        self, dataset: Dataset, index: SplitIndex, config: LoaderConfig, plan: BatchPlan, stats: Stats
    ) -> None:
        self._config, self._stats, self._columns = config, stats, dataset.columns
        self._pipeline = Pipeline(dataset, index, config, stats)
        self._buffers = Buffers(prod(image_shape(config)))
        self._room = threading.Semaphore(config.prefetch_batches)
        self._batch = plan.first_batch
        self._begun: queue.SimpleQueue[_Begun | BaseException] = queue.SimpleQueue()
        self._ahead: deque[list[Future[None]]] = deque()
        """Futures of each batch that is begun and not taken yet."""
        self._closing = False
        self._planner = threading.Thread(target=self._plan, args=(iter(plan),), name="loader-plan", daemon=True)
        self._planner.start()

    def __next__(self) -> Rows:
        started_s = time.monotonic()
        watch = BatchWatch(self._pipeline.activity, self._batch, self._config.stall_s)
        (begun,) = watch.wait(self._take_begun)
        if isinstance(begun, BaseException):
            raise begun
        try:
            for future in begun.futures:
                watch.settled(future)
        except CancelledError:
            raise StorageError(CLOSED) from None
        self._batch += 1
        self._ahead.popleft()
        self._room.release()
        self._stats.add("batch", items=1, get_wait_s=time.monotonic() - started_s)
        return finish(begun.rows)

    def fetch_stats(self) -> dict[str, float]:
        return self._pipeline.fetch_stats()

    def ready_batches(self) -> int:
        finished = (all(future.done() for future in futures) for futures in list(self._ahead))
        return sum(takewhile(bool, finished))

    def close(self) -> None:
        self._closing = True
        self._room.release()
        self._pipeline.close()
        self._planner.join(min(CLOSE_S, self._config.stall_s))
        self._begun.put(StorageError(CLOSED))  # wakes a thread that waits in __next__

    def _take_begun(self, seconds: float) -> tuple[_Begun | BaseException] | None:
        try:
            return (self._begun.get(timeout=seconds),)
        except queue.Empty:
            return None

    def _plan(self, plan: Iterator[list[tuple[int, Pick]]]) -> None:
        try:
            for picks in plan:
                waited_s = time.monotonic()
                self._room.acquire()
                self._stats.add("plan", put_wait_s=time.monotonic() - waited_s)
                if self._closing:
                    return
                rows = empty_rows(self._images(), self._config, self._columns)
                futures = self._pipeline.submit(picks, rows)
                self._ahead.append(futures)
                self._begun.put(_Begun(rows, futures))
            self._begun.put(StopIteration())
        except BaseException as error:  # noqa: BLE001  raised where the next batch is taken
            self._begun.put(error)

    def _images(self) -> NDArray[np.uint8]:
        return self._buffers.take().data.reshape(image_shape(self._config))


@dataclass(frozen=True, slots=True)
class _Part:
    """Report of a worker on its rows of one batch; the images themselves are in shared memory."""

    rows: list[int]
    labels: list[int]
    mask: list[bool]
    keys: list[str]
    fields: dict[str, list[Any] | NDArray[Any]]
    views: list[RowView | None] | None
    grids: list[list[int]] | None
    skipped: Counter[str]
    stages: dict[str, StageTimes]
    """Stages of this worker since its last report."""
    moments: list[Moment]
    fetch: dict[str, float]


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection[Any, Any]
    number: int
    parts: deque[_Part]
    """Reports on batches that other workers have not finished."""
    still: Standstill
    """Watch over the worker's own watching thread."""
    mapped: int = 0
    """Number of slots of shared memory that the worker has mapped."""
    fetch: dict[str, float] | None = None


class ProcessProducer:
    """Hands out batches to worker processes, `prefetch_batches` ahead, and joins their reports."""

    def __init__(
        self, dataset: Dataset, index: SplitIndex, config: LoaderConfig, plan: BatchPlan, stats: Stats
    ) -> None:
        self._dataset, self._index, self._config, self._plan, self._stats = dataset, index, config, plan, stats
        self._batch = plan.first_batch
        self._buffers = Buffers(prod(image_shape(config)), shared=True)
        self._left = plan.batches_left
        self._under_way: deque[Buffer] = deque()
        self._workers: list[_Worker] = []
        self._closing = threading.Lock()
        _check_transforms(config)
        try:
            for number in range(config.processes):
                self._workers.append(self._start(number))
        except BaseException:
            self.close()
            raise
        for _ in range(config.prefetch_batches):
            self._hand_out()

    def _start(self, number: int) -> _Worker:
        """Start a worker process."""
        config, context = self._config, multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        part = replace(self._plan, part=number, parts=config.processes)
        beats = context.RawValue(ctypes.c_uint64, 0)
        process = context.Process(
            target=_work, name=f"{WORKER}-{number}", args=(theirs, self._dataset, config, part, beats), daemon=True
        )
        with environment(WORKER_ENVIRONMENT):
            process.start()
        theirs.close()
        still = Standstill(lambda: beats.value, config.stall_s + FROZEN_S)
        return _Worker(process, ours, number, deque(), still)

    def __next__(self) -> Rows:
        if not self._under_way:
            raise StopIteration
        started_s = time.monotonic()
        for worker in self._workers:
            worker.still.reset()
        while waiting := [worker for worker in self._workers if not worker.parts]:
            try:
                self._receive(waiting)
            except (OSError, ValueError):
                if self._workers:
                    raise
                break  # another thread closed the pipes
        if not self._workers:
            raise StorageError(CLOSED)
        images = self._under_way.popleft().data.reshape(image_shape(self._config))
        rows = empty_rows(images, self._config, self._dataset.columns)
        self._batch += 1
        for worker in self._workers:
            _put(worker.parts.popleft(), rows)
        self._stats.add("batch", items=1, get_wait_s=time.monotonic() - started_s)
        self._hand_out()
        return finish(rows)

    def fetch_stats(self) -> dict[str, float]:
        total: Counter[str] = Counter()
        for worker in self._workers:
            total.update(worker.fetch or {})
        return dict(total)

    def ready_batches(self) -> int:
        """Return 1 if every worker has reported on the next batch, else 0; reports on later batches do not count."""
        workers = self._workers
        with suppress(OSError):  # another thread closed the pipes
            return int(bool(workers) and all(worker.parts or worker.pipe.poll() for worker in workers))
        return 0

    def close(self) -> None:
        with self._closing:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.terminate()
            worker.pipe.close()
        deadline_s = time.monotonic() + JOIN_S
        for worker in workers:
            worker.process.join(max(0.0, deadline_s - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()  # ends a suspended one, too
            end_or_leave(worker.process)
        self._under_way.clear()
        self._buffers.close()

    def _hand_out(self) -> None:
        if self._left == 0:
            return
        if self._left is not None:
            self._left -= 1
        buffer = self._buffers.take()
        self._under_way.append(buffer)
        for worker in self._workers:
            try:
                while worker.mapped <= buffer.number:
                    worker.pipe.send(("map", worker.mapped))
                    reduction.send_handle(worker.pipe, self._buffers.descriptor(worker.mapped), worker.process.pid)
                    worker.mapped += 1
                worker.pipe.send(("fill", buffer.number))
            except OSError:
                self._died(worker)

    def _receive(self, waiting: Sequence[_Worker]) -> None:
        by_pipe = {worker.pipe: worker for worker in waiting}
        for pipe in wait(list(by_pipe), CLOSED_POLL_S):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                self._died(worker)
            if isinstance(answer, BaseException):
                raise answer
            self._stats.merge(answer.stages)
            worker.fetch = answer.fetch
            worker.parts.append(answer)
        for worker in waiting:
            self._watch(worker)

    def _watch(self, worker: _Worker) -> None:
        """Raise an error if a worker's watch has stopped: it is suspended, or never releases the interpreter lock."""
        who = f"worker process {worker.number} of {len(self._workers)} (process {worker.process.pid})"
        require_progress(
            worker.still,
            self._config.stall_s,
            f"loader: batch {self._batch}: {who} gave no sign of life",
            lambda: f"it was to read {self._share(worker)}",
            "Is it suspended, or does its transform hang? Resume from the last state",
        )

    def _share(self, worker: _Worker) -> str:
        """Return shards and keys of a worker's part of the batch."""
        part = replace(self._plan, first_batch=self._batch, part=worker.number, parts=self._config.processes)
        picks = [pick for _, pick in next(iter(part), [])]
        index, dataset = self._index, self._dataset
        shards = dict.fromkeys(pick.piece.shard for pick in picks)
        found = some([dataset.url_of(shard, index.shard_file(shard)) for shard in shards])
        threads = Threads(1, "loader-naming")
        naming = threads.submit(lambda: some([named(index.shard(pick.piece.shard).key(pick.sample)) for pick in picks]))
        done, _ = wait_for([naming], NAMING_S)
        threads.close(time.monotonic())
        return f"{found}: {naming.result()}" if done and naming.exception() is None else found

    def _died(self, worker: _Worker) -> None:
        if not self._workers:
            raise StorageError(CLOSED)
        worker.process.join(JOIN_S)
        code = worker.process.exitcode
        if code == UNGUARDED:
            raise unguarded(self._config.processes) from None
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        raise StorageError(
            f"loader: worker process {worker.number} of {len(self._workers)} died ({how}); "
            "resume from the last state, with fewer processes or batches ahead if memory ran out"
        ) from None


def _check_transforms(config: LoaderConfig) -> None:
    """Raise UsageError for a transform that a worker process could not load."""
    for transform in {id(each): each for each in config.transforms}.values():
        try:
            data = bytes(reduction.ForkingPickler.dumps(transform))
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise not_portable(transform, error) from error
        except RuntimeError:
            continue  # some objects can be handed over only while a process starts, such as a multiprocessing.Value
        check_main(data, transform)


def _put(part: _Part, rows: Rows) -> None:
    for i, row in enumerate(part.rows):
        rows.labels[row], rows.mask[row], rows.keys[row] = part.labels[i], part.mask[i], part.keys[i]
        for name, values in part.fields.items():
            rows.fields[name][row] = values[i]
        if rows.views is not None and part.views is not None:
            rows.views[row] = part.views[i]
        if rows.grids is not None and part.grids is not None:
            rows.grids[row] = part.grids[i]
    rows.skipped.update(part.skipped)
    rows.moments.extend(part.moments)


def _work(
    pipe: Connection[Any, Any], dataset: Dataset, config: LoaderConfig, plan: BatchPlan, beats: BeatCounter
) -> None:
    """Run a worker: make batches in the order of the plan, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the loader's process decides
    on_parents_death(lambda: os._exit(1))
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    begun: queue.SimpleQueue[_Begun] = queue.SimpleQueue()
    stats = Stats()
    try:
        index = dataset.open_index(config.deadline_s)
        pipeline = Pipeline(dataset, index, config, stats)
        reporter = _Reporter(pipe, pipeline, stats, config.stall_s, beats)
        threading.Thread(target=reporter.run, args=(plan.first_batch, asked, begun), daemon=True).start()
        batches = iter(plan)
        slots: list[NDArray[np.uint8]] = []
        while True:
            what, slot = pipe.recv()
            if what == "map":
                slots.append(_mapped(reduction.recv_handle(pipe), config))
                continue
            asked.put(slot)
            picks = next(batches)
            rows = empty_rows(slots[slot], config, dataset.columns)
            begun.put(_Begun(rows, pipeline.submit(picks, rows), [row for row, _ in picks]))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  raised in the loader's process
        pipe.send(_portable(error))
        os._exit(1)


@dataclass(frozen=True, slots=True)
class _Reporter:
    """Reports for each batch of a worker that its rows are filled, or what hangs."""

    pipe: Connection[Any, Any]
    pipeline: Pipeline
    stats: Stats
    stall_s: float
    beats: BeatCounter
    """Counter that grows as long as this thread is alive."""

    def run(self, batch: int, asked: queue.SimpleQueue[int], begun: queue.SimpleQueue[_Begun]) -> None:
        """Report batch after batch from this one on: wait until a batch is requested, begun, and filled."""
        try:
            while True:
                while self._take(asked, CLOSED_POLL_S) is None:
                    pass
                watch = BatchWatch(self.pipeline.activity, batch, self.stall_s)
                done = watch.wait(partial(self._take, begun))
                for future in done.futures:
                    watch.settled(future, self._beat)
                self._report(done)
                batch += 1
        except BaseException as error:  # noqa: BLE001  raised in the loader's process
            with suppress(OSError):  # the loader was closed
                self.pipe.send(_portable(error))

    def _beat(self) -> None:
        self.beats.value += 1

    def _take(self, items: queue.SimpleQueue[T], seconds: float) -> T | None:
        self._beat()
        with suppress(queue.Empty):
            return items.get(timeout=seconds)
        return None

    def _report(self, batch: _Begun) -> None:
        rows, numbers = batch.rows, [*batch.numbers]
        self.pipe.send(
            _Part(
                rows=numbers,
                labels=rows.labels[numbers].tolist(),
                mask=rows.mask[numbers].tolist(),
                keys=[rows.keys[row] for row in numbers],
                fields={
                    name: values[numbers] if isinstance(values, np.ndarray) else [values[row] for row in numbers]
                    for name, values in rows.fields.items()
                },
                views=None if rows.views is None else [rows.views[row] for row in numbers],
                grids=None if rows.grids is None else rows.grids[numbers].tolist(),
                skipped=rows.skipped,
                stages=self.stats.take(),
                moments=rows.moments,
                fetch=self.pipeline.fetch_stats(),
            )
        )


def _mapped(descriptor: int, config: LoaderConfig) -> NDArray[np.uint8]:
    """Map the memory of a slot as a batch's images."""
    shape = image_shape(config)
    memory = mmap.mmap(descriptor, prod(shape))
    os.close(descriptor)
    return np.frombuffer(memory, np.uint8).reshape(shape)


def _portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled: a DataprepError unchanged, any other as its name, text and notes."""
    if isinstance(error, DataprepError):
        return error
    text = "; ".join([str(error), *getattr(error, "__notes__", ())])
    return StorageError(f"loader: {type(error).__name__} in a worker process: {text}")
