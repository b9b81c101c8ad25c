"""Every stage alone: fetch cold, prepare with the data at hand, the way to the device, the device fed from memory."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dataprep.adopt import AdoptRequest, adopt
from dataprep.cpu import available_cores, cpu_time, memory_bytes
from dataprep.errors import DataprepError, StorageError
from dataprep.images import CheckedImage, ImagePolicy, check_image
from loaders.config import LoaderConfig
from loaders.devices import Device
from loaders.fetch import Fetcher, Record, Ticket, open_fetcher
from loaders.findings import StageRate
from loaders.loader import Batch, Loader, open_loader
from loaders.order import Pick
from loaders.pipeline import LOOKUPS_IN_FLIGHT, fetch_settings
from loaders.plan import Planned
from loaders.rows import SplitRows, impatient
from loaders.trial import batches_a_burst, images_under_way, loader_settings

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

SAMPLE_IMAGES = 512
"""Kept of what was fetched, to prepare them from a local folder: their mean cost is within some percent of all."""
SAMPLE_QUALITY = 90
MIN_SHRUNK, MAX_SHRUNK = 64, 256
SHRINKING_S = 3.0
"""For a sample of smaller images, unless there are too few by then."""
WARM_UP_STEPS = 3
"""Of a device: compilation is in the first two."""
MAX_LONGER = 10.0
"""Times the seconds that a slow stage may take beyond them."""
COLD_MEMORY_SHARE = 0.5
"""Local data below this share of the memory stay in it after the first epoch: their rate is that of the page cache."""
SPLIT = "train"


@dataclass(frozen=True, slots=True)
class Fetched:
    """How fast bytes come, and some of them."""

    rate: StageRate
    bytes_per_image: float
    in_flight: float
    """Images asked for and not there yet, on average."""
    images: list[bytes]
    is_cold: bool
    """It was read from where it lies, and not from the page cache."""


class _Quiet:
    """Nobody watches the indexing of a sample."""

    def step(self, what: str) -> None: ...

    def started(self, shards: int, num_bytes: int) -> None: ...

    def shard_done(self, samples: int, num_bytes: int) -> None: ...

    def log(self, line: str) -> None: ...


def compute_rate(device: Device, batch: Batch, seconds: float, background: float) -> StageRate:
    """The device fed from memory: the same batch again and again."""
    resident = device.put(batch.images, batch.labels)
    for _ in range(WARM_UP_STEPS):
        device.step(resident)
    return _repeated("compute", lambda: device.step(resident), len(batch.images), seconds, background)


def transfer_rate(device: Device, batch: Batch, seconds: float, background: float) -> StageRate:
    """Batches to the device, one after the other."""
    device.put(batch.images, batch.labels)
    return _repeated("transfer", lambda: device.put(batch.images, batch.labels), len(batch.images), seconds, background)


def _repeated(name: Any, call: Any, images: int, seconds: float, background: float) -> StageRate:
    steps = 0
    with cpu_time() as used:
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s or steps < WARM_UP_STEPS:
            call()
            steps += 1
    rate = steps * images / used.elapsed_s
    return StageRate(name=name, images_per_s=rate, cpu_s_per_image=used.cores_used(background) / rate)


def fetch_rate_alone(
    loader: Loader, config: LoaderConfig, seconds: float, background: float, *, keep: int = 0, share: float = 1.0
) -> Fetched:
    """Fetch what a loader would, as far ahead as it would, and do nothing with it.

    Args:
        loader: Of which the dataset and the order are taken; it need not run.
        config: How it is fetched.
        seconds: To measure; the first batches are not.
        background: Cores that are busy with something else.
        keep: Images of which the bytes are returned.
        share: Of the bytes of every read, from a bucket: as if they were fewer.
    """
    storage, dataset = loader.dataset.storage(), loader.dataset
    is_cold = not storage.is_local or dataset.split.num_bytes > COLD_MEMORY_SHARE * memory_bytes()
    if storage.is_local and is_cold:
        _forget_files(storage, (shard["file"] for shard in dataset.split.shards))
    if share < 1:
        storage = cast("Storage", _ShortReads(impatient(storage, config.deadline_s), share))
    burst = batches_a_burst(storage, config)
    rows = dataset.rows(config.deadline_s)
    with open_fetcher(storage, rows, fetch_settings(config)) as fetcher:
        arrivals = _arrivals(fetcher, rows, _batches(loader, config), config)
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
    rate = taken / used.elapsed_s
    in_flight = images_under_way(storage, config)
    found = StageRate(name="fetch", images_per_s=rate, cpu_s_per_image=used.cores_used(background) / rate)
    return Fetched(found, num_bytes / max(1, taken), in_flight, images, is_cold)


class _ShortReads:
    """A bucket of which a share of every range is read; zeros stand for the rest."""

    is_local = False

    def __init__(self, storage: Storage, share: float) -> None:
        self._storage, self._share = storage, share
        self.reads_in_flight, self.url_of = storage.reads_in_flight, storage.url_of

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytes:
        """As long as was asked for."""
        return self._storage.read_range(name, offset, max(1, int(num_bytes * self._share))).ljust(num_bytes, b"\0")


def _warm_up(arrivals: Iterator[list[bytes]], config: LoaderConfig, keep: int, seconds: float) -> list[bytes]:
    """Images of the first batches: by then as many requests are under way as ever."""
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
    return Planned(order=order, shuffle=True, rank=config.rank, world_size=config.world_size, first_batch=0)


def _arrivals(
    fetcher: Fetcher, rows: SplitRows, batches: Iterable[list[tuple[int, Pick]]], config: LoaderConfig
) -> Generator[list[bytes]]:
    """The bytes of batch after batch; the next one is asked for when one was taken."""
    under_way: deque[list[Future[bytes]]] = deque()
    workers = config.num_threads * max(1, config.processes)
    with (
        ThreadPoolExecutor(workers, thread_name_prefix="fetch-alone") as waiting,
        ThreadPoolExecutor(LOOKUPS_IN_FLIGHT, thread_name_prefix="fetch-alone-index") as lookups,
    ):
        try:
            for picks in batches:
                for _ in lookups.map(rows.rows, fetcher.shards_needed(pick for _, pick in picks)):
                    pass  # side by side, as a loader reads them
                under_way.append([waiting.submit(_bytes_of, fetcher.request(pick)) for _, pick in picks])
                if len(under_way) == config.prefetch_batches:
                    yield [future.result() for future in under_way.popleft()]
        finally:
            waiting.shutdown(wait=False, cancel_futures=True)
            fetcher.close()


def _bytes_of(ticket: Ticket) -> bytes:
    try:
        found = ticket.wait()
    finally:
        ticket.done()
    return found.image if isinstance(found, Record) else found


def _forget_files(storage: Storage, names: Iterable[str]) -> None:
    """Let the system forget what it has of some files, so that they are read from the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for name in names:
        try:
            file = os.open(storage.url_of(name), os.O_RDONLY)
        except OSError:
            continue  # an image folder's shards are no files
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def write_sample(images: Sequence[bytes], folder: Path, short_side: int | None = None) -> str:
    """A local dataset of some images, shrunk as a build would if a short side is given; what to give a loader.

    Raises:
        StorageError: None of the images can be shrunk.
    """
    classes = folder / "images" / SPLIT / "sample"
    classes.mkdir(parents=True)
    written = 0
    for data in images if short_side is None else _shrunk(images, short_side):
        (classes / f"{written:06d}{_suffix(data)}").write_bytes(data)
        written += 1
    if not written:
        raise StorageError(f"{folder}: none of the images could be kept as a sample; run `dataprep verify --deep`")
    index = folder / "index"
    adopt(AdoptRequest(url=str(folder / "images"), index_url=str(index)), _Quiet())
    return str(index)


