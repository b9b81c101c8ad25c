"""TFDS's description of TFRecords that img2dataset wrote."""

import json

import pytest

from dataprep.dataset.records import SplitManifest
from dataprep.errors import FormatError
from dataprep.formats.img2dataset_tfds import DESCRIPTION, MAX_SHARDS, escaped, grown, is_ours, numbered, texts_in
from dataprep.formats.tfds import features_dict, json_bytes, scalar, text

ENTRY = {"bytes": 1, "sha256": ""}


def split_of(*shards):
    """Return a split of shards, each a name and its samples."""
    return SplitManifest(
        name="train",
        samples=sum(samples for _, samples in shards),
        num_bytes=70,
        shards=tuple({"file": name, "samples": n, "bytes": 1, "sha256": "", "crc32c": ""} for name, n in shards),
        class_counts=(),
        repeats={"count": 1, "stored": 1},
        repaired={},
        rejected={},
        index={"file": "index/train.parquet", **ENTRY},
        events={"file": "index/train-events.parquet", **ENTRY},
    )


def info_of(*lengths):
    split = {
        "name": "train",
        "filepathTemplate": "{SHARD_INDEX}.{FILEFORMAT}",
        "shardLengths": [str(n) for n in lengths],
    }
    return json_bytes({"description": DESCRIPTION, "splits": [split | {"numBytes": "9"}]})


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


def test_adding_shards_to_a_description_is_idempotent():
    more = split_of(("00000.tfrecord", 99), ("00001.tfrecord", 5))
    once = grown(info_of(3), more)
    (split,) = json.loads(once)["splits"]
    assert (split["shardLengths"], split["numBytes"]) == (["3", "5"], "70")
    assert grown(once, more) == once


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"splits": [{"name": "val"}]}', b'{"splits": [{"name": "train"}]}']
)
def test_other_descriptions_are_refused_when_shards_are_added(data):
    with pytest.raises(FormatError, match=r"^dataset_info.json: not as adopted \(.*; dataprep adopt --overwrite"):
        grown(data, split_of(("00000.tfrecord", 1)))


def test_texts_among_features_are_named():
    features = features_dict({"caption": text(), "width": scalar("int64"), "url": text()})
    assert texts_in(json_bytes(features)) == {"caption", "url"}
    with pytest.raises(FormatError, match=r"^features.json: not as adopted"):
        texts_in(b"{}")


def test_only_descriptions_of_dataprep_are_recognised_as_its_own():
    assert is_ours(info_of(3))
    for data in (b"", b"[]", b"{}", b'{"description": "x"}', b"[" * 100_000):
        assert not is_ours(data)
