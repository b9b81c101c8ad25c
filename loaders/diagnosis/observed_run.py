"""A run as the user set it up, the device that it feeds, and its rate over some seconds.

The device is a real model on a real device, or a simulated one, which takes time but no core, like an accelerator:

    simulated:2000                        computes 2,000 images/s
    simulated:2000,transfer=3000          and receives 3,000 images/s
    simulated:2000,step-ms=5              and takes 5 ms more a step, whatever the batch
    simulated:2000,transfer-ms=2          and takes 2 ms more a transfer, whatever the batch

Shapes: images_NHWC, uint8, 0..255.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError
from loaders.config import LoaderConfig
from loaders.diagnosis.findings import DIAGNOSE, Changes, Options, StepTimes
from loaders.engine.batch import Batch
from loaders.loader import Loader, open_configured

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

SIMULATED = "simulated"
DEVICES = ("xla", "tpu", "cuda", "cpu", SIMULATED)


class Device(Protocol):
    """A place where training steps run; `put` may be called by another thread than `step`."""

    @property
    def name(self) -> str:
        """Name that reports show."""

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Any:
        """Copy a batch to the device; return when it has arrived."""

    def step(self, resident: Any) -> None:
        """Make one training step; return when the device has finished it."""


@runtime_checkable
class SharesCores(Protocol):
    """A device that computes with threads on the cores that also decode."""

    @property
    def compute_threads(self) -> int:
        """Number of threads that a step computes with; 0 if it computes elsewhere."""

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads from now on; called by the thread that runs the steps."""


def compute_threads(device: Device) -> int:
    """Return the number of threads that a device computes with on this machine's cores; 0 if it does not."""
    return device.compute_threads if isinstance(device, SharesCores) else 0


@contextmanager
def using_threads(device: Device, count: int | None) -> Iterator[None]:
    """Let a device compute with another number of threads inside the context; None: as before."""
    if count is None or not isinstance(device, SharesCores):
        yield
        return
    before = device.compute_threads
    device.use_threads(count)
    try:
        yield
    finally:
        device.use_threads(before)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """A device that sleeps instead of computing, according to its rates."""

    name: str
    images_per_s: float
    transfer_images_per_s: float = math.inf
    step_s: float = 0.0
    transfer_s: float = 0.0

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> int:
        """Wait for as long as a transfer takes; return the size of the batch."""
        _wait(self.transfer_s + len(images_NHWC) / self.transfer_images_per_s)
        return len(images_NHWC)

    def step(self, resident: int) -> None:
        """Wait for as long as a step takes."""
        _wait(self.step_s + resident / self.images_per_s)


def parse_simulated(text: str) -> Simulated:
    """Return the device of `simulated:IMAGES_PER_S[,transfer=IMAGES_PER_S][,step-ms=MS][,transfer-ms=MS]`.

    Raises:
        UsageError: The text is anything else.
    """
    rate, *options = text.removeprefix(f"{SIMULATED}:").split(",")
    usual = {"transfer": math.inf, "step-ms": 0.0, "transfer-ms": 0.0}
    with suppress(ValueError):
        images_per_s = float(rate)
        given = usual | {name: float(value) for name, _, value in (option.partition("=") for option in options)}
        are_rates = images_per_s > 0 and given["transfer"] > 0
        are_times = all(0 <= each < math.inf for each in (given["step-ms"], given["transfer-ms"]))
        if are_rates and are_times and given.keys() == usual.keys():
            return Simulated(
                name=text,
                images_per_s=images_per_s,
                transfer_images_per_s=given["transfer"],
                step_s=given["step-ms"] / 1e3,
                transfer_s=given["transfer-ms"] / 1e3,
            )
    raise UsageError(
        f"device {text!r}, expected simulated:IMAGES_PER_S with transfer=IMAGES_PER_S, step-ms=MS or transfer-ms=MS "
        "after it, e.g. simulated:2000,step-ms=5"
    )


def _wait(seconds: float) -> None:
    """Sleep, to within some ten microseconds."""
    until_s = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - 1e-4))
    while time.perf_counter() < until_s:
        pass


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A batch on the device, and the times of its transfer."""

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
    """Train on batches, one step for each item that is taken. Times are from `time.perf_counter`.

    Args:
        batches: Batches of a loader; with `transfer_ahead` another thread takes them.
        device: Device on which the steps run.
        transfer_ahead: Batches that may be on the device in addition to the one of the running step.
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


