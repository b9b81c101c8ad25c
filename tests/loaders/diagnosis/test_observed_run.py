"""A run that is watched, and fetching alone: both have the rate of the link, however batches come."""

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.config import LoaderConfig
from loaders.diagnosis.findings import StepTimes
from loaders.diagnosis.observed_run import (
    MAX_LONGER,
    FedStep,
    RunSetup,
    _observe,
    endless,
    feed,
    parse_simulated,
    reads_in_flight,
)
from loaders.engine.batch import Batch
from loaders.loader import open_loader
from tests.support.virtual_time import batches_every, feed_in_virtual_time

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)


def steps_at(ends_s):
    """Steps of eight images that end at these times."""
    nothing = StepTimes(started_s=0.0, wait_s=0.0, transfer_s=0.0, compute_s=0.0)
    return (FedStep(nothing, 8, end_s) for end_s in ends_s)


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.2, 1.5])
@pytest.mark.parametrize("warm_up", [4, 5, 6, 7])
def test_batches_that_arrive_in_bursts_are_counted_in_whole_bursts(seconds, warm_up):
    """Four batches every 0.4 s: 80 images/s, wherever in a burst the measurement begins, and however long it is."""
    bursts = steps_at(0.4 * (number // 4) for number in range(1000))
    assert _observe(bursts, warm_up, seconds, 4).images_per_s == pytest.approx(80)


def test_a_run_of_few_steps_is_watched_for_longer_but_not_for_ever():
    assert len(_observe(steps_at(0.3 * number for number in range(100)), 2, 1.0, 1).steps) == 8
    rare = _observe(steps_at(3.0 * number for number in range(100)), 2, 1.0, 1).steps
    assert rare[-1].ended_s - 6.0 == pytest.approx(6.0)
    assert rare[-1].ended_s - 6.0 > MAX_LONGER


def test_processes_share_a_number_of_requests_that_is_set_and_have_the_usual_one_each(bucket_dataset):
    with RunSetup(url=bucket_dataset("webdataset"), split="train", config=CONFIG).open() as loader:
        storage = loader.dataset.storage
    usual = reads_in_flight(storage, CONFIG)
    assert reads_in_flight(storage, replace(CONFIG, processes=2)) == 2 * usual
    assert reads_in_flight(storage, replace(CONFIG, processes=2, reads_in_flight=9)) == 8
    assert reads_in_flight(storage, replace(CONFIG, processes=4, reads_in_flight=2)) == 4


BATCH = Batch(np.zeros((10, 1, 1, 3), np.uint8), np.zeros(10, np.int64), [""] * 10, np.ones(10, bool), {}, {})


@pytest.fixture
def shares(monkeypatch):
    """Function that returns the shares of wait, transfer and compute in the time of some steps, and their length."""
    clock = feed_in_virtual_time(monkeypatch)

    def of(device, batch_s, ahead, count=20):
        steps = feed(batches_every(clock, batch_s, BATCH), parse_simulated(device), ahead)
        taken = list(itertools.islice(steps, 5, 5 + count))
        steps.close()
        elapsed_s = taken[-1].ended_s - taken[0].times.started_s
        sums = [sum(getattr(step.times, name) for step in taken) for name in ("wait_s", "transfer_s", "compute_s")]
        assert sum(sums) == pytest.approx(elapsed_s)
        return [each / elapsed_s for each in sums], elapsed_s / count

    return of


@pytest.mark.parametrize(("ahead", "step_s"), [(0, 0.022), (2, 0.02)])
def test_a_slow_loader_is_measured_as_wait(shares, ahead, step_s):
    found, taken_s = shares("simulated:5000", 0.02, ahead)

    assert taken_s == pytest.approx(step_s)
    assert found == pytest.approx([1 - 0.002 / step_s, 0, 0.002 / step_s])


@pytest.mark.parametrize(("ahead", "step_s"), [(0, 0.022), (2, 0.02)])
def test_a_slow_transfer_is_measured_as_transfer(shares, ahead, step_s):
    found, taken_s = shares("simulated:5000,transfer=500", 0, ahead)

    assert taken_s == pytest.approx(step_s)
    assert found == pytest.approx([0, 1 - 0.002 / step_s, 0.002 / step_s])


def test_a_batch_transferred_ahead_costs_its_step_no_time(shares):
    found, ahead_s = shares("simulated:500,transfer-ms=10", 0, 2)
    _, in_turn_s = shares("simulated:500,transfer-ms=10", 0, 0)

    assert found == pytest.approx([0, 0, 1])
    assert (ahead_s, in_turn_s) == pytest.approx((0.02, 0.03))


def test_an_error_of_the_loader_is_raised_and_the_thread_ends():
    def failing():
        yield BATCH
        raise UsageError("no more")

    before = threading.active_count()
    with pytest.raises(UsageError, match="no more"):
        list(feed(failing(), parse_simulated("simulated:1000"), 2))

    assert threading.active_count() == before


def test_endless_batches_of_a_real_loader_end_when_the_feed_is_closed(dataset):
    before = {*threading.enumerate()}
    with open_loader(str(dataset("webdataset")), batch_size=16, image_size=32) as loader:
        steps = feed(endless(loader), parse_simulated("simulated:100000"), 1)
        taken = list(itertools.islice(steps, 3 * len(loader)))
        steps.close()

    assert {step.images for step in taken} == {16}
    assert {*threading.enumerate()} <= before


@pytest.mark.parametrize(
    "text",
    [
        *("simulated:", "simulated:fast", "simulated:0", "simulated:-1", "simulated:nan"),
        *("simulated:9,step-ms=-1", "simulated:9,speed=3", "simulated:9,transfer=0", "simulated:9,step-ms=inf"),
    ],
)
def test_a_malformed_device_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="expected simulated:IMAGES_PER_S"):
        parse_simulated(text)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0, 100), st.floats(0, 100))
def test_a_simulated_device_has_the_rates_in_its_name(rate, transfer, step_ms, transfer_ms):
    device = parse_simulated(f"simulated:{rate},transfer={transfer},step-ms={step_ms},transfer-ms={transfer_ms}")

    assert (device.images_per_s, device.transfer_images_per_s) == (rate, transfer)
    assert (device.step_s, device.transfer_s) == pytest.approx((step_ms / 1e3, transfer_ms / 1e3))
