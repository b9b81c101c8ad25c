"""The monitor of a training loop."""

import itertools

import numpy as np
import pytest

from loaders.diagnosis import monitor
from loaders.diagnosis.monitor import StepMonitor
from loaders.engine.batch import Batch
from tests.support.virtual_time import VirtualClock, batches_every

BATCH = Batch(np.zeros((10, 1, 1, 3), np.uint8), np.zeros(10, np.int64), [""] * 10, np.ones(10, bool), {}, {})


def test_the_monitor_counts_waits_and_steps(monkeypatch):
    clock = VirtualClock()
    monkeypatch.setattr(monitor, "time", clock)
    steps = StepMonitor(batch_images=10, compute_images_per_s=1000)
    for _ in itertools.islice(steps.waiting(batches_every(clock, 0.03, BATCH)), 10):
        clock.sleep(0.01)
        steps.stepped()
    found = steps.take()

    assert found == pytest.approx({"images_per_s": 250, "wait_share": 0.75, "step_s": 0.04, "utilisation": 0.25})
    assert steps.take()["images_per_s"] == 0


def test_the_monitor_stops_when_the_batches_end():
    steps = StepMonitor(batch_images=1)

    assert list(steps.waiting([1, 2])) == [1, 2]
    assert steps.take()["utilisation"] <= 1
