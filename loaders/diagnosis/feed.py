"""A loader's batches fed to a device step by step, with the parts of every step timed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from loaders.diagnosis.devices import Device
from loaders.diagnosis.findings import StepTimes
from loaders.engine.batch import Batch
from loaders.loader import Loader


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A batch on the device, and when it was transferred."""

    resident: Any
    images: int
    put_from_s: float
    put_until_s: float


@dataclass(frozen=True, slots=True)
class FedStep:
    """One finished step."""

    times: StepTimes
    images: int
    ended_s: float
    """End of the step, on the clock of `times.started_s`."""


def endless(loader: Loader) -> Iterator[Batch]:
    """Yield batch after batch, epoch after epoch, without end."""
    while True:
        yield from loader


def feed(batches: Iterator[Batch], device: Device, transfer_ahead: int) -> Generator[FedStep]:
    """Train on batches, one step for each item that is taken. Times are those of `time.perf_counter`.

    Args:
        batches: Batches of a loader; with `transfer_ahead` another thread takes them.
        device: Device on which the steps run.
        transfer_ahead: Batches that may be on the device besides the one of the running step.
    """
    arrivals = _in_turn(batches, device) if transfer_ahead == 0 else _ahead(batches, device, transfer_ahead)
    try:
        while True:
            started_s = time.perf_counter()
            arrived = next(arrivals, None)
            if arrived is None:
                return
            ready_s = time.perf_counter()
            device.step(arrived.resident)
            ended_s = time.perf_counter()
            transfer_s = max(0.0, min(ready_s, arrived.put_until_s) - max(started_s, arrived.put_from_s))
            times = StepTimes(
                started_s=started_s,
                wait_s=max(0.0, ready_s - started_s - transfer_s),
                transfer_s=transfer_s,
                compute_s=ended_s - ready_s,
            )
            yield FedStep(times, arrived.images, ended_s)
    finally:
        arrivals.close()


def _put(batch: Batch, device: Device) -> _Arrived:
    started_s = time.perf_counter()
    resident = device.put(batch.images, batch.labels)
    return _Arrived(resident, len(batch.images), started_s, time.perf_counter())


def _in_turn(batches: Iterator[Batch], device: Device) -> Generator[_Arrived]:
    for batch in batches:
        yield _put(batch, device)


def _ahead(batches: Iterator[Batch], device: Device, count: int) -> Generator[_Arrived]:
    """Yield batches that a thread copies to the device, `count` of them ahead of the one that was taken last."""
    arrived: queue.SimpleQueue[_Arrived | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(count)
    leaving = threading.Event()

    def run() -> None:
        try:
            while room.acquire() and not leaving.is_set():
                batch = next(batches, None)
                if batch is None:
                    arrived.put(None)
                    return
                arrived.put(_put(batch, device))
        except BaseException as error:  # noqa: BLE001  raised where the batch is waited for
            arrived.put(error)

    thread = threading.Thread(target=run, name="feed-transfer", daemon=True)
    thread.start()
    try:
        while (found := arrived.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            room.release()
            yield found
    finally:
        leaving.set()
        room.release()
        thread.join()
