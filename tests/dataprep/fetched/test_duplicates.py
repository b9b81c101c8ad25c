"""Duplicates: the first by key stays, within a shard; across shards the report does not depend on the cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UsageError
from dataprep.fetched.duplicates import DuplicatePolicy, duplicates_of, find_duplicates


def test_exact_duplicates_follow_the_first():
    duplicates = list(duplicates_of(["a", "b", "a", "a"], [1, 2, 3, 4], DuplicatePolicy(exact="drop")))
    assert [(duplicate.position, duplicate.first, duplicate.action, duplicate.reason) for duplicate in duplicates] == [
        (2, 0, "drop", "exact duplicate"),
        (3, 0, "drop", "exact duplicate"),
    ]


def test_perceptual_duplicates_are_measured_from_the_first_that_stays():
    """0b0 and 0b1 differ in one bit, 0b11 from 0b0 in two: it is no duplicate of the dropped 0b1."""
    policy = DuplicatePolicy(perceptual="drop", max_distance=1)
    duplicates = list(duplicates_of(["a", "b", "c", "d"], [0b0, 0b1, 0b11, 2**63], policy))
    assert [(duplicate.position, duplicate.first) for duplicate in duplicates] == [(1, 0), (3, 0)]
    assert not list(duplicates_of(["a", "b"], [0, 1], DuplicatePolicy(perceptual="drop")))


def test_each_kind_of_duplicate_has_its_own_action():
    policy = DuplicatePolicy(exact="drop", perceptual="report")
    duplicates = list(duplicates_of(["a", "a", "b"], [7, 7, 7], policy))
    assert [(duplicate.position, duplicate.action) for duplicate in duplicates] == [(1, "drop"), (2, "report")]
    assert not DuplicatePolicy().looks


def test_equal_files_are_dropped_also_where_they_look_like_an_image_that_is_only_reported():
    """`b` looks like `a` and stays; the second `b` has the bytes of an image that stays."""
    policy = DuplicatePolicy(exact="drop", perceptual="report")
    duplicates = list(duplicates_of(["a", "b", "b", "b"], [7, 7, 7, 7], policy))
    assert [(duplicate.position, duplicate.first, duplicate.reason) for duplicate in duplicates] == [
        (1, 0, "perceptual duplicate"),
        (2, 1, "exact duplicate"),
        (3, 1, "exact duplicate"),
    ]


@pytest.mark.parametrize("options", [{"exact": "delete"}, {"perceptual": ""}, {"max_distance": 64}])
def test_impossible_policies_are_refused(options):
    with pytest.raises(UsageError, match=r"expected one of|must be"):
        DuplicatePolicy(**options)


@given(
    hashes=st.lists(st.integers(0, 12).map(lambda small: small * 2**60 + small), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    rows_in_memory=st.integers(1, 70),
)
@settings(deadline=None, derandomize=True)
def test_the_report_over_all_shards_does_not_depend_on_the_cut(hashes, cuts, rows_in_memory):
    words = np.array([value % 2**64 for value in hashes], np.uint64)
    numbers = np.arange(len(words), dtype=np.int64)
    bounds = sorted({0, len(words), *(cut for cut in cuts if cut < len(words))})

    def shards():
        return ((numbers[start:stop], words[start:stop]) for start, stop in pairwise(bounds))

    first: dict[int, int] = {}
    ends = [(number, first.setdefault(word, number)) for number, word in enumerate(words.tolist())]
    expected = [(number, before) for number, before in ends if number != before]
    assert sorted(find_duplicates(shards, len(words), rows_in_memory)) == expected
