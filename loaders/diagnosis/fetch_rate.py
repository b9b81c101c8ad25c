"""Fetching alone: the rate of a loader's bytes when nothing decodes them; and the settings for runs over slow links or
with a cache.

Over a link that is too slow, a run fails: its reads wait for each other and miss their deadline. Such a run is measured
with fewer reads at once, which a narrow link carries as fast. If even a single read misses its deadline, it is measured
with a longer one (`gentler`).

A run with a cache on a local disk is measured as in its second epoch, when the cache holds the complete split
(`with_full_cache`). Otherwise the run would read from the bucket, its stages alone would then read the cache, and their
rates would belong to two different runs. Filling has a time limit; if it is reached, the run is measured as in its
first epoch.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from dataprep.errors import UnansweredError
from dataprep.host.cpu import cpu_time, memory_bytes
from dataprep.messages import counted, duration, human_bytes
from loaders.config import LoaderConfig
from loaders.dataset import Dataset
from loaders.diagnosis.findings import DIAGNOSE, Changes, StageRate
from loaders.diagnosis.observed_run import RunSetup, batches_per_burst, images_in_flight, reads_in_flight
from loaders.diagnosis.prediction import ROOM, rate_of_processes
from loaders.diagnosis.sample import places_in
from loaders.engine.batch import BatchPlan
from loaders.engine.pipeline import LOOKUPS_IN_FLIGHT, fetch_settings
from loaders.fetch.fetcher import Fetcher, Record, Ticket, open_fetcher
from loaders.fetch.index import SplitIndex, with_deadline
from loaders.loader import Loader
from loaders.order import Pick

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

MAX_LONGER = 10.0
"""Longest overrun of a slow measurement, as a multiple of its seconds."""
COLD_MEMORY_SHARE = 0.5
"""Local data below this share of the memory stay in the page cache, so epochs after the first are measured."""


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
    """Cores used by the process that fetched alone."""
    one_process_images_per_s: float
    """Rate of that process. Several processes together may be faster, because the interpreter lock limits each."""


def fetch_rate_alone(
    loader: Loader, config: LoaderConfig, seconds: float, busy_cores: float, *, keep: int = 0, share: float = 1.0
) -> Fetched:
    """Fetch the same bytes as a loader, as far ahead, and discard them.

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
        config = replace(config, cache_dir=None)  # its shortened entries would later be taken for complete images
        storage = cast("Storage", _ShortReads(with_deadline(storage, config.deadline_s), share))
    burst = batches_per_burst(storage, config)
    index = dataset.open_index(config.deadline_s)  # a separate one, because reading the index is part of fetching
    alone = config
    if not storage.is_local and config.processes:
        alone = replace(config, processes=0, reads_in_flight=reads_in_flight(storage, config))
    settings = fetch_settings(alone, whole_records=bool(dataset.stored_fields(config.fields)))
    with open_fetcher(storage, index, settings) as fetcher:
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
        limit_s: Time after which no further batch is waited for. Images fetched by then stay in the cache.
    """
    storage, index = loader.dataset.storage, loader.index
    batches = _batches(loader, replace(config, rank=0, world_size=1))
    until_s, taken = time.monotonic() + limit_s, 0
    settings = fetch_settings(config, whole_records=bool(loader.dataset.stored_fields(config.fields)))
    with open_fetcher(storage, index, settings) as fetcher:
        arrivals = _arrivals(fetcher, index, batches, config)
        while taken < loader.order.num_samples and time.monotonic() < until_s:
            taken += len(next(arrivals))
        arrivals.close()
    return min(taken, loader.order.num_samples)


class _ShortReads:
    """A storage that reads only a share of every range, and fills the rest with zeros."""

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
                for _ in lookups.map(index.load, fetcher.shards_needed(pick for _, pick in picks)):
                    pass  # read concurrently, as a loader reads them
                fetcher.look_up([pick for _, pick in picks])
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


LONGER = 4
"""Factor by which the deadline of a read is raised."""
MOST_DEADLINE_S = 20.0
"""Longest deadline that is tried: a slower server counts as gone."""
LEFT_BEHIND_S = 30.0
"""Longest wait for the reads of a closed loader: until they end, they take bandwidth from the next run."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run to measure: as it is set up, or over a slow link with fewer reads in flight or a longer deadline."""

    setup: RunSetup
    note: str = ""
    """Sentences that say what differs from the run as it is set up, and why; empty if nothing does."""
    is_narrow: bool = False
    """Whether fewer reads are in flight: more of them at once would get no answer in time."""
    batches: int = 1
    """Number of batches of this run that together have as many images as one batch of the original setup."""
    cache: str = ""
    """Sentence that says how a run with a cache was measured; empty for one without."""


