"""Worker processes that write a batch's rows into memory which they share with the loader's process.

Each worker takes every P-th row of the rank's sequence, with a fetcher and decoding threads of its own, so the batches
are those of one process. Shared memory has no name: nothing is left of it however a process ends.

    loader -> worker    ("map", slot) and its descriptor | ("fill", slot)
    worker -> loader    _Part | an exception
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

from dataprep.errors import DataprepError, StorageError
from dataprep.pool import WORKER_ENVIRONMENT, environment, on_parents_death
from loaders.buffers import Buffer, Buffers
from loaders.config import LoaderConfig
from loaders.dataset import Dataset
from loaders.pipeline import Pipeline, Rows, empty_rows, finish
from loaders.plan import Planned
from loaders.producer import CLOSED, image_shape
from loaders.stats import Stats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

JOIN_S = 5.0
CLOSED_POLL_S = 1.0
"""Whoever waits for a worker looks so often whether another thread closed the loader."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a worker says of its rows of one batch; the images are in their place already."""

    rows: list[int]
    labels: list[int]
    mask: list[bool]
    keys: list[str]
    fields: dict[str, list[Any]]
    skipped: Counter[str]
    stages: dict[str, dict[str, float]]
    """Of this worker, since its last message."""
    fetch: dict[str, float]


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection[Any, Any]
    number: int
    parts: deque[_Part]
    """Of batches that other workers are not done with."""
    mapped: int = 0
    """Slots that it knows."""
    fetch: dict[str, float] | None = None


class ProcessProducer:
    """Hands out batches to worker processes, `prefetch_batches` ahead, and puts together what they say."""

    def __init__(self, dataset: Dataset, config: LoaderConfig, planned: Planned, stats: Stats) -> None:
        self._config, self._stats = config, stats
        num_rows, height, width, channels = image_shape(config)
        self._buffers = Buffers(num_rows * height * width * channels, shared=True)
        self._left = None if planned.shuffle else planned.num_batches - planned.first_batch
        self._under_way: deque[Buffer] = deque()
        self._workers: list[_Worker] = []
        self._closing = threading.Lock()
        context = multiprocessing.get_context("spawn")
        for number in range(config.processes):
            ours, theirs = context.Pipe()
            part = replace(planned, part=number, parts=config.processes)
            process = context.Process(target=_work, args=(theirs, dataset, config, part), daemon=True)
            with environment(WORKER_ENVIRONMENT):
                process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours, number, deque()))
        for _ in range(config.prefetch_batches):
            self._hand_out()

    def __next__(self) -> Rows:
        if not self._under_way:
            raise StopIteration
        started_s = time.monotonic()
        while waiting := [worker for worker in self._workers if not worker.parts]:
            try:
                self._receive(waiting)
            except (OSError, ValueError):
                if self._workers:
                    raise
                break  # another thread closed the pipes
        if not self._workers:
            raise StorageError(CLOSED)
        rows = empty_rows(self._under_way.popleft().data.reshape(image_shape(self._config)), self._config.fields)
        for worker in self._workers:
            _put(worker.parts.popleft(), rows)
        self._stats.add("batch", items=1, get_wait_s=time.monotonic() - started_s)
        self._hand_out()
        return finish(rows)

    def fetch_stats(self) -> dict[str, float]:
        """Of all workers."""
        total: Counter[str] = Counter()
        for worker in self._workers:
            total.update(worker.fetch or {})
        return dict(total)

    def close(self) -> None:
        """End the processes."""
        with self._closing:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.terminate()
            worker.pipe.close()
        for worker in workers:
            worker.process.join(JOIN_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
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
            for name, stage in answer.stages.items():
                self._stats.add(name, **stage)
            worker.fetch = answer.fetch
            worker.parts.append(answer)

    def _died(self, worker: _Worker) -> None:
        if not self._workers:
            raise StorageError(CLOSED)
        worker.process.join(JOIN_S)
        code = worker.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        raise StorageError(
            f"loader: worker process {worker.number} of {len(self._workers)} died ({how}); "
            "resume from the last state, with fewer processes or batches ahead where memory ran out"
        )


def _put(part: _Part, rows: Rows) -> None:
    for i, row in enumerate(part.rows):
        rows.labels[row], rows.mask[row], rows.keys[row] = part.labels[i], part.mask[i], part.keys[i]
        for name, values in part.fields.items():
            rows.fields[name][row] = values[i]
    rows.skipped.update(part.skipped)


def _work(pipe: Connection[Any, Any], dataset: Dataset, config: LoaderConfig, planned: Planned) -> None:
    """A worker's life: batches in the order of the plan, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the loader's process decides
    on_parents_death(lambda: os._exit(1))
    begun: queue.SimpleQueue[_Begun | BaseException] = queue.SimpleQueue()
    stats = Stats()
    try:
        pipeline = Pipeline(dataset.storage(), dataset.manifest.format, dataset.rows(config.deadline_s), config, stats)
        threading.Thread(target=_tell, args=(pipe, begun, stats, pipeline), daemon=True).start()
        batches = iter(planned)
        slots: list[NDArray[np.uint8]] = []
        while True:
            what, slot = pipe.recv()
            if what == "map":
                slots.append(_mapped(reduction.recv_handle(pipe), config))
                continue
            picks = next(batches)
            rows = empty_rows(slots[slot], config.fields)
            begun.put(_Begun([row for row, _ in picks], rows, pipeline.submit(picks, rows)))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  told to the loader's process
        pipe.send(_portable(error))
        os._exit(1)


@dataclass(frozen=True, slots=True)
class _Begun:
    numbers: list[int]
    rows: Rows
    futures: list[Future[None]]


def _tell(pipe: Connection[Any, Any], begun: queue.SimpleQueue[_Begun], stats: Stats, pipeline: Pipeline) -> None:
    """Say of each batch, in order, that this worker's rows are in place."""
    while True:
        batch = begun.get()
        try:
            for future in batch.futures:
                future.result()
        except BaseException as error:  # noqa: BLE001  told to the loader's process
            pipe.send(_portable(error))
            return
        rows = batch.rows
        pipe.send(
            _Part(
                rows=batch.numbers,
                labels=rows.labels[batch.numbers].tolist(),
                mask=rows.mask[batch.numbers].tolist(),
                keys=[rows.keys[row] for row in batch.numbers],
                fields={name: [values[row] for row in batch.numbers] for name, values in rows.fields.items()},
                skipped=rows.skipped,
                stages=stats.take(),
                fetch=pipeline.fetch_stats(),
            )
        )


def _mapped(descriptor: int, config: LoaderConfig) -> NDArray[np.uint8]:
    """A slot's memory as a batch's images."""
    import numpy as np

    shape = image_shape(config)
    memory = mmap.mmap(descriptor, shape[0] * shape[1] * shape[2] * shape[3])
    os.close(descriptor)
    return np.frombuffer(memory, np.uint8).reshape(shape)


def _portable(error: BaseException) -> BaseException:
    """The error as it can be sent: one of ours as it is, another by its name and text."""
    if isinstance(error, DataprepError):
        return error
    return StorageError(f"loader: {type(error).__name__} in a worker process: {error}")
