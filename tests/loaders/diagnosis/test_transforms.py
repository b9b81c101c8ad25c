"""What transforms take between two looks at a loader's stages."""

from __future__ import annotations

import time

import numpy as np
import pytest

from loaders.config import LoaderConfig
from loaders.diagnosis.transforms import transform_cost, without_transforms
from loaders.engine.stats import StageTimes


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
