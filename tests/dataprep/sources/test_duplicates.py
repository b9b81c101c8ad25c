"""Equal names among any number of references are found, whatever their hashes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.dataset import spill
from dataprep.dataset.records import SampleRef
from dataprep.errors import SourceError
from dataprep.sources import keys
from dataprep.sources.keys import keys_in_lower_case, refuse_duplicates, same_names


def test_both_images_of_a_duplicate_key_are_named():
    refs = [SampleRef(f"k{i}", "x.zip", i, 1) for i in range(50)] + [SampleRef("K7", "y.zip", 99, 1)]
    words = (
        r"^train: two images have the key (k7|K7), ignoring case: 'k7' in 'x.zip' at byte 7 and "
        r"'K7' in 'y.zip' at byte 99"
    )
    with pytest.raises(SourceError, match=words):
        refuse_duplicates("train", refs)
    refuse_duplicates("train", refs[:-1])


@pytest.fixture
def small_parts(monkeypatch):
    """Every table of a few rows is on the disk, and in several parts."""
    monkeypatch.setattr(spill, "MEMORY_BYTES", 64)
    monkeypatch.setattr(spill, "PART_BYTES", 64)


def pairs(keys):
    found = same_names([SampleRef(key, "x.zip", offset, 1) for offset, key in enumerate(keys)], keys_in_lower_case)
    return sorted((first.offset, second.offset, name) for first, second, name in found)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text("abAB", max_size=3), max_size=60))
def test_each_equal_name_comes_with_the_first_of_its_name(small_parts, keys):
    first, expected = {}, []
    for offset, key in enumerate(map(str.lower, keys)):
        if first.setdefault(key, offset) != offset:
            expected.append((first[key], offset, key))
    assert pairs(keys) == sorted(expected)


def test_equal_hashes_of_different_names_are_no_duplicates(monkeypatch):
    monkeypatch.setattr(keys, "hash", lambda name: len(name) - 2, raising=False)
    assert pairs(["a", "b", "cc", "dd", "CC", "e"]) == [(2, 4, "cc")]


def test_more_equal_hashes_than_are_compared_at_once_are_all_compared(monkeypatch):
    monkeypatch.setattr(keys, "COMPARED_HASHES", 3)
    names = [f"k{number}" for number in range(10)]
    assert pairs(names + names) == sorted((number, number + 10, f"k{number}") for number in range(10))
