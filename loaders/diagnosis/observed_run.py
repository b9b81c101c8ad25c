"""A run as a user sets it up, and how fast it is when it is watched for some seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from loaders.config import LoaderConfig
from loaders.diagnosis.devices import Device, using_threads
from loaders.diagnosis.feed import FedStep, endless, feed
from loaders.diagnosis.findings import Changes
from loaders.diagnosis.options import DIAGNOSE, Options
from loaders.loader import Loader, open_configured

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

MAX_LONGER = 4.0
"""Longest time to watch a run with fewer than MIN_STEPS steps, as a multiple of the requested seconds."""
MIN_STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """A run that can be tried."""

    url: str
    split: str
    config: LoaderConfig
    transfer_ahead: int = 2
    """Batches sent to the device while it computes."""
    compute_threads: int | None = None
    """Threads with which a model computes on the cores that decode; None: as many as it has."""
    options: Options = field(default_factory=lambda: DIAGNOSE)
    """Options with which the user sets the run up; no change is advised that they cannot set."""

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
        """Return the settings that differ from those of the run and have an option."""
        return cast(Changes, {name: value for name, value in self._differing(settings) if name in self.options})

    def can_set(self, settings: Changes) -> bool:
        """Whether all settings that differ from those of the run have an option."""
        return all(name in self.options for name, _ in self._differing(settings))

    def typed(self, settings: Changes) -> str:
        """Return the options that set what differs from the run, as they are typed."""
        return " ".join(self.options[name].text(value) for name, value in self._differing(settings))

    def _differing(self, settings: Changes) -> list[tuple[str, object]]:
        config = self.config
        if config.threads is None:  # then their number follows that of the processes
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
    """A run as it was watched."""

    images_per_s: float
    steps: list[FedStep]

    @property
    def step_images_per_s(self) -> float:
        """Images/s of the steps alone, without the waits between them: no less than `images_per_s`."""
        return sum(step.images for step in self.steps) / sum(step.times.compute_s for step in self.steps)


def steps_ahead(setup: RunSetup) -> int:
    """Return the number of batches that are in flight before the first step."""
    return setup.config.prefetch_batches + setup.transfer_ahead + 1


def images_in_flight(storage: Storage, config: LoaderConfig) -> int:
    """Return the number of images that are requested and have not arrived while a run waits for its data."""
    return min(config.prefetch_batches * config.rows, reads_in_flight(storage, config))


def reads_in_flight(storage: Storage, config: LoaderConfig) -> int:
    """Return the maximum number of requests in flight at once, over all processes: they share a number that is set, and
    have the usual one each where none is."""
    if storage.is_local:
        return config.num_threads
    processes = max(1, config.processes)
    if config.reads_in_flight is None:
        return 2 * storage.reads_in_flight * processes
    return max(1, config.reads_in_flight // processes) * processes


def batches_per_burst(storage: Storage, config: LoaderConfig) -> int:
    """Return the number of batches that may arrive together.

    Reads that began together share the link to a bucket and end together, so all batches in flight may come at nearly
    the same time. Only after a multiple of them is a rate that of the link.
    """
    return 1 if storage.is_local else config.prefetch_batches


def observe(setup: RunSetup, device: Device, seconds: float) -> ObservedRun:
    """Train for some seconds and whole bursts of batches; the first steps, while queues fill, are not counted."""
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
