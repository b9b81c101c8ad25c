"""Fetching alone: how fast a loader's bytes come when nothing decodes them."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from dataprep.host.cpu import cpu_time, memory_bytes
from loaders.config import LoaderConfig
from loaders.dataset import Dataset
from loaders.diagnosis.ahead import rate_of_processes
from loaders.diagnosis.findings import StageRate
from loaders.diagnosis.observed_run import batches_per_burst, images_in_flight, reads_in_flight
from loaders.engine.batch_plan import BatchPlan
from loaders.engine.pipeline import LOOKUPS_IN_FLIGHT, fetch_settings
from loaders.fetch.fetcher import Fetcher, Record, Ticket
from loaders.fetch.index import SplitIndex, with_deadline
from loaders.fetch.open import open_fetcher
from loaders.loader import Loader
from loaders.order import Pick

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

MAX_LONGER = 10.0
"""Longest overrun of a slow measurement, as a multiple of its seconds."""
COLD_MEMORY_SHARE = 0.5
"""Share of the memory below which local data stay in the page cache after the first epoch, whose rate is then
measured."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rate of fetching alone, and some of the images that were fetched."""

    rate: StageRate
    bytes_per_image: float
    in_flight: float
    """Average number of images that were requested and had not arrived."""
    images: list[bytes]
    is_cold: bool
    """Whether the bytes came from the disk or bucket, and not from the page cache."""
    own_cores: float
    """Cores that the process used which fetched alone."""
    one_process_images_per_s: float
    """Rate of that process, which is higher in a run where several fetch and the interpreter lock limits each."""


def fetch_rate_alone(
    loader: Loader, config: LoaderConfig, seconds: float, busy_cores: float, *, keep: int = 0, share: float = 1.0
) -> Fetched:
    """Fetch what a loader would fetch, as far ahead as it would, and discard the bytes.

    One process fetches, with the requests of all processes of the run in flight.

    Args:
        loader: Loader of the dataset and the order; it need not run.
        config: How to fetch.
        seconds: Length of the measurement, after the first batches.
        busy_cores: Cores that other programs keep busy.
        keep: Number of images whose bytes are returned.
        share: Share of every read's bytes to read, as if the images were smaller.
    """
    storage, dataset = loader.dataset.storage, loader.dataset
    is_cold = not storage.is_local or dataset.split.num_bytes > COLD_MEMORY_SHARE * memory_bytes()
    if storage.is_local and is_cold:
        forget_files(dataset)
    if share < 1:
        config = replace(config, cache_dir=None)  # whose entries would be taken for whole images later
        storage = cast("Storage", _ShortReads(with_deadline(storage, config.deadline_s), share))
    burst = batches_per_burst(storage, config)
    index = dataset.open_index(config.deadline_s)  # one of its own, because reading the index is part of fetching
    alone = config
    if not storage.is_local and config.processes:
        alone = replace(config, processes=0, reads_in_flight=reads_in_flight(storage, config))
    with open_fetcher(storage, index, fetch_settings(alone, whole_records=bool(config.fields))) as fetcher:
        arrivals = _arrivals(fetcher, index, _batches(loader, config), config)
        images = _warm_up(arrivals, config, keep, seconds)
        taken = num_bytes = 0
        with cpu_time() as used:
            until_s = time.perf_counter() + seconds
            for number, batch in enumerate(arrivals, 1):
                images += batch[: keep - len(images)]
                taken += len(batch)
                num_bytes += sum(map(len, batch))
                late_s = time.perf_counter() - until_s
                if late_s > 0 and (number % burst == 0 or late_s > MAX_LONGER * seconds):
                    break
        arrivals.close()
    rate, own_cores = taken / used.elapsed_s, used.own_s / used.elapsed_s
    in_flight = images_in_flight(storage, config)
    of_all = rate if storage.is_local else rate_of_processes(rate, own_cores, config.processes)
    found = StageRate(name="fetch", images_per_s=of_all, cpu_s_per_image=used.cores_used(busy_cores) / rate)
    return Fetched(
        rate=found,
        bytes_per_image=num_bytes / max(1, taken),
        in_flight=in_flight,
        images=images,
        is_cold=is_cold,
        own_cores=own_cores,
        one_process_images_per_s=rate,
    )


