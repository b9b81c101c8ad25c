"""Segmentations stay as they are, and runs are added up without drawing a mask."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as masks

from dataprep.sources.coco_annotations import mask_size, segmentation_text

BILLION = 31_623  # squared


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools with NumPy 2
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.02, 0.5, 1.0]))
def test_masks_that_pycocotools_writes_are_taken(height, width, seed, share):
    drawn = np.random.default_rng(seed).random((height, width)) < share
    encoded = masks.encode(np.asfortranarray(drawn, np.uint8))
    compressed = {"size": [height, width], "counts": encoded["counts"].decode()}
    text = segmentation_text(compressed)
    assert json.loads(text) == compressed
    assert mask_size(text) == (height, width)
    flat = np.concatenate([[0], drawn.ravel(order="F"), [not drawn.ravel(order="F")[-1]]])
    runs = np.diff(np.concatenate([[0], np.flatnonzero(np.diff(flat.astype(int))), [drawn.size]]))
    plain = {"size": [height, width], "counts": [int(run) for run in runs]}
    assert json.loads(segmentation_text(plain)) == plain
    decoded = masks.decode(masks.frPyObjects(json.loads(segmentation_text(plain)), height, width))
    assert (decoded == drawn).all()


@pytest.mark.parametrize(
    "value",
    [
        [],
        [[]],
        [[1, 2]],
        [[0.5, 1.25, 3, 4, 5e-7, 6]],
        [[-3.5, 2, 1e6, 3, 4, 5], [1, 2, 3, 4, 5, 6]],
        {"size": [2, 3], "counts": [1, 5]},
        {"size": [0, 0], "counts": []},
    ],
)
def test_odd_segmentations_are_kept(value):
    """Readers that draw them may fail, but it is the original that has them."""
    found = json.loads(segmentation_text(value))
    assert found == value
    assert json.dumps(found, sort_keys=True) == json.dumps(value, sort_keys=True)  # 3 is not 3.0


def test_an_absent_segmentation_is_an_empty_text():
    assert segmentation_text(None) == ""
    assert mask_size("") is None
    assert mask_size("[[1,2,3,4]]") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[[1, 2]]", "str, expected polygons"),
        (7, "int, expected polygons"),
        ([1, 2, 3, 4], "a polygon of int"),
        ([[1, 2, 3]], "a polygon of 3 numbers"),
        ([[1, "2"]], "not a number"),
        ([[True, 2]], "not a number"),
        ([[1, None]], "not a number"),
        ([[1, float("inf")]], "not a number"),
        ([[1, float("nan")]], "not a number"),
        ([[1, 1e10]], "not a number"),
        ({}, "the size \\[height, width\\] and the counts"),
        ({"size": [1, 1], "counts": [1], "x": 1}, "the size \\[height, width\\] and the counts"),
        ({"size": [1], "counts": [1]}, "the size \\[height, width\\]"),
        ({"size": [1, -1], "counts": [1]}, "two whole numbers"),
        ({"size": [1.0, 1], "counts": [1]}, "two whole numbers"),
        ({"size": [BILLION, BILLION], "counts": [BILLION**2]}, "a mask of 1,000,014,129 pixels"),
        ({"size": [10**9, 1], "counts": [10**9]}, "two whole numbers"),
        ({"size": [2, 3], "counts": [1, 4]}, "of 5 pixels, its size has 6"),
        ({"size": [2, 3], "counts": [1, 6]}, "of 7 pixels, its size has 6"),
        ({"size": [2, 3], "counts": [-1, 7]}, "counts that are not runs"),
        ({"size": [2, 3], "counts": [1.0, 5]}, "counts that are not runs"),
        ({"size": [2, 3], "counts": None}, "counts that are not runs"),
        ({"size": [2, 3], "counts": "15\n"}, "pycocotools does not write"),
        ({"size": [2, 3], "counts": "ooooooooooooooo"}, "pycocotools does not write"),
        ({"size": [2, 3], "counts": "1o"}, "end within a number"),
        ({"size": [2, 3], "counts": "?7"}, "counts that are not runs"),
    ],
)
def test_what_readers_cannot_read_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        segmentation_text(value)


def test_a_mask_of_many_pixels_takes_no_memory():
    """Ninety-nine million pixels are one run, and stay one."""
    tracemalloc.start()
    try:
        segmentation_text({"size": [9_900, 10_000], "counts": [99_000_000]})
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()