def gentler(asked: RunSetup, tried: RunSetup) -> Attempt | None:
    """Return the run to measure after one whose reads got no answer in time; None if there is no gentler one.

    Args:
        asked: The run as it is set up.
        tried: The run that was measured last: `asked`, or a gentler one.

    Raises:
        DataprepError: A read fails for another reason.
    """
    wait_for_reads_left_behind()
    config, storage = tried.config, _answering(tried)
    if storage is not None:
        processes = max(1, config.processes)  # each has the same number of reads
        reads = images_in_flight(storage, config) // processes // 2 * processes
        config = replace(config, reads_in_flight=reads or None)
    else:
        config = replace(config, deadline_s=LONGER * config.deadline_s)
        storage = _answering(replace(tried, config=config)) if config.deadline_s <= MOST_DEADLINE_S else None
        reads = 0 if storage is None else images_in_flight(storage, config)
    if storage is None or not reads:
        return None
    asked_reads = images_in_flight(storage, asked.config)
    if reads < asked_reads and asked.options is DIAGNOSE:
        config = replace(config, batch_size=_enough_images(asked.config, reads))
    note = " ".join(_sentences(asked, config, asked_reads, reads))
    batches = asked.config.batch_size // config.batch_size
    return Attempt(replace(asked, config=config), note, is_narrow=reads < asked_reads, batches=batches)


def wait_for_reads_left_behind() -> None:
    """Wait until the reads of loaders that were closed have ended, or LEFT_BEHIND_S have passed."""
    until_s = time.monotonic() + LEFT_BEHIND_S
    for thread in threading.enumerate():
        if thread.name.startswith("loader-read"):
            thread.join(max(0.0, until_s - time.monotonic()))


def _answering(setup: RunSetup) -> Storage | None:
    """Return the storage of a run if the read of one image gets an answer in time while nothing else is read."""
    try:
        with setup.open() as loader:
            storage, mean_bytes = loader.dataset.storage, int(loader.index.mean_image_bytes())
            place = places_in(loader.dataset, loader.index)[0]
            num_bytes = min(max(1, mean_bytes), place.most_bytes)
            with_deadline(storage, setup.config.deadline_s).read_range(place.file, place.offset, num_bytes)
    except UnansweredError:
        return None
    return storage


def _enough_images(config: LoaderConfig, reads: int) -> int:
    """Return the smallest batch, halved repeatedly, with which the batches ahead still allow `reads`: with full batches
    the first step would take minutes over a slow link."""
    batch_size = config.batch_size
    while batch_size % 2 == 0 and config.prefetch_batches * batch_size // 2 >= ROOM * reads:
        batch_size //= 2
    return batch_size


def _sentences(asked: RunSetup, config: LoaderConfig, asked_reads: int, reads: int) -> Iterator[str]:
    if config.deadline_s > asked.config.deadline_s:
        yield (
            f"Even alone, a read gets no answer within {asked.config.deadline_s:g} s, which ends the run: it was "
            f"measured with a deadline of {config.deadline_s:g} s (deadline_s={config.deadline_s:g})."
        )
    if reads < asked_reads:
        settings = Changes(reads_in_flight=reads)
        typed = asked.typed(settings) if asked.can_set(settings) else f"reads_in_flight={reads}"
        smaller = config.batch_size < asked.config.batch_size
        batches = f", in batches of {counted(config.batch_size, 'image')}" if smaller else ""
        yield (
            f"With {asked_reads} reads in flight some get no answer within {config.deadline_s:g} s, which ends the "
            f"run: it was measured with {reads} ({typed}){batches}."
        )


FILL_S = 600.0
"""Longest time for filling a cache: enough for 60 GB at 100 MB/s."""


def with_full_cache(
    attempt: Attempt, loader: Loader, progress: Callable[[str], None], *, fill_s: float = FILL_S
) -> Attempt:
    """Fill the cache of a run that reads from a bucket, and return the run with a sentence about it.

    Without a cache, or with data on a disk, the run stays as it is. A cache that is too small for the split, or not
    full in time, is left out, because its content would depend on earlier reads.

    Raises:
        DataprepError: The data cannot be read.
    """
    config = attempt.setup.config
    if config.cache_dir is None or loader.dataset.is_local:
        return attempt
    split_bytes = loader.dataset.split.num_bytes
    if split_bytes > config.cache_bytes:
        held = f"it holds at most {human_bytes(config.cache_bytes)} of {human_bytes(split_bytes)}"
        return _without_cache(attempt, held)
    progress(f"filling the cache: {human_bytes(split_bytes)}, for at most {duration(fill_s)}")
    lacking = lacking_after(loader, config, fill_s)
    if lacking:
        return _without_cache(attempt, f"{lacking}. It keeps them; the next diagnosis continues from there")
    return replace(attempt, cache="Measured from a full cache, as from the second epoch on.")


def lacking_after(loader: Loader, config: LoaderConfig, fill_s: float) -> str:
    """Fill the cache that the config names; return a clause about its content, empty if it is full in time."""
    total = loader.order.num_samples
    fetched = fetch_all_once(loader, config, fill_s)
    if fetched == total:
        return ""
    wait_for_reads_left_behind()
    return f"in {duration(fill_s)} it got {fetched:,} of {counted(total, 'image')}"


def _without_cache(attempt: Attempt, why: str) -> Attempt:
    setup = attempt.setup
    return replace(
        attempt,
        setup=replace(setup, config=replace(setup.config, cache_dir=None)),
        cache=f"Measured without the cache, as in the first epoch: {why}.",
    )
