"""A few positions of a long list: different ones, and evenly spread however many are taken."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.spread import spread


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