MAX_LONGER = 4.0
"""Longest time to watch a run with fewer than MIN_STEPS steps, as a multiple of the requested seconds."""
MIN_STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """Dataset, settings and options of a run."""

    url: str
    split: str
    config: LoaderConfig
    transfer_ahead: int = 2
    """Batches sent to the device while it computes."""
    compute_threads: int | None = None
    """Threads that a model computes with on the cores that decode; None: its own number."""
    options: Options = field(default_factory=lambda: DIAGNOSE)
    """Options of the user's command; only changes that these can set are advised."""

    def changed(self, settings: Changes) -> RunSetup:
        """Return the run with other settings: fields of the config, `transfer_ahead` or `compute_threads`."""
        config: Any = {name: value for name, value in settings.items() if name in LoaderConfig.__dataclass_fields__}
        return replace(
            self,
            config=replace(self.config, **config),
            transfer_ahead=settings.get("transfer_ahead", self.transfer_ahead),
            compute_threads=settings.get("compute_threads", self.compute_threads),
        )

    def settable(self, settings: Changes) -> Changes:
        """Return the settings that differ from the run's and have an option."""
        return cast(Changes, {name: value for name, value in self._differing(settings) if name in self.options})

    def can_set(self, settings: Changes) -> bool:
        """Whether all settings that differ from the run's have an option."""
        return all(name in self.options for name, _ in self._differing(settings))

    def typed(self, settings: Changes) -> str:
        """Return the options for the settings that differ from the run's, as they are typed."""
        return " ".join(self.options[name].text(value) for name, value in self._differing(settings))

    def _differing(self, settings: Changes) -> list[tuple[str, object]]:
        config = self.config
        if config.threads is None:  # then their number follows the processes'
            now = replace(config, processes=settings.get("processes", config.processes))
            config = replace(config, threads=now.num_threads)
        return [
            (name, value)
            for name, value in settings.items()
            if value != (self.transfer_ahead if name == "transfer_ahead" else getattr(config, name))
        ]

    def open(self) -> Loader:
        """Open the run's loader."""
        return open_configured(self.url, self.split, self.config)


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """Measurements of a run."""

    images_per_s: float
    steps: list[FedStep]

    @property
    def step_images_per_s(self) -> float:
        """Images/s of the steps alone, without the waits between them; at least `images_per_s`."""
        return sum(step.images for step in self.steps) / sum(step.times.compute_s for step in self.steps)


def steps_ahead(setup: RunSetup) -> int:
    """Return the number of batches that are in flight before the first step."""
    return setup.config.prefetch_batches + setup.transfer_ahead + 1


def images_in_flight(storage: Storage, config: LoaderConfig) -> int:
    """Return the number of images that are requested and have not arrived while a run waits for its data."""
    return min(config.prefetch_batches * config.rows, reads_in_flight(storage, config))


def reads_in_flight(storage: Storage, config: LoaderConfig) -> int:
    """Return the maximum number of requests in flight at once, over all processes: they share a number that is set;
    otherwise each has the default number."""
    if storage.is_local:
        return config.num_threads
    processes = max(1, config.processes)
    if config.reads_in_flight is None:
        return 2 * storage.reads_in_flight * processes
    return max(1, config.reads_in_flight // processes) * processes


def batches_per_burst(storage: Storage, config: LoaderConfig) -> int:
    """Return the number of batches that may arrive together.

    Reads that began together share the link to a bucket and end together, so all batches in flight may come at nearly
    the same time. Only a multiple of this number shows the rate of the link.
    """
    return 1 if storage.is_local else config.prefetch_batches


def observe(setup: RunSetup, device: Device, seconds: float) -> ObservedRun:
    """Train for some seconds and complete bursts of batches; the first steps, while queues fill, are not counted."""
    with setup.open() as loader, using_threads(device, setup.compute_threads):
        steps = feed(endless(loader), device, setup.transfer_ahead)
        burst = batches_per_burst(loader.dataset.storage, loader.config)
        try:
            return _observe(steps, steps_ahead(setup), seconds, burst)
        finally:
            steps.close()


def _observe(steps: Iterator[FedStep], warm_up: int, seconds: float, burst: int) -> ObservedRun:
    first = next(itertools.islice(steps, warm_up, None))
    found: list[FedStep] = []
    for step in steps:
        found.append(step)
        elapsed_s = step.ended_s - first.ended_s
        is_enough = elapsed_s > seconds and (len(found) >= MIN_STEPS or elapsed_s > MAX_LONGER * seconds)
        if is_enough and len(found) % burst == 0:
            break
    return ObservedRun(sum(step.images for step in found) / (found[-1].ended_s - first.ended_s), found)
