"""Steps fed to devices of known speeds: the time goes where it must."""

import itertools
import threading

import numpy as np
import pytest

from dataprep.errors import UsageError
from loaders.diagnosis.devices import parse_simulated
from loaders.diagnosis.feed import endless, feed
from loaders.engine.batch import Batch
from loaders.loader import open_loader
from tests.support.virtual_time import batches_every, feed_in_virtual_time

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
    before = threading.active_count()
    with open_loader(str(dataset("webdataset")), batch_size=16, image_size=32) as loader:
        steps = feed(endless(loader), parse_simulated("simulated:100000"), 1)
        taken = list(itertools.islice(steps, 3 * len(loader)))
        steps.close()

    assert {step.images for step in taken} == {16}
    assert threading.active_count() == before
