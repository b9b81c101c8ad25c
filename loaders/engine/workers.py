"""Worker processes that write a batch's rows into memory shared with the loader's process.

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
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any, TypeVar

from dataprep.arrays import NDArray, np
from dataprep.dataset.paths import named
from dataprep.errors import DataprepError, StorageError
from dataprep.host.heartbeat import BeatCounter, Standstill
from dataprep.host.processes import WORKER_ENVIRONMENT, Threads, end_or_leave, environment, on_parents_death
from loaders.config import LoaderConfig
from loaders.dataset import Dataset
from loaders.decode.crop import RowView
from loaders.decode.seeding import UNGUARDED, WORKER, check_main, not_portable, unguarded
from loaders.engine.batch import BatchPlan
from loaders.engine.pipeline import CLOSED, BatchWatch, Pipeline, Rows, empty_rows, finish, require_progress, some
from loaders.engine.producer import Buffer, Buffers, image_shape
from loaders.engine.stats import Moment, StageTimes, Stats

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
        """Return the counters of all workers, summed."""
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
        """End the processes."""
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
            begun.put(_Begun([row for row, _ in picks], rows, pipeline.submit(picks, rows)))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  raised in the loader's process
        pipe.send(_portable(error))
        os._exit(1)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A worker's rows of one batch: their numbers, where they go, and futures that are done when they are filled."""

    numbers: list[int]
    rows: Rows
    futures: list[Future[None]]


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
        rows = batch.rows
        self.pipe.send(
            _Part(
                rows=batch.numbers,
                labels=rows.labels[batch.numbers].tolist(),
                mask=rows.mask[batch.numbers].tolist(),
                keys=[rows.keys[row] for row in batch.numbers],
                fields={
                    name: values[batch.numbers]
                    if isinstance(values, np.ndarray)
                    else [values[row] for row in batch.numbers]
                    for name, values in rows.fields.items()
                },
                views=None if rows.views is None else [rows.views[row] for row in batch.numbers],
                grids=None if rows.grids is None else rows.grids[batch.numbers].tolist(),
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
