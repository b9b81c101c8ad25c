"""TFDS's description of TFRecords that img2dataset wrote."""

import pytest

from dataprep.errors import FormatError
from dataprep.formats.img2dataset_tfds import DESCRIPTION, MAX_SHARDS, escaped, is_ours, numbered
from dataprep.formats.tfds import json_bytes


def test_missing_numbers_are_shards_of_no_samples():
    found = numbered([("a{b}/000000.tfrecord", 3), ("a{b}/000002.tfrecord", 4)])
    assert found.lengths == [3, 0, 4]
    assert found.template == "a{{b}}/0{SHARD_INDEX}.{FILEFORMAT}"
    assert escaped("{x}") == "{{x}}"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["0.tfrecord"], "expected numbers of one width, 5 digits or more"),
        (["00000.tfrecord", "000001.tfrecord"], "expected numbers of one width"),
        (["a/00000.tfrecord", "b/00001.tfrecord"], "b/00001.tfrecord, expected numbers of one width"),
        (["00000.tar"], "00000.tar, expected names such as 00000.tfrecord"),
        (["train.tfrecord"], "train.tfrecord, expected names such as"),
        ([f"{MAX_SHARDS}.tfrecord"], "shard number 1,000,000, expected less than 1,000,000"),
    ],
)
def test_names_that_tfds_cannot_make_are_refused(names, problem):
    with pytest.raises(FormatError, match=problem):
        numbered([(name, 1) for name in names])


def test_only_descriptions_of_dataprep_are_recognised_as_its_own():
    assert is_ours(json_bytes({"description": DESCRIPTION}))
    for data in (b"", b"[]", b"{}", b'{"description": "x"}', b"[" * 100_000):
        assert not is_ours(data)
