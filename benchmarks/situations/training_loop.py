"""The judge's own training loop: images/s of a situation, once its queues are steady."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from benchmarks.situations.situation import Situation, loader_settings
from loaders import Batch, Loader, open_loader
from loaders.diagnosis.observed_run import SIMULATED, Device, parse_simulated

MIN_STEPS = 3
"""Minimum number of steps that are measured, however long they take."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurement of some steps in one situation."""

    images: int = 0
    elapsed_s: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.images + other.images, self.elapsed_s + other.elapsed_s)

    @property
    def images_per_s(self) -> float:
        return self.images / self.elapsed_s


def train(situation: Situation, url: str, *, seconds: float, cache_dir: str | None = None) -> Measured:
    """Train for at least `seconds` after the queues are as full or as empty as they stay.

    Args:
        url: URL of the situation's dataset.
        cache_dir: Folder of the loader's cache.
    """
    device = open_device(situation)
    transform = load_transform(situation.transform)
    settings = loader_settings(situation) | {"cache_dir": cache_dir, "transform": transform}
    with (
        _computing(situation.compute_threads),
        open_loader(url, **settings) as loader,
        _residents(loader, device, situation.transfer_ahead) as residents,
    ):
        return _steps(situation, device, residents, seconds)


@contextmanager
def _computing(threads: int | None) -> Iterator[None]:
    """Let models compute with another number of threads inside the context; None: as before."""
    if threads is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_alone(situation: Situation, *, seconds: float) -> Measured:
    """Measure the device alone, with the same batch again and again."""
    import numpy as np

    device, size = open_device(situation), situation.image_size
    images_NHWC = np.random.default_rng(0).integers(0, 256, (situation.batch_size, size, size, 3), np.uint8)
    resident = device.put(images_NHWC, np.zeros(situation.batch_size, np.int64))
    return _steps(situation, device, iter(lambda: resident, None), seconds)


def open_device(situation: Situation) -> Device:
    """Return the device of a situation."""
    if situation.device.startswith(f"{SIMULATED}:"):
        return parse_simulated(situation.device)
    return _real_device(situation.device, situation.model, situation.batch_size, situation.image_size)


@lru_cache(maxsize=4)
def _real_device(device: str, model: str, batch_size: int, image_size: int) -> Device:
    from train.loops.workload import training_workload

    return training_workload(model, device=device, batch_size=batch_size, image_size=image_size)


def load_transform(name: str) -> Any:
    """Return the transform of `MODULE:NAME`; None for an empty name."""
    if not name:
        return None
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _steps(situation: Situation, device: Device, residents: Iterator[Any], seconds: float) -> Measured:
    """Skip some steps, then measure whole bursts of batches, since a part of one would have another rate."""
    for _ in range(situation.prefetch_batches + situation.transfer_ahead + 2):
        device.step(next(residents))
    started_s, steps, elapsed_s = time.perf_counter(), 0, 0.0
    while elapsed_s < seconds or steps < MIN_STEPS or steps % situation.batches_per_burst:
        device.step(next(residents))
        steps += 1
        elapsed_s = time.perf_counter() - started_s
    return Measured(steps * situation.batch_size, elapsed_s)


def _endless(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader


@contextmanager
def _residents(loader: Loader, device: Device, transfer_ahead: int) -> Iterator[Iterator[Any]]:
    """Yield batches on the device, sent when they are needed or by a thread that is `transfer_ahead` batches ahead."""
    batches = _endless(loader)
    if not transfer_ahead:
        yield (device.put(batch.images, batch.labels) for batch in batches)
        return
    ready: queue.Queue[Any] = queue.Queue(transfer_ahead)
    is_over = threading.Event()

    def transfer() -> None:
        try:
            while not is_over.is_set():
                batch = next(batches)
                ready.put(device.put(batch.images, batch.labels))
        except Exception as error:  # noqa: BLE001  raised where the next batch is taken
            ready.put(error)

    thread = threading.Thread(target=transfer, name="transfer", daemon=True)
    thread.start()
    try:
        yield _raising(ready)
    finally:
        is_over.set()
        while thread.is_alive():
            with suppress(queue.Empty):
                ready.get(timeout=0.01)


def _raising(ready: queue.Queue[Any]) -> Iterator[Any]:
    while True:
        resident = ready.get()
        if isinstance(resident, Exception):
            raise resident
        yield resident
