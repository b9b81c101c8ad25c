"""Runs of masks are those that pycocotools decodes, compressed or not; tests of sources hold what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as masks

from dataprep.dataset.run_lengths import runs_of


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools with NumPy 2
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.02, 0.5, 1.0]))
def test_runs_of_compressed_counts_draw_the_mask(height, width, seed, share):
    drawn = np.random.default_rng(seed).random((height, width)) < share
    counts = masks.encode(np.asfortranarray(drawn, np.uint8))["counts"].decode()
    runs = runs_of({"size": [height, width], "counts": counts})
    assert runs_of({"size": [height, width], "counts": runs}) == runs
    values = np.repeat(np.arange(len(runs)) % 2, runs)
    assert (drawn == values.reshape(width, height).T).all()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"size": [2, 3], "counts": [1, 6]}, "of 7 pixels, its size has 6"),
        ({"size": [2, 3], "counts": "1o"}, "end within a number"),
        ({"size": [2, 3]}, "expected a run-length encoding"),
    ],
)
def test_other_runs_are_refused(value, words):
    with pytest.raises(ValueError, match=words):
        runs_of(value)
