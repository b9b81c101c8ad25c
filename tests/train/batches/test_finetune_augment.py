"""Erased boxes and jittered colours beside timm's and the papers' own formulations."""

import math
import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from loaders.config import LoaderConfig
from tests.support.on_use import on_use
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.finetune_mae import Erasing, FinetuneAugment

ks_2samp = on_use("scipy.stats:ks_2samp")
RandomErasing = on_use("timm.data.random_erasing:RandomErasing")
SIDE = 96
MEAN = [round(255 * each) for each in IMAGENET_MEAN]


def erase(seed: int, *, side: int = SIDE, color: int = 255, **settings) -> np.ndarray:
    """An image of one colour, erased."""
    augment = FinetuneAugment(
        policy="", color_jitter=0.0, erasing=Erasing(**{"prob": 1.0, **settings}), image_size=side
    )
    image = np.full((side, side, 3), color, np.uint8)
    erased = augment(image, np.random.default_rng(seed))
    assert (image == color).all(), "the loader's image is its own"
    return erased


def box_of(erased: np.ndarray, color: int = 255) -> tuple[int, int]:
    """Height and width of what is not of the image's colour, which must be one full box."""
    changed = (erased != color).any(axis=2)
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert changed.sum() == height * width
    return int(height), int(width)


@given(st.integers(0, 2**32), st.integers(24, 160))
def test_a_box_has_the_area_and_the_sides_that_the_paper_says(seed, side):
    height, width = box_of(erase(seed, side=side, mode="const"))
    # A side is rounded to the next pixel.
    assert 0.02 * side**2 <= (height + 0.5) * (width + 0.5)
    assert (height - 0.5) * (width - 0.5) <= side**2 / 3
    assert (height - 0.5) / (width + 0.5) <= 1 / 0.3
    assert (height + 0.5) / (width - 0.5) >= 0.3
    assert max(height, width) < side


def test_boxes_are_drawn_as_timm_draws_them():
    """Areas and sides of 1,500 boxes each; from the same distribution, p is below 0.001 once in a thousand seeds."""
    random.seed(0)
    theirs_of, ones = RandomErasing(probability=1.0, mode="const", device="cpu"), torch.ones(3, SIDE, SIDE)
    theirs = [box_of(theirs_of(ones.clone()).permute(1, 2, 0).numpy(), color=1) for _ in range(1500)]
    ours = [box_of(erase(seed, mode="const")) for seed in range(1500)]
    for number in (lambda height, width: height * width, lambda height, width: math.log(height / width)):
        assert ks_2samp([number(*each) for each in ours], [number(*each) for each in theirs]).pvalue > 1e-3


def test_boxes_lie_anywhere_in_the_image():
    """Every pixel is erased in some of 2,000 images, and as often as its mirror images are."""
    share_HW = np.mean([(erase(seed, side=24, mode="const") != 255).any(axis=2) for seed in range(2000)], axis=0)
    assert share_HW.min() > 0
    for turned in (share_HW[::-1], share_HW[:, ::-1], share_HW.T):
        assert np.abs(share_HW - turned).max() < 0.06  # four standard errors of the difference, at a share of a fifth


def test_each_mode_fills_boxes_with_its_colours():
    for seed in range(5):
        const, rand, pixel = (erase(seed, mode=mode) for mode in ("const", "rand", "pixel"))
        assert {tuple(each) for each in const.reshape(-1, 3)} == {(255, 255, 255), tuple(MEAN)}
        assert len({tuple(each) for each in rand.reshape(-1, 3)}) == 2
        inside = pixel[(pixel != 255).any(axis=2)]
        assert len({tuple(each) for each in inside}) > 0.9 * len(inside)


def test_noise_has_the_mean_and_the_deviation_of_the_data():
    """Pixels are drawn from a normal distribution and cut to 0..255."""
    inside = np.concatenate([(each := erase(seed, mode="pixel"))[(each != 255).any(axis=2)] for seed in range(200)])
    noise = np.random.default_rng(0).normal(IMAGENET_MEAN, IMAGENET_STD, (200_000, 3))
    expected = np.clip(255 * noise, 0, 255)
    assert np.allclose(inside.mean(axis=0), expected.mean(axis=0), atol=1)
    assert np.allclose(inside.std(axis=0), expected.std(axis=0), atol=1)


def test_boxes_are_erased_with_the_given_probability_and_count():
    erased = sum((erase(seed, side=24, prob=0.25) != 255).any() for seed in range(1000))
    assert abs(erased - 250) < 4 * math.sqrt(1000 * 0.25 * 0.75)
    several = [erase(seed, mode="rand", count=4) for seed in range(80)]
    assert {len(np.unique(each.reshape(-1, 3), axis=0)) - 1 for each in several} == {1, 2, 3, 4}
    areas = [(each != 255).any(axis=2).mean() for each in several]
    assert max(areas) < 1 / 3 + 0.02


def test_colours_are_jittered_as_pillow_does_within_the_given_range():
    """Every result is one of the six orders of three enhancements."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    augment = FinetuneAugment(policy="", color_jitter=0.4, erasing=Erasing(), image_size=16)
    rng = np.random.default_rng(3)
    factors = rng.uniform(0.6, 1.4, 3)
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    found = augment(pixels, np.random.default_rng(3))
    expected = []
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        image = Image.fromarray(pixels)
        for index in order:
            image = kinds[index](image).enhance(factors[index])
        expected.append(np.asarray(image))
    assert sum(np.array_equal(found, each) for each in expected) == 1
    assert np.array_equal(found, augment(pixels, np.random.default_rng(3)))


def test_a_state_of_version_0_1_0_names_this_augmentation():
    augment = FinetuneAugment(policy="", color_jitter=0.0, erasing=Erasing(), image_size=SIDE)
    document = LoaderConfig(batch_size=8, transform=augment).sequence_document()
    assert document["transform"] == "train.finetune_augment.FinetuneAugment"
