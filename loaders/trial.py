"""A run as a user sets it up, and how fast it goes when it is tried for some seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaders.config import LoaderConfig
from loaders.devices import Device
from loaders.feed import FedStep, endless, feed
from loaders.loader import Loader, open_loader

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

MAX_LONGER = 4.0
"""Times the seconds: then a run was measured for long enough, once the burst under way has ended."""
MIN_STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A run that can be tried."""

    url: str
    split: str
    config: LoaderConfig
    transfer_ahead: int = 2
    """Batches sent to the device while it computes."""

    def changed(self, settings: Mapping[str, Any]) -> Setup:
        """With other settings: fields of the config, or `transfer_ahead`."""
        config = {name: value for name, value in settings.items() if name in LoaderConfig.__dataclass_fields__}
        ahead = settings.get("transfer_ahead", self.transfer_ahead)
        return replace(self, config=replace(self.config, **config), transfer_ahead=ahead)

    def open(self) -> Loader:
        """The run's loader."""
        return open_loader(self.url, self.split, **loader_settings(self.config))


@dataclass(frozen=True, slots=True)
class Observed:
    """A run as it is."""

    images_per_s: float
    steps: list[FedStep]


def loader_settings(config: LoaderConfig, **changed: Any) -> dict[str, Any]:
    """What `open_loader` takes, of a config."""
    return {name: getattr(config, name) for name in LoaderConfig.__dataclass_fields__} | changed


def steps_ahead(setup: Setup) -> int:
    """Batches that are under way before the first step."""
    return setup.config.prefetch_batches + setup.transfer_ahead + 1


def images_under_way(storage: Storage, config: LoaderConfig) -> int:
    """Asked for and not there yet, while a run waits for its data."""
    return min(config.prefetch_batches * config.rows, reads_in_flight(storage, config))


def reads_in_flight(storage: Storage, config: LoaderConfig) -> int:
    """Requests under way at once, at most."""
    if storage.is_local:
        return config.num_threads
    return config.reads_in_flight or 2 * storage.reads_in_flight


def batches_a_burst(storage: Storage, config: LoaderConfig) -> int:
    """That may come at nearly the same time, and all that were under way have come after: reads that began together
    share the link to a bucket, and end together."""
    return 1 if storage.is_local else config.prefetch_batches


def observe(setup: Setup, device: Device, seconds: float) -> Observed:
    """Train for some seconds and whole bursts of batches; the first ones, in which queues fill, do not count."""
    with setup.open() as loader:
        steps = feed(endless(loader), device, setup.transfer_ahead)
        burst = batches_a_burst(loader.dataset.storage(), loader.config)
        try:
            return _observe(steps, steps_ahead(setup), seconds, burst)
        finally:
            steps.close()


def _observe(steps: Iterator[FedStep], warm_up: int, seconds: float, burst: int) -> Observed:
    first = next(itertools.islice(steps, warm_up, None))
    found: list[FedStep] = []
    for step in steps:
        found.append(step)
        elapsed_s = step.ended_s - first.ended_s
        is_enough = elapsed_s > seconds and (len(found) >= MIN_STEPS or elapsed_s > MAX_LONGER * seconds)
        if is_enough and len(found) % burst == 0:
            break
    return Observed(sum(step.images for step in found) / (found[-1].ended_s - first.ended_s), found)
