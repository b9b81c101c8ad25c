"""Names as 64-bit hashes: the same on every machine, and enough to find repeated and known names."""

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset import hashes
from dataprep.dataset.hashes import Prints, also_in, name_hash, name_hashes, position_of, repeated, shared_images
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
    assert position_of(np.empty(0, np.uint64), name) is None


IMAGES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2**32 - 1) | st.integers(0, 2)), max_size=20)


def prints_of(*batches):
    found = Prints()
    for images in batches:
        sums = pa.array([crc32c for _, crc32c in images], pa.uint32())
        found.add(np.array([num_bytes for num_bytes, _ in images], np.int64), sums)
    return found


@given(IMAGES, IMAGES, IMAGES)
def test_images_are_found_whose_size_and_checksum_are_in_the_other_split(train, more, val):
    both = {"val": prints_of(val), "train": prints_of(train, more)}
    expected = [position for position, image in enumerate(val) if image in {*train, *more}]
    found = list(shared_images(both))
    assert [(each.split, each.other, each.positions.tolist()) for each in found] == (
        [("val", "train", expected)] if expected else []
    )


def test_every_two_splits_are_compared():
    splits = {name: prints_of([(9, 5)]) for name in ("test", "train", "val")}
    assert [each[:2] for each in shared_images(splits)] == [("test", "train"), ("val", "train"), ("val", "test")]


def test_without_checksums_nothing_is_found_and_memory_is_bounded(monkeypatch):
    unknown = Prints()
    unknown.add(np.array([9], np.int64), pa.array([None], pa.uint32()))
    assert list(shared_images({"train": unknown, "val": unknown})) == []
    monkeypatch.setattr(hashes, "LOOKED_AT", 2)
    assert len(prints_of([(1, 1)], [(2, 2), (3, 3)], [(4, 4)]).numbers()) == 2


def test_shared_images_are_counted_in_words():
    assert also_in("val", "train", 1) == "1 image of val is also in train"
    assert also_in("val", "train", 2000) == "2,000 images of val are also in train"
