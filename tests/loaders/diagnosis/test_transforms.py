"""What transforms take between two looks at a loader's stages."""

from __future__ import annotations

import time

import numpy as np
import pytest

from loaders.config import LoaderConfig
from loaders.diagnosis.findings import TransformCost
from loaders.diagnosis.stage_rates import prepare_rate
from loaders.diagnosis.transforms import holds_lock, transform_cost, waits_for_no_core, without_transforms
from loaders.engine.stats import StageTimes
from tests.support.slow_transforms import computing


class Slow:
    """A transform that is an object."""

    def __call__(self, image_HWC: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        time.sleep(0.001)
        return image_HWC


def looked(items: int, busy_s: float, cpu_s: float = 0.0) -> StageTimes:
    times = StageTimes()
    times.items = items
    times.busy_s.add(busy_s)
    times.cpu_s.add(cpu_s)
    return times


def test_the_cost_is_that_of_the_images_between_two_looks():
    config = LoaderConfig(batch_size=8, transform=Slow())
    before = {"transform": looked(10, 1.0, 0.5), "decode": looked(10, 2.0)}
    after = {"transform": looked(30, 5.0, 2.5), "decode": looked(30, 8.0)}
    cost = transform_cost(config, before, after)
    assert cost.name == f"{__name__}:Slow"
    assert (cost.s_per_image, cost.cpu_s_per_image, cost.prepare_s_per_image) == pytest.approx((0.2, 0.1, 0.3))


def test_without_images_or_a_transform_there_is_no_cost():
    config = LoaderConfig(batch_size=8)
    assert transform_cost(config, {}, {"decode": looked(10, 1.0)}) is None
    assert transform_cost(config, {}, {}) is None


def test_the_same_settings_without_a_transform():
    config = LoaderConfig(batch_size=8, image_size=64, transform=Slow())
    assert not any(without_transforms(config).transforms)
    assert without_transforms(config).image_size == 64


def cost(s_per_image: float, cpu_s_per_image: float) -> TransformCost:
    return TransformCost(
        name="mytrans:slow",
        s_per_image=s_per_image,
        cpu_s_per_image=cpu_s_per_image,
        prepare_s_per_image=s_per_image + 0.001,
        holds_lock=False,
        without=None,
    )


@pytest.mark.parametrize(
    ("threads", "s", "cpu_s", "images_per_s", "idle_cores", "holds"),
    [
        (2, 0.010, 0.0050, 190.0, 0.9, True),  # both threads together do what one could
        (8, 0.040, 0.0050, 195.0, 0.9, True),
        (2, 0.005, 0.0049, 380.0, 0.6, False),  # twice as much
        (2, 0.012, 0.0050, 165.0, 0.1, False),  # no core was idle, so the threads may have waited for one
        (1, 0.005, 0.0050, 190.0, 0.9, False),  # one thread cannot show it
        (2, 0.008, 0.0001, 240.0, 1.9, False),  # waits, and not for the lock
        (3, 0.005, 0.0049, 190.0, 0.9, False),  # decoding takes longer than the transform
    ],
)
def test_a_transform_holds_the_lock_if_all_threads_together_do_what_one_could(
    threads, s, cpu_s, images_per_s, idle_cores, holds
):
    found = holds_lock(
        cost(s, cpu_s),
        threads=threads,
        images_per_s=images_per_s,
        cpu_s_per_image=cpu_s + 0.001,
        idle_cores=idle_cores,
    )
    assert found == holds


@pytest.mark.parametrize(
    ("threads", "s", "cpu_s", "waits"),
    [
        (2, 0.010, 0.0050, False),  # Python in two threads takes turns
        (1, 0.005, 0.0049, False),  # one thread in each worker process
        (2, 0.008, 0.0001, True),  # sleeps, or waits for a disk
        (1, 0.009, 0.0030, True),
    ],
)
def test_a_transform_waits_for_something_else_if_its_cpu_time_does_not_explain_its_time(threads, s, cpu_s, waits):
    assert waits_for_no_core(cost(s, cpu_s), threads) == waits


def test_the_time_of_a_transform_is_measured_with_preparing(dataset):
    found = prepare_rate(str(dataset("webdataset")), LoaderConfig(batch_size=8, transform=Slow()), 0.3, 0.0)
    assert found.transform.s_per_image >= 0.001


@pytest.mark.long
def test_a_loop_in_python_is_measured_as_one_that_holds_the_lock(dataset):
    config = LoaderConfig(batch_size=8, image_size=32, threads=2, transform=computing)
    found = prepare_rate(str(dataset("webdataset")), config, 0.5, 0.0)
    if found.other_cores < 0.3:  # beside other programs no core is idle
        assert found.transform.holds_lock
