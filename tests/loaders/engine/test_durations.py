"""Histograms of durations: percentiles within their stated error, for any measurements and however they are merged."""

import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loaders.engine.durations import BOUNDS_S, LARGEST_S, RELATIVE_ERROR, SMALLEST_S, Durations

SECONDS = st.lists(st.floats(SMALLEST_S, LARGEST_S), min_size=1, max_size=300)
MAX_BYTES = 12_000
"""Bound of a histogram as it is sent between processes, every bucket filled."""


def measured(seconds):
    found = Durations()
    for each in seconds:
        found.add(each)
    return found


def test_bounds_grow_by_less_than_twice_the_stated_error():
    ratios = np.diff(BOUNDS_S) / BOUNDS_S[:-1]
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (SMALLEST_S, LARGEST_S)
    assert ratios.min() > 0
    assert ratios.max() / (2 + ratios.max()) < RELATIVE_ERROR
    assert {1e-4, 2e-4, 5e-4, 0.001, 0.5, 1.0, 20.0} < set(BOUNDS_S)


@given(SECONDS, st.floats(0, 100))
@example([95001.0], 0.0)
def test_any_percentile_is_that_of_numpy_within_the_stated_error(seconds, percent):
    expected = np.percentile(seconds, percent, method="inverted_cdf")
    assert measured(seconds).percentile(percent) == pytest.approx(expected, rel=RELATIVE_ERROR)


@given(SECONDS, SECONDS)
def test_merged_histograms_are_those_of_all_measurements(ours, theirs):
    merged, both = measured(ours), measured(ours + theirs)
    merged.merge(pickle.loads(pickle.dumps(measured(theirs))))
    assert merged.counts == both.counts
    assert merged.sum_s == pytest.approx(sum(ours + theirs))
    assert merged.percentiles() == both.percentiles()
    later = merged.since(measured(ours))
    assert later.counts == measured(theirs).counts


@given(SECONDS)
def test_counts_up_to_a_bound_are_exact(seconds):
    bounds = [bound for bound in BOUNDS_S if f"{bound:e}"[0] in "125" and f"{bound:e}"[1:9] == ".000000"]
    found = measured(seconds)
    assert found.cumulative(bounds) == [sum(each <= bound for each in seconds) for bound in bounds]
    assert found.count == len(seconds)


def test_durations_beyond_the_range_count_as_its_ends():
    found = measured([0.0, 1e-9, 1e9])
    assert (found.percentile(0), found.percentile(50)) == (SMALLEST_S, SMALLEST_S)
    assert found.percentile(100) == pytest.approx(LARGEST_S, rel=RELATIVE_ERROR)
    assert found.sum_s == pytest.approx(1e9)


def test_nothing_measured_has_percentiles_of_0():
    assert Durations().percentiles() == {"p50": 0.0, "p90": 0.0, "p99": 0.0}


def test_the_size_of_a_histogram_is_bounded():
    found = measured(np.random.default_rng(0).lognormal(-3, 5, 20_000))
    assert len(found.counts) <= len(BOUNDS_S)
    assert len(pickle.dumps(measured(BOUNDS_S))) < MAX_BYTES


def test_a_copy_does_not_change():
    found = measured([0.1])
    copy = found.copy()
    found.add(0.2)
    assert (copy.count, found.count) == (1, 2)
