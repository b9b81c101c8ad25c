"""Names as 64-bit hashes: the same on every machine, and enough to find repeated and known names."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.hashes import NO_HASHES, name_hash, name_hashes, position_of, repeated
from tests.support.samples import examples

names = st.lists(st.text(st.characters(), max_size=20), max_size=30)


def test_hashes_equal_their_golden_vectors():
    assert name_hash("") == 0xB4B2797457A0A6E4
    assert name_hash("train/n01440764_18") == 0x5E0068CF612E4F2C
    assert name_hash("\udce9") != name_hash("é")


@examples
@given(names)
def test_every_name_has_its_hash_in_order(found: list[str]):
    hashes = name_hashes(found)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [name_hash(name) for name in found]


@examples
@given(names)
def test_repeated_names_are_found_once_each(found: list[str]):
    expected = sorted(name_hash(name) for name, count in Counter(found).items() if count > 1)
    assert repeated(np.sort(name_hashes(found))).tolist() == expected


@examples
@given(names, st.text(max_size=20))
def test_the_position_of_a_name_is_found_or_none(found: list[str], name: str):
    hashes = np.sort(name_hashes(found))
    for each in (*found, name):
        position = position_of(hashes, each)
        assert (position is not None) == (each in found)
        assert position is None or hashes[position] == name_hash(each)
    assert position_of(NO_HASHES, name) is None
