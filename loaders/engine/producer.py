"""Producers, which make batches ahead of the one that is in use: threads of this process, or worker processes."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from itertools import takewhile
from math import prod
from typing import TYPE_CHECKING, Protocol, TypeAlias

from dataprep.errors import StorageError
from loaders.config import LoaderConfig
from loaders.dataset import Dataset
from loaders.decode.views import spans
from loaders.engine.batch_plan import BatchPlan
from loaders.engine.buffers import Buffers
from loaders.engine.pipeline import CLOSE_S, CLOSED, Pipeline, Rows, empty_rows, finish
from loaders.engine.stats import Stats
from loaders.engine.watch import BatchWatch
from loaders.order import Pick

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loaders.fetch.index import SplitIndex


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
    """Start the producer that the settings ask for.

    Args:
        dataset: What is loaded.
        index: Index of the split, which the loader has opened.
        config: Settings of the loader.
        plan: The batches to make.
        stats: Receives the work of the stages.
    """
    if config.processes:
        from loaders.engine.workers import ProcessProducer

        return ProcessProducer(dataset, index, config, plan, stats)
    return ThreadProducer(dataset, index, config, plan, stats)


def image_shape(config: LoaderConfig) -> tuple[int, ...]:
    """Return the shape of a batch's images: NHWC; of packs rows, tokens and bytes of a patch; of views all bytes."""
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
        self._config, self._stats = config, stats
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
                rows = empty_rows(self._images(), self._config)
                futures = self._pipeline.submit(picks, rows)
                self._ahead.append(futures)
                self._begun.put((rows, futures))
            self._begun.put(StopIteration())
        except BaseException as error:  # noqa: BLE001  raised where the next batch is taken
            self._begun.put(error)

    def _images(self) -> NDArray[np.uint8]:
        return self._buffers.take().data.reshape(image_shape(self._config))
