"""The monitor of a training loop."""

import itertools
import time

import numpy as np
import pytest

from loaders.diagnosis.monitor import StepMonitor
from loaders.engine.batch import Batch

BATCH = Batch(np.zeros((10, 1, 1, 3), np.uint8), np.zeros(10, np.int64), [""] * 10, np.ones(10, bool), {}, {})


def batches_every(seconds):
    while True:
        time.sleep(seconds)
        yield BATCH


def test_the_monitor_counts_waits_and_steps():
    monitor = StepMonitor(batch_images=10, compute_images_per_s=1000)
    for _ in itertools.islice(monitor.waiting(batches_every(0.03)), 10):
        time.sleep(0.01)
        monitor.stepped()
    found = monitor.take()

    assert 0.6 < found["wait_share"] < 0.85
    assert found["images_per_s"] == pytest.approx(250, rel=0.2)
    assert found["utilisation"] == pytest.approx(found["images_per_s"] / 1000)
    assert monitor.take()["images_per_s"] == 0


def test_the_monitor_stops_when_the_batches_end():
    monitor = StepMonitor(batch_images=1)

    assert list(monitor.waiting([1, 2])) == [1, 2]
    assert monitor.take()["utilisation"] <= 1
