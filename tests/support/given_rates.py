"""Given rates in place of measured ones: what a diagnosis concludes from them is the same on any machine.

What is measured on a machine depends on what else runs there. Everything after that is arithmetic and choices, which
these rates show: the loader, the changes, their trials and the verdict are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from loaders.config import LoaderConfig
from loaders.diagnosis import diagnose, stages
from loaders.diagnosis.fetch_rate import Fetched, fetch_rate_alone
from loaders.diagnosis.findings import StageRate, StepTimes, TransformCost
from loaders.diagnosis.observed_run import MIN_STEPS, Device, FedStep, ObservedRun, RunSetup, Simulated, using_threads
from loaders.diagnosis.stages import Prepared
from loaders.engine.batch import Batch
from loaders.loader import Loader

FAST = 1e6
"""Images/s of a stage that limits nothing."""
StepSeconds = Callable[[Any, int], float]
"""Seconds that a device needs for a batch of so many images."""


def simulated_step_s(device: Simulated, images: int) -> float:
    """Return the seconds of a step of a simulated device."""
    return device.step_s + images / device.images_per_s


def _transfer_s(device: Device, images: int) -> float:
    """Return the seconds of a transfer: no time but on a simulated device that says so."""
    return device.transfer_s + images / device.transfer_images_per_s if isinstance(device, Simulated) else 0.0


@dataclass(frozen=True, kw_only=True)
class GivenRates:
    """What each stage takes, alone and in a run; other programs use no core unless a test says so."""

    step_s: StepSeconds = simulated_step_s
    """Seconds of a step of the device alone."""
    step_in_run_s: StepSeconds | None = None
    """Seconds of a step in a run; None: as alone."""
    prepare: Callable[[LoaderConfig], float] = lambda config: FAST
    """Images/s of preparing with such settings."""
    fetch: Callable[[LoaderConfig], float] = lambda config: FAST
    """Images/s of fetching with such settings."""
    latency_s: float | None = None
    """Latency of a read from a bucket; None: it is measured."""
    transform: TransformCost | None = None
    """Cost of the user's transform, in settings that have one."""

    def compute_rate(self, device: Device, batch: Batch, *_: float) -> StageRate:
        rate = len(batch.images) / self.step_s(device, len(batch.images))
        return StageRate(name="compute", images_per_s=rate, cpu_s_per_image=0.0)

    def transfer_rate(self, device: Device, batch: Batch, *_: float) -> StageRate:
        rate = len(batch.images) / max(_transfer_s(device, len(batch.images)), 1e-9)
        return StageRate(name="transfer", images_per_s=rate, cpu_s_per_image=0.0)

    def prepare_rate(self, url: str, config: LoaderConfig, *_: float) -> Prepared:
        rate = StageRate(name="prepare", images_per_s=self.prepare(config), cpu_s_per_image=0.0)
        return Prepared(rate, (1.0,), self.transform if any(config.transforms) else None, 0.0)

    def fetch_rate(self, loader: Loader, config: LoaderConfig, *_: float, **more: Any) -> Fetched:
        """Fetch some images, however long that takes."""
        rate = StageRate(name="fetch", images_per_s=self.fetch(config), cpu_s_per_image=0.0)
        found = fetch_rate_alone(loader, config, 0.0, 0.0, **more)
        return replace(found, rate=rate, own_cores=0.0, one_process_images_per_s=rate.images_per_s)

    def observe(self, setup: RunSetup, device: Device, seconds: float) -> ObservedRun:
        """Return a run that is as fast as its slowest stage, with its steps."""
        images = setup.config.batch_size
        with using_threads(device, setup.compute_threads):
            step_s = (self.step_in_run_s or self.step_s)(device, images)
        prepare_s = images / min(self.fetch(setup.config), self.prepare(setup.config))
        transfer_s = _transfer_s(device, images)
        if setup.transfer_ahead:
            period_s = max(prepare_s, transfer_s, step_s)
            transfer_s = period_s - step_s if transfer_s > prepare_s else 0.0
        else:
            period_s = max(prepare_s, transfer_s + step_s)
        wait_s = max(0.0, period_s - transfer_s - step_s)
        steps = [
            FedStep(
                StepTimes(started_s=number * period_s, wait_s=wait_s, transfer_s=transfer_s, compute_s=step_s),
                images,
                (number + 1) * period_s,
            )
            for number in range(MIN_STEPS)
        ]
        return ObservedRun(images / period_s, steps)


def give_rates(monkeypatch: pytest.MonkeyPatch, given: GivenRates) -> None:
    """Let a diagnosis find these rates wherever it measures."""
    monkeypatch.setattr(diagnose, "background_cores", lambda: 0.0)
    monkeypatch.setattr(diagnose, "observe", given.observe)
    monkeypatch.setattr(stages, "observe", given.observe)
    monkeypatch.setattr(stages, "compute_rate", given.compute_rate)
    monkeypatch.setattr(stages, "transfer_rate", given.transfer_rate)
    monkeypatch.setattr(stages, "prepare_rate", given.prepare_rate)
    monkeypatch.setattr("loaders.diagnosis.fetch_rate.fetch_rate_alone", given.fetch_rate)
    if given.latency_s is not None:
        monkeypatch.setattr(stages, "request_latency_s", lambda loader: given.latency_s)
        monkeypatch.setattr(diagnose, "request_latency_s", lambda loader: given.latency_s)
