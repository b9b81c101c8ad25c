"""Who makes the batches ahead of the one that is asked for: threads of this process, or worker processes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Protocol

from dataprep.errors import StorageError
from loaders.buffers import Buffers
from loaders.config import LoaderConfig
from loaders.dataset import Dataset
from loaders.order import Pick
from loaders.pipeline import Pipeline, Rows, empty_rows, finish
from loaders.plan import Planned
from loaders.stats import Stats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


CLOSED = "loader: closed while a batch was awaited; open it again to go on"


class Producer(Protocol):
    """Makes the rows of one batch after the other."""

    def __next__(self) -> Rows:
        """The next batch's rows, whole. Raises what kept them from being made."""

    def fetch_stats(self) -> dict[str, float]:
        """Counters of the fetchers, summed."""

    def close(self) -> None:
        """End threads and processes; never hangs."""


def open_producer(dataset: Dataset, config: LoaderConfig, planned: Planned, stats: Stats) -> Producer:
    """The producer that the settings ask for, started."""
    if config.processes:
        from loaders.workers import ProcessProducer

        return ProcessProducer(dataset, config, planned, stats)
    return ThreadProducer(dataset, config, planned, stats)


def image_shape(config: LoaderConfig) -> tuple[int, int, int, int]:
    """Of a batch's images, NHWC."""
    return config.rows, config.image_size, config.image_size, 3


class ThreadProducer:
    """Plans in one thread, decodes in the pipeline's, `prefetch_batches` ahead."""

    def __init__(self, dataset: Dataset, config: LoaderConfig, planned: Planned, stats: Stats) -> None:
        self._config, self._stats = config, stats
        storage = dataset.storage()
        self._pipeline = Pipeline(storage, dataset.manifest.format, dataset.rows(config.deadline_s), config, stats)
        num_rows, height, width, channels = image_shape(config)
        self._buffers = Buffers(num_rows * height * width * channels)
        self._room = threading.Semaphore(config.prefetch_batches)
        self._begun: queue.SimpleQueue[tuple[Rows, list[Future[None]]] | BaseException | None] = queue.SimpleQueue()
        self._closing = False
        self._planner = threading.Thread(target=self._plan, args=(iter(planned),), name="loader-plan", daemon=True)
        self._planner.start()

    def __next__(self) -> Rows:
        started_s = time.monotonic()
        begun = self._begun.get()
        if begun is None:
            raise StopIteration
        if isinstance(begun, BaseException):
            raise begun
        rows, futures = begun
        try:
            for future in futures:
                future.result()
        except CancelledError:
            raise StorageError(CLOSED) from None
        self._room.release()
        self._stats.add("batch", items=1, get_wait_s=time.monotonic() - started_s)
        return finish(rows)

    def fetch_stats(self) -> dict[str, float]:
        """The fetcher's counters."""
        return self._pipeline.fetch_stats()

    def close(self) -> None:
        """End the threads."""
        self._closing = True
        self._room.release()
        self._pipeline.close()
        self._planner.join()
        self._begun.put(StorageError(CLOSED))  # for a thread that waits in __next__

    def _plan(self, planned: Iterator[list[tuple[int, Pick]]]) -> None:
        try:
            for picks in planned:
                waited_s = time.monotonic()
                self._room.acquire()
                self._stats.add("plan", put_wait_s=time.monotonic() - waited_s)
                if self._closing:
                    return
                rows = empty_rows(self._images(), self._config.fields)
                self._begun.put((rows, self._pipeline.submit(picks, rows)))
            self._begun.put(None)
        except BaseException as error:  # noqa: BLE001  told to whoever takes the next batch
            self._begun.put(error)

    def _images(self) -> NDArray[np.uint8]:
        return self._buffers.take().data.reshape(image_shape(self._config))
