"""Steps fed to devices of known speeds: the time goes where it must."""

import itertools
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.devices import parse_simulated
from loaders.feed import endless, feed
from loaders.loader import Batch, open_loader
from loaders.monitor import StepMonitor

BATCH = Batch(np.zeros((10, 1, 1, 3), np.uint8), np.zeros(10, np.int64), [""] * 10, np.ones(10, bool), {}, {})


def batches_every(seconds):
    while True:
        time.sleep(seconds)
        yield BATCH


def shares(device, batch_s, ahead, count=20):
    steps = feed(batches_every(batch_s), parse_simulated(device), ahead)
    taken = list(itertools.islice(steps, 5, 5 + count))
    steps.close()
    elapsed_s = taken[-1].ended_s - taken[0].times.started_s
    sums = [sum(getattr(step.times, name) for step in taken) for name in ("wait_s", "transfer_s", "compute_s")]
    assert sum(sums) == pytest.approx(elapsed_s, rel=0.05)
    return [each / elapsed_s for each in sums], elapsed_s / count


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_slow_loader_shows_as_waiting(ahead):
    (wait, transfer, compute), _ = shares("simulated:5000", 0.02, ahead)

    assert wait > 0.7
    assert compute < 0.25
    assert transfer < 0.1


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_slow_way_to_the_device_shows_as_transfer(ahead):
    (wait, transfer, _), _ = shares("simulated:5000,transfer=500", 0, ahead)

    assert transfer > 0.6
    assert wait < 0.2


def test_a_batch_sent_ahead_costs_no_step_any_time():
    (wait, transfer, compute), ahead_s = shares("simulated:500,transfer-ms=10", 0, 2)
    _, in_turn_s = shares("simulated:500,transfer-ms=10", 0, 0)

    assert compute > 0.9
    assert wait + transfer < 0.1
    assert in_turn_s > 1.3 * ahead_s  # 20 ms a step, or 30


def test_an_error_of_the_loader_is_raised_and_the_thread_ends():
    def failing():
        yield BATCH
        raise UsageError("no more")

    before = threading.active_count()
    with pytest.raises(UsageError, match="no more"):
        list(feed(failing(), parse_simulated("simulated:1000"), 2))

    assert threading.active_count() == before


def test_batches_of_a_real_loader_end_only_when_nobody_takes_them(dataset):
    before = threading.active_count()
    with open_loader(str(dataset("webdataset")), batch_size=16, image_size=32) as loader:
        steps = feed(endless(loader), parse_simulated("simulated:100000"), 1)
        taken = list(itertools.islice(steps, 3 * len(loader)))
        steps.close()

    assert {step.images for step in taken} == {16}
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "text",
    [
        *("simulated:", "simulated:fast", "simulated:0", "simulated:-1", "simulated:nan"),
        *("simulated:9,step-ms=-1", "simulated:9,speed=3", "simulated:9,transfer=0", "simulated:9,step-ms=inf"),
    ],
)
def test_a_device_that_cannot_be_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="expected simulated:IMAGES_PER_S"):
        parse_simulated(text)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0, 100), st.floats(0, 100))
def test_a_simulated_device_has_the_speeds_of_its_name(rate, transfer, step_ms, transfer_ms):
    device = parse_simulated(f"simulated:{rate},transfer={transfer},step-ms={step_ms},transfer-ms={transfer_ms}")

    assert (device.images_per_s, device.transfer_images_per_s) == (rate, transfer)
    assert (device.step_s, device.transfer_s) == pytest.approx((step_ms / 1e3, transfer_ms / 1e3))


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


def test_the_monitor_ends_with_the_batches():
    monitor = StepMonitor(batch_images=1)

    assert list(monitor.waiting([1, 2])) == [1, 2]
    assert monitor.take()["utilisation"] <= 1
