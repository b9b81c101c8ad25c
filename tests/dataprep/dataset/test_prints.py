"""Images with the same bytes in two splits are found by size and CRC32C; train is the split that they are also in."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset import prints
from dataprep.dataset.prints import Prints, also_in, shared_images

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
    monkeypatch.setattr(prints, "LOOKED_AT", 2)
    assert len(prints_of([(1, 1)], [(2, 2), (3, 3)], [(4, 4)]).numbers()) == 2


def test_shared_images_are_counted_in_words():
    assert also_in("val", "train", 1) == "1 image of val is also in train"
    assert also_in("val", "train", 2000) == "2,000 images of val are also in train"
