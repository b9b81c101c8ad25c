"""Producers, which make batches ahead of the one that is in use: threads of this process, or worker processes.

The memory of batches is reused when nothing refers to it (`Buffers`): fresh memory costs a page fault every 4 KiB, 7 %
of a step. An array's memory is free when the array and every slice, view and tensor made from it are gone. If a user
keeps a batch, a later one needs fresh memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from itertools import takewhile
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from dataprep.arrays import NDArray, np
from dataprep.errors import StorageError
from loaders.config import LoaderConfig, spans
from loaders.dataset import Dataset
from loaders.engine.batch import BatchPlan
from loaders.engine.pipeline import CLOSE_S, CLOSED, BatchWatch, Pipeline, Rows, empty_rows, finish
from loaders.engine.stats import Stats
from loaders.order import Pick

if TYPE_CHECKING:
    from loaders.fetch.index import SplitIndex


class Buffer(NamedTuple):
    """One piece of memory, in use as long as something refers to `data`."""

    number: int
    data: NDArray[np.uint8]


class Buffers:
    """Pieces of memory of one size.

    Args:
        num_bytes: Size of each piece.
        shared: Whether other processes map them, by the file descriptors that `descriptor` returns. The files have no
            names, so nothing remains of them however the processes end.
    """

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


_Begun: TypeAlias = tuple[Rows, list[Future[None]]]
"""Rows of a batch, and futures that are done when they are filled."""


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
    if config.processes:
        from loaders.engine.workers import ProcessProducer

        return ProcessProducer(dataset, index, config, plan, stats)
    return ThreadProducer(dataset, index, config, plan, stats)


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
        rows, futures = begun
        try:
            for future in futures:
                watch.settled(future)
        except CancelledError:
            raise StorageError(CLOSED) from None
        self._batch += 1
        self._ahead.popleft()
        self._room.release()
        self._stats.add("batch", items=1, get_wait_s=time.monotonic() - started_s)
        return finish(rows)

    def fetch_stats(self) -> dict[str, float]:
        """Return the fetcher's counters."""
        return self._pipeline.fetch_stats()

    def ready_batches(self) -> int:
        """Return the number of finished batches that wait to be taken."""
        finished = (all(future.done() for future in futures) for futures in list(self._ahead))
        return sum(takewhile(bool, finished))

    def close(self) -> None:
        """End the threads."""
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
                self._begun.put((rows, futures))
            self._begun.put(StopIteration())
        except BaseException as error:  # noqa: BLE001  raised where the next batch is taken
            self._begun.put(error)

    def _images(self) -> NDArray[np.uint8]:
        return self._buffers.take().data.reshape(image_shape(self._config))
