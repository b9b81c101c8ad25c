"""What becomes of a user's own pictures, however they were found: the share of train that becomes val."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.sources.base import OwnData
from dataprep.sources.pictures import in_val
from tests.support.samples import examples


def chosen(texts, fraction, seed=0):
    own = OwnData(name="pets", val_fraction=fraction, split_seed=seed)
    return {text for text in texts if in_val(own, text)}


@examples
@given(st.sets(st.text(max_size=5), max_size=30), st.sets(st.text(max_size=5), max_size=30), st.floats(0, 0.99))
def test_pictures_that_are_added_move_no_others(before, added, fraction):
    assert chosen(before, fraction) == chosen(before | added, fraction) & before


@examples
@given(st.floats(0, 0.99), st.floats(0, 0.99))
def test_a_larger_share_keeps_what_a_smaller_one_has(one, other):
    texts = [str(number) for number in range(100)]
    assert chosen(texts, min(one, other)) <= chosen(texts, max(one, other))


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_share_is_about_as_large_as_asked_for(fraction, seed):
    count = 20_000
    found = len(chosen([f"cats/{number}" for number in range(count)], fraction, seed))
    assert abs(found - count * fraction) < 5 * math.sqrt(count * fraction * (1 - fraction))


def test_another_seed_chooses_others():
    texts = [str(number) for number in range(200)]
    assert chosen(texts, 0.5, 0) != chosen(texts, 0.5, 1)
