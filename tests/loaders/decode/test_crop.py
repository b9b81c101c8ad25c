"""Views against a slow reference of torchvision's algorithm that is fed the same draws, and against golden vectors."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.decode.crop import (
    CropGroup,
    RandomCrop,
    View,
    as_views,
    evaluation_view,
    grouped_views,
    letterbox_views,
    train_views,
    transform_generator,
    whole_views,
)
from tests.support.crop_reference import reference_view

SIDES = st.integers(1, 700) | st.sampled_from([1, 2, 5000])
RANGES = st.sampled_from([((0.2, 1.0), (3 / 4, 4 / 3)), ((0.08, 1.0), (3 / 4, 4 / 3)), ((1.0, 1.0), (0.1, 10.0))])


@given(
    seed=st.integers(0, 2**40),
    first=st.integers(0, 2**45),
    stride=st.sampled_from([1, 3, 32, 300]),
    sides=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20),
    ranges=RANGES,
    flip=st.sampled_from([0.0, 0.5, 1.0]),
    clip=st.booleans(),
)
def test_views_are_those_of_torchvisions_algorithm(seed, first, stride, sides, ranges, flip, clip):
    positions = [first + stride * index for index in range(len(sides))]
    heights, widths = zip(*sides, strict=True)
    views = train_views(seed, positions, heights, widths, size=224, crop=RandomCrop(*ranges, flip, clip))
    assert views == [
        reference_view(seed, position, *of_image, 224, *ranges, flip, clip=clip)
        for position, of_image in zip(positions, sides, strict=True)
    ]
    for view, (height, width) in zip(views, sides, strict=True):
        assert view.height >= 1 and view.width >= 1
        assert 0 <= view.top <= height - view.height
        assert 0 <= view.left <= width - view.width


@given(
    seed=st.integers(0, 2**40),
    first=st.integers(0, 2**45),
    sides=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=9),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
)
def test_several_views_are_those_of_torchvisions_algorithm_each_with_draws_of_its_own(seed, first, sides, counts):
    positions = [first + 3 * index for index in range(len(sides))]
    heights, widths = zip(*sides, strict=True)
    areas = [(0.4, 1.0), (0.05, 0.4), (0.3, 0.3)][: len(counts)]
    groups = [
        CropGroup(count, 96 + count, RandomCrop(area, flip=0.3)) for count, area in zip(counts, areas, strict=True)
    ]
    found = grouped_views(seed, positions, heights, widths, groups)
    for position, of_image, views in zip(positions, sides, found, strict=True):
        expected = [(size, crop.scale, crop.ratio, crop.flip) for count, size, crop in groups for _ in range(count)]
        assert as_views(views) == [
            reference_view(seed, position, *of_image, *each, number=number) for number, each in enumerate(expected)
        ]


def test_golden_views():
    """Golden views are part of the contract: a change of them is a new order_version."""
    views = train_views(7, [0, 1, 2, 10**12], [375, 100, 1, 640], [500, 2000, 9, 480], size=224)
    assert views == [
        View(151, 83, 201, 229, 224, 224, 0, 0, False),
        View(0, 933, 100, 133, 224, 224, 0, 0, False),
        View(0, 4, 1, 2, 224, 224, 0, 0, False),
        View(121, 22, 503, 437, 224, 224, 0, 0, False),
    ]


def test_golden_views_of_complete_images():
    assert letterbox_views(7, [0, 1, 5], [(375, 500), (100, 2001), (333, 250)], size=224, flip=0.5) == [
        View(0, 0, 375, 500, 168, 224, -28, 0, False),
        View(0, 0, 100, 2001, 11, 224, -107, 0, False),
        View(0, 0, 333, 250, 224, 168, 0, -28, True),
    ]


def test_golden_views_of_one_image():
    crop = RandomCrop()
    (numbers_V9,) = grouped_views(7, [5], [375], [500], [CropGroup(1, 224, crop), CropGroup(2, 96, crop)])
    views = as_views(numbers_V9)
    assert views == [
        View(15, 224, 214, 245, 224, 224, 0, 0, True),
        View(61, 9, 224, 208, 96, 96, 0, 0, True),
        View(30, 98, 226, 270, 96, 96, 0, 0, False),
    ]
    assert views[:1] == train_views(7, [5], [375], [500], size=224)


def test_areas_ratios_and_flips_have_the_requested_distributions():
    count = 20_000
    views = train_views(0, range(count), [1000] * count, [1000] * count, size=224)
    areas = np.array([view.height * view.width for view in views]) / 1e6
    aspects = np.log([view.width / view.height for view in views])
    assert 0.199 < areas.min() < 0.205
    # Not 0.6: a share a above 3/4 fits with a probability of log(1/a) / log(4/3) only. The integral is 0.5384.
    assert abs(areas.mean() - 0.5384) < 0.006
    assert abs(aspects.mean()) < 0.005
    assert np.abs(aspects).max() < math.log(4 / 3) + 0.003
    assert abs(np.mean([view.flip for view in views]) - 0.5) < 0.015
    middles = np.array([(v.top + v.height / 2, v.left + v.width / 2) for v in views])
    assert np.abs(middles.mean(axis=0) - 500).max() < 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (0.0, 1.0)}, "scale must be a range within 0 to 1, got (0.0, 1.0)"),
        ({"scale": (0.5, 1.1)}, "scale must be a range within 0 to 1, got (0.5, 1.1)"),
        ({"ratio": (2.0, 1.0)}, "ratio must be a range above 0, got (2.0, 1.0)"),
        ({"ratio": (0.5, math.inf)}, "ratio must be a range above 0, got (0.5, inf)"),
        ({"scale": (0.2, math.nan)}, "scale must be a range within 0 to 1, got (0.2, nan)"),
        ({"flip": 1.5}, "flip must be a probability, got 1.5"),
    ],
)
def test_crop_out_of_range_is_refused(options, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        RandomCrop(**options)


@pytest.mark.parametrize(
    ("height", "width", "size", "resize", "expected"),
    [
        (375, 500, 224, 256, View(0, 0, 375, 500, 256, 341, 16, 58, False)),
        (500, 375, 224, 256, View(0, 0, 500, 375, 341, 256, 58, 16, False)),
        (301, 301, 224, 224, View(0, 0, 301, 301, 224, 224, 0, 0, False)),
        (10, 10, 3, 8, View(0, 0, 10, 10, 8, 8, 2, 2, False)),  # 2.5 rounds to 2, as Python's round
        (10, 10, 1, 8, View(0, 0, 10, 10, 8, 8, 4, 4, False)),  # and 3.5 to 4
    ],
)
def test_evaluation_views_equal_those_computed_by_hand(height, width, size, resize, expected):
    assert evaluation_view(height, width, size=size, resize=resize) == expected


@given(SIDES, SIDES, st.integers(1, 300), st.integers(0, 100))
def test_evaluation_views_lie_inside_the_image(height, width, size, more):
    view = evaluation_view(height, width, size=size, resize=size + more)
    assert min(view.resized_height, view.resized_width) == size + more
    assert 0 <= view.out_top <= view.resized_height - size
    assert 0 <= view.out_left <= view.resized_width - size


def test_an_output_larger_than_the_scaled_image_is_refused():
    with pytest.raises(UsageError, match=r"^image_size must be 1 to resize \(200\), got 224; choose a larger resize$"):
        evaluation_view(375, 500, size=224, resize=200)


def test_a_transforms_randomness_is_keyed_by_seed_and_position():
    words = [transform_generator(seed, p).bit_generator.random_raw(2).tolist() for seed, p in ((1, 9), (1, 10), (2, 9))]
    assert words[0] == transform_generator(1, 9).bit_generator.random_raw(2).tolist()
    assert len({tuple(each) for each in words}) == 3
    assert words[0] == [16293946995671285133, 4050090813740418290]
    views = [transform_generator(1, 9, view).bit_generator.random_raw(2).tolist() for view in range(3)]
    assert views[0] == words[0]
    assert len({tuple(each) for each in views}) == 3


def test_whole_views_keep_the_shape_and_depend_on_seed_and_position_alone():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 600, (50, 2))
    positions = list(range(3, 153, 3))
    whole = whole_views(1, positions, sizes)
    assert np.array_equal(whole.boxes, np.concatenate([np.zeros_like(sizes), sizes], axis=1))
    assert 10 < whole.flips.sum() < 40
    assert ((whole.spare >= 0) & (whole.spare < 1)).all()
    cut = whole_views(1, positions, sizes, crop=(0.2, 0.8), flip=0.0)
    assert not cut.flips.any()
    assert np.array_equal(cut.spare, whole.spare)
    corners, sides = cut.boxes[:, :2], cut.boxes[:, 2:]
    assert (corners >= 0).all()
    assert (sides >= 1).all()
    assert (corners + sides <= sizes).all()
    large = sizes.min(axis=1) > 60
    shares = np.prod(sides / sizes, axis=1)[large]
    assert 0.19 < shares.min() < shares.max() < 0.81
    assert np.abs(np.diff(sides / sizes, axis=1))[large].max() < 0.02
    alone = whole_views(1, positions[7:8], sizes[7:8], crop=(0.2, 0.8), flip=0.0)
    assert np.array_equal(alone.boxes[0], cut.boxes[7])
    assert not np.array_equal(whole_views(2, positions, sizes, crop=(0.2, 0.8)).boxes, cut.boxes)
