"""Time that passes only where a test says so: what is computed from it is exact on any machine, however busy."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.api_core.retry import retry_base, retry_unary

from dataprep.host.cpu import CPUTime
from dataprep.storage import gcs_client
from loaders.diagnosis import fetch_rate, observed_run
from loaders.engine.batch import Batch


class VirtualClock:
    """A clock of all threads together, as of one thing that they all wait for; stands for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @contextmanager
    def cpu_time(self) -> Iterator[CPUTime]:
        """Measure as `dataprep.host.cpu.cpu_time` does; nothing takes processor time."""
        used, started_s = CPUTime(), self.now_s
        yield used
        used.elapsed_s = self.now_s - started_s


class RetryClock(VirtualClock):
    """A clock that goes on by the waits between two requests alone."""

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        time.sleep(0.001)


class VirtualThreads:
    """A clock for each thread, which begins at 0; whoever waits for another thread goes on no earlier than that was
    done. Stands for the modules `time`, `queue` and `threading` in `observed_run.py`."""

    Thread, Event = threading.Thread, threading.Event

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def perf_counter(self) -> float:
        found: float = getattr(self._of_thread, "now_s", 0.0)
        return found

    def sleep(self, seconds: float) -> None:
        self._of_thread.now_s = self.perf_counter() + seconds

    def SimpleQueue(self) -> _Queue:
        return _Queue(self)

    def Semaphore(self, count: int) -> _Semaphore:
        return _Semaphore(self, count)

    def wait_until(self, now_s: float) -> None:
        """Let this thread go on no earlier than that."""
        self._of_thread.now_s = max(self.perf_counter(), now_s)


class _Queue:
    """Items with the times at which they were put."""

    def __init__(self, clock: VirtualThreads) -> None:
        self._clock, self._items = clock, queue.SimpleQueue[tuple[float, Any]]()

    def put(self, item: Any) -> None:
        self._items.put((self._clock.perf_counter(), item))

    def get(self) -> Any:
        put_s, item = self._items.get()
        self._clock.wait_until(put_s)
        return item


class _Semaphore(_Queue):
    """Permits with the times at which they were given back."""

    def __init__(self, clock: VirtualThreads, count: int) -> None:
        super().__init__(clock)
        for _ in range(count):
            self.release()

    def release(self) -> None:
        self.put(True)

    def acquire(self) -> bool:
        found: bool = self.get()
        return found


def feed_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualThreads:
    """Let steps and transfers of simulated devices take virtual time; return its clock."""
    clock = VirtualThreads()
    for name in ("time", "queue", "threading"):
        monkeypatch.setattr(observed_run, name, clock)
    monkeypatch.setattr(observed_run, "_wait", clock.sleep)
    return clock


def measure_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """Let runs and fetching alone be measured in virtual time; return its clock."""
    clock = VirtualClock()
    monkeypatch.setattr(observed_run, "time", clock)
    monkeypatch.setattr(fetch_rate, "time", clock)
    monkeypatch.setattr(fetch_rate, "cpu_time", clock.cpu_time)
    return clock


def retry_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> RetryClock:
    """Let requests to a bucket wait for virtual time before they are sent again; return its clock."""
    clock = RetryClock()
    for module in (gcs_client, retry_base, retry_unary):
        monkeypatch.setattr(module, "time", clock)
    return clock


def batches_every(clock: VirtualClock | VirtualThreads, seconds: float, batch: Batch) -> Iterator[Batch]:
    """Yield one batch again and again, each after some seconds."""
    while True:
        clock.sleep(seconds)
        yield batch
