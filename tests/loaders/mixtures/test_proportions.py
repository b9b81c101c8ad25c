"""Shares of datasets: exact to within one sample in every window of 1,000 positions, and in the long run."""

import hashlib
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.mixtures.proportions import MAX_TOTAL, Proportions, whole_weights
from tests.support.mixing import Circle, compare_windows

WEIGHTS = st.lists(st.integers(1, 5) | st.integers(1, 10**8), min_size=1, max_size=12).map(tuple)
STARTS = st.integers(0, 3000) | st.integers(0, 10**15)


@given(st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_every_window_of_a_thousand_positions_has_each_share_to_within_one_sample(rng):
    compare_windows(rng)


def test_shares_of_whole_thousandths_are_met_in_every_window_without_any_difference():
    chosen = Proportions((700, 250, 50)).between(10**9, 10**9 + 3000)
    for start in range(0, 2001, 7):
        assert np.bincount(chosen[start : start + 1000]).tolist() == [700, 250, 50]


@pytest.mark.parametrize("weights", [(1, 1, 1), (2, 3, 5, 7), (999, 1), (1, 2500), (1, 1, 3000)])
def test_shares_are_exact_in_the_long_run(weights):
    total = sum(weights)
    positions = 10**6 * total  # a turn of the circle
    assert Proportions(weights).counts(positions) == tuple(10**6 * weight for weight in weights)


@given(WEIGHTS, STARTS, st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_positions_follow_the_rule_in_fractions_of_the_circle(weights, first, count):
    proportions, circle = Proportions(weights), Circle(list(range(len(weights))), weights)
    expected = [circle.at(position) for position in range(first, first + count)]
    assert proportions.between(first, first + count).tolist() == expected
    assert [proportions.at(position) for position in range(first, first + count)] == expected


@given(WEIGHTS, STARTS, st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_the_positions_before(weights, first, count):
    proportions = Proportions(weights)
    found = np.bincount(proportions.between(first, first + count), minlength=len(weights))
    differences = zip(proportions.counts(first + count), proportions.counts(first), strict=True)
    assert [after - before for after, before in differences] == found.tolist()
    assert sum(proportions.counts(first)) == first


@given(WEIGHTS, st.integers(0, 200), st.data())
@settings(max_examples=60, deadline=None)
def test_the_position_of_a_sample_is_found(weights, sample, data):
    proportions, dataset = Proportions(weights), data.draw(st.integers(0, len(weights) - 1))
    position = proportions.position_of(dataset, sample)
    assert proportions.at(position) == dataset
    assert proportions.counts(position)[dataset] == sample


def test_batches_differ_from_their_shares_by_less_than_three_samples():
    for weights in itertools.product([1, 2, 5, 31], repeat=3):
        chosen = Proportions(weights).between(0, 256 * 40).reshape(40, 256)
        for dataset, weight in enumerate(weights):
            share = Fraction(256 * weight, sum(weights))
            assert max(abs(int((batch == dataset).sum()) - share) for batch in chosen) < 3


def test_the_proportions_equal_the_golden_vectors():
    """These never change: a run resumed by a later version continues with the same samples."""
    assert "".join(map(str, Proportions((3, 2, 1)).between(0, 40).tolist())) == GOLDEN
    chosen = Proportions((1281167, 118287, 7)).between(10**10, 10**10 + 5000)
    assert hashlib.sha256(bytes(chosen.tolist())).hexdigest()[:32] == GOLDEN_LARGE


GOLDEN = "0100110210010021021001002102100100210010"
GOLDEN_LARGE = "5e01107cc9ec8fdcfaf4ff01221f8b56"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5).filter(any))
def test_whole_weights_keep_their_ratios(weights):
    whole = whole_weights(weights)
    assert [Fraction(each, sum(whole)) for each in whole] == [Fraction(each, sum(weights)) for each in weights]
    assert np.gcd.reduce(whole) == 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((), "weights must be whole numbers of 1 or more, got "),
        ((3, 0), "weights must be whole numbers of 1 or more, got "),
        ((MAX_TOTAL, 1), "the weights have the sum 4,294,967,297 as whole numbers without a common divisor, expected "),
    ],
)
def test_impossible_weights_are_refused(weights, message):
    with pytest.raises(UsageError, match=message):
        Proportions(weights)


def test_the_largest_weights_are_computed_without_overflow():
    weights = (MAX_TOTAL - 5, 2, 3)
    circle = Circle([0, 1, 2], weights)
    first = 10**15
    assert Proportions(weights).between(first, first + 1500).tolist() == [circle.at(first + i) for i in range(1500)]