def fetch_all_once(loader: Loader, config: LoaderConfig, limit_s: float = math.inf) -> int:
    """Fetch every image of a split, which fills the cache that the config names; return how many were fetched.

    Args:
        loader: Loader of the dataset and the order; it need not run.
        config: How to fetch.
        limit_s: Time after which no further batch is waited for. What was fetched by then stays in the cache.
    """
    storage, index = loader.dataset.storage, loader.index
    batches = _batches(loader, replace(config, rank=0, world_size=1))
    until_s, taken = time.monotonic() + limit_s, 0
    with open_fetcher(storage, index, fetch_settings(config, whole_records=bool(config.fields))) as fetcher:
        arrivals = _arrivals(fetcher, index, batches, config)
        while taken < loader.order.num_samples and time.monotonic() < until_s:
            taken += len(next(arrivals))
        arrivals.close()
    return min(taken, loader.order.num_samples)


class _ShortReads:
    """A storage of which only a share of every range is read; zeros stand for the rest."""

    def __init__(self, storage: Storage, share: float) -> None:
        self._storage, self._share, self.is_local = storage, share, storage.is_local
        self.reads_in_flight, self.url_of = storage.reads_in_flight, storage.url_of

    def read_range(self, name: str, offset: int, num_bytes: int, file_bytes: int | None = None) -> bytes:
        """Read a share of the range, and fill up the rest with zeros."""
        return self._storage.read_range(
            name, offset, max(1, int(num_bytes * self._share)), file_bytes=file_bytes
        ).ljust(num_bytes, b"\0")


def _warm_up(arrivals: Iterator[list[bytes]], config: LoaderConfig, keep: int, seconds: float) -> list[bytes]:
    """Take the first batches, until the usual number of requests is in flight; return some of their images."""
    images: list[bytes] = []
    until_s = time.perf_counter() + seconds
    for number, batch in enumerate(arrivals, 1):
        images += batch[: keep - len(images)]
        is_late = time.perf_counter() > until_s
        if number >= config.prefetch_batches and (len(images) >= keep or is_late):
            break
    return images


def _batches(loader: Loader, config: LoaderConfig) -> Iterable[list[tuple[int, Pick]]]:
    order = replace(loader.order, global_batch=config.batch_size)
    return BatchPlan(order=order, shuffle=True, rank=config.rank, world_size=config.world_size, first_batch=0)


def _arrivals(
    fetcher: Fetcher, index: SplitIndex, batches: Iterable[list[tuple[int, Pick]]], config: LoaderConfig
) -> Generator[list[bytes]]:
    """Yield the bytes of batch after batch, and request the next one when one was taken."""
    in_flight: deque[list[Future[bytes]]] = deque()
    workers = config.num_threads * max(1, config.processes)
    with (
        ThreadPoolExecutor(workers, thread_name_prefix="fetch-alone") as waiting,
        ThreadPoolExecutor(LOOKUPS_IN_FLIGHT, thread_name_prefix="fetch-alone-index") as lookups,
    ):
        try:
            for picks in batches:
                for _ in lookups.map(index.shard, fetcher.shards_needed(pick for _, pick in picks)):
                    pass  # read concurrently, as a loader reads them
                in_flight.append([waiting.submit(_bytes_of, fetcher.request(pick)) for _, pick in picks])
                if len(in_flight) == config.prefetch_batches:
                    yield [future.result() for future in in_flight.popleft()]
        finally:
            waiting.shutdown(wait=False, cancel_futures=True)
            fetcher.close()


def _bytes_of(ticket: Ticket) -> bytes:
    try:
        found = ticket.wait()
    finally:
        ticket.done()
    return found.image if isinstance(found, Record) else found


def forget_files(dataset: Dataset) -> None:
    """Drop the shards of a local dataset from the page cache, so that they are read from the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for shard in dataset.split.shards:
        try:
            file = os.open(dataset.storage.url_of(shard["file"]), os.O_RDONLY)
        except OSError:
            continue  # a shard of an image folder is not a file
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
