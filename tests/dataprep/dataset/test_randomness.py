"""A few positions of a long list: different ones, and evenly spread however many are taken."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.randomness import permutation, philox_words, spread


def test_permutations_equal_their_golden_vectors():
    """These numbers are in people's datasets: they never change, whatever NumPy is installed."""
    assert permutation(10, seed=0, purpose="build/train").tolist() == GOLDEN_10
    digest = hashlib.sha256(permutation(100_000, seed=7, purpose="x", epoch=3, pass_index=2).astype("<i8").tobytes())
    assert digest.hexdigest() == GOLDEN_100K
    assert [int(word) for word in philox_words(2, seed=0, purpose="build/train")] == GOLDEN_WORDS


@given(st.integers(0, 3000), st.integers(0, 2**63), st.text(max_size=8), st.integers(0, 5), st.integers(0, 5))
def test_permutation_has_every_number_once(count, seed, purpose, epoch, pass_index):
    found = permutation(count, seed=seed, purpose=purpose, epoch=epoch, pass_index=pass_index)
    assert sorted(found.tolist()) == list(range(count))


@pytest.mark.parametrize("other", [{"seed": 1}, {"purpose": "y"}, {"epoch": 1}, {"pass_index": 1}])
def test_every_part_of_the_key_changes_the_permutation(other):
    key = {"seed": 0, "purpose": "x", "epoch": 0, "pass_index": 0}
    assert not np.array_equal(permutation(100, **key), permutation(100, **(key | other)))


def test_a_longer_stream_begins_with_the_shorter():
    assert np.array_equal(philox_words(5, seed=1, purpose="x"), philox_words(50, seed=1, purpose="x")[:5])


GOLDEN_10 = [5, 0, 9, 7, 3, 2, 6, 4, 8, 1]
GOLDEN_100K = "a7e03f87e81d39fc8ba1589769d4f371eb71c10d36018bca856b63f4c94b29b6"
GOLDEN_WORDS = [2681806546386905693, 15729603930067336555]


@given(st.integers(0, 10**9), st.integers(0, 100))
def test_positions_are_different_and_inside(length, most):
    found = spread(length, most)
    assert len(found) == len(set(found)) == min(length, most)
    assert all(0 <= position < length for position in found)


@given(st.integers(1, 10**9), st.integers(1, 100), st.integers(1, 100))
def test_every_beginning_is_spread_evenly(length, most, taken):
    found = sorted(spread(length, most)[:taken])
    gaps = [after - before for before, after in pairwise([0, *found, length])]
    assert max(gaps) <= 3 * length / len(found) + 1