def _shrunk(images: Sequence[bytes], short_side: int) -> Iterator[bytes]:
    """As many as there is time for; those that cannot be decoded are left out."""
    policy = ImagePolicy(short_side=short_side, quality=SAMPLE_QUALITY)
    until_s = time.perf_counter() + SHRINKING_S
    threads = available_cores()
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, min(len(images), MAX_SHRUNK), threads):
            if first >= MIN_SHRUNK and time.perf_counter() > until_s:
                return
            for found in pool.map(lambda image: check_image("", image, policy), images[first : first + threads]):
                if isinstance(found, CheckedImage):
                    yield found.image


def _suffix(data: bytes) -> str:
    return ".png" if data.startswith(b"\x89PNG") else ".webp" if data[8:12] == b"WEBP" else ".jpg"


def mean_bytes(sample_url: str) -> float:
    """Of an image of a sample."""
    folder = Path(sample_url).parent / "images"
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(sizes) / len(sizes)


@dataclass(frozen=True, slots=True)
class Prepared:
    """How fast batches are made, and how evenly."""

    rate: StageRate
    jitter: tuple[float, ...]
    """Times between batches, relative to their mean."""


def prepare_rate(sample_url: str, config: LoaderConfig, seconds: float, background: float) -> Prepared:
    """Our own loader over a local sample, which the page cache holds."""
    with open_loader(sample_url, **loader_settings(config, fields=(), cache_dir=None)) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(config.prefetch_batches + 1):
            next(batches)
        taken, times_s = 0, [time.perf_counter()]
        with cpu_time() as used:
            while times_s[-1] < times_s[0] + seconds:
                taken += len(next(batches).images)
                times_s.append(time.perf_counter())
    rate = taken / used.elapsed_s
    mean_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
    jitter = tuple((later - earlier) / mean_s for earlier, later in itertools.pairwise(times_s))
    found = StageRate(name="prepare", images_per_s=rate, cpu_s_per_image=used.cores_used(background) / rate)
    return Prepared(found, jitter)


def request_latency_s(loader: Loader, tries: int = 3) -> float:
    """The shortest time in which a byte comes."""
    storage, rows = loader.dataset.storage(), loader.dataset.rows(loader.config.deadline_s)
    file = rows.file(0, 0)
    times_s = []
    for _ in range(tries):
        started_s = time.perf_counter()
        try:
            storage.read_range(file, 0, 1)
        except DataprepError:
            continue
        times_s.append(time.perf_counter() - started_s)
    return min(times_s, default=0.0)
