"""Rates of single stages other than fetching: preparing local data, transfer to the device, the device itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dataprep.errors import DataprepError
from dataprep.host.cpu import available_cores, cpu_time
from loaders.config import LoaderConfig
from loaders.diagnosis.devices import Device
from loaders.diagnosis.findings import Stage, StageRate, TransformCost
from loaders.diagnosis.sample import SPLIT
from loaders.diagnosis.transforms import holds_lock, transform_cost
from loaders.engine.batch import Batch
from loaders.loader import Loader, open_configured

WARM_UP_STEPS = 3
"""Steps of a device that are not measured: compilation is in the first two."""


def compute_rate(device: Device, batch: Batch, seconds: float, busy_cores: float) -> StageRate:
    """Measure the device fed from memory: the same batch again and again."""
    resident = device.put(batch.images, batch.labels)
    for _ in range(WARM_UP_STEPS):
        device.step(resident)
    return _repeated("compute", lambda: device.step(resident), len(batch.images), seconds, busy_cores)


def transfer_rate(device: Device, batch: Batch, seconds: float, busy_cores: float) -> StageRate:
    """Measure the transfer of batches to the device, one after another."""
    device.put(batch.images, batch.labels)
    return _repeated("transfer", lambda: device.put(batch.images, batch.labels), len(batch.images), seconds, busy_cores)


def _repeated(name: Stage, call: Callable[[], object], images: int, seconds: float, busy_cores: float) -> StageRate:
    steps = 0
    with cpu_time() as used:
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s or steps < WARM_UP_STEPS:
            call()
            steps += 1
    rate = steps * images / used.elapsed_s
    return StageRate(name=name, images_per_s=rate, cpu_s_per_image=used.cores_used(busy_cores) / rate)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rate of decoding alone, and how evenly batches are made."""

    rate: StageRate
    jitter: tuple[float, ...]
    """Intervals between batches, relative to their mean."""
    transform: TransformCost | None
    """What the user's transform takes of it."""
    other_cores: float
    """Cores that other programs used meanwhile; 0 if unknown."""


def prepare_rate(sample_url: str, config: LoaderConfig, seconds: float, busy_cores: float) -> Prepared:
    """Measure our own loader on a local sample, which the page cache holds."""
    with open_configured(sample_url, SPLIT, replace(config, fields=(), cache_dir=None)) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(config.prefetch_batches + 1):
            next(batches)
        before = loader.snapshot().stages
        taken, times_s = 0, [time.perf_counter()]
        with cpu_time() as used:
            while times_s[-1] < times_s[0] + seconds:
                taken += len(next(batches).images)
                times_s.append(time.perf_counter())
        transform = transform_cost(config, before, loader.snapshot().stages)
    rate = taken / used.elapsed_s
    if transform is not None:
        process_rate = rate / max(1, config.processes)
        idle_cores = available_cores() - max(used.own_s, used.machine_s) / used.elapsed_s
        locked = holds_lock(
            transform,
            threads=config.num_threads,
            images_per_s=process_rate,
            cpu_s_per_image=used.own_s / taken,
            idle_cores=idle_cores,
        )
        transform = replace(transform, holds_lock=locked)
    mean_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
    jitter = tuple((later - earlier) / mean_s for earlier, later in itertools.pairwise(times_s))
    found = StageRate(name="prepare", images_per_s=rate, cpu_s_per_image=used.cores_used(busy_cores) / rate)
    return Prepared(found, jitter, transform, used.cores_of_others)


def request_latency_s(loader: Loader, tries: int = 3) -> float:
    """Return the shortest time of some reads of one byte."""
    storage, file = loader.dataset.storage, loader.index.file(0, 0)
    times_s = []
    for _ in range(tries):
        started_s = time.perf_counter()
        try:
            storage.read_range(file, 0, 1)
        except DataprepError:
            continue
        times_s.append(time.perf_counter() - started_s)
    return min(times_s, default=0.0)
