"""Metadata files by which TFDS serves TFRecord shards: TFDS itself reads them back."""

import json
import re

import pytest

from dataprep.errors import UsageError
from dataprep.formats import tfds
from dataprep.formats.base import DatasetInfo


@pytest.fixture(scope="module")
def features_of_tfds():
    from tensorflow_datasets.core import features

    return features


def test_features_are_those_that_tfds_makes_of_its_own(features_of_tfds):
    made = tfds.features_dict({"image": tfds.image("jpeg"), "label": tfds.scalar("int64"), "text": tfds.text()})
    read = features_of_tfds.FeatureConnector.from_json(made)
    assert set(read) == {"image", "label", "text"}
    assert read["image"].shape == (None, None, 3)
    assert read["image"].dtype == "uint8"
    assert read["label"].dtype == "int64"
    assert isinstance(read["text"], features_of_tfds.Text)


def test_splits_are_in_the_order_of_their_names_and_numbers_are_strings():
    facts = DatasetInfo(
        name="some_images",
        description="Images.",
        citation="@misc{x}",
        licence="CC0",
        classes=(),
        shard_samples={"val": (3,), "train": (2**40, 1)},
        split_bytes={"val": 9, "train": 2**50},
    )
    info = tfds.dataset_info(facts, filepath_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}")
    assert [split["name"] for split in info["splits"]] == ["train", "val"]
    assert info["splits"][0]["shardLengths"] == [str(2**40), "1"]
    assert info["splits"][0]["numBytes"] == str(2**50)
    assert (info["fileFormat"], info["redistributionInfo"]) == ("tfrecord", {"license": "CC0"})


def test_a_metadata_file_is_the_same_for_the_same_content():
    first, second = {"b": 1, "a": [2]}, {"a": [2], "b": 1}
    assert tfds.json_bytes(first) == tfds.json_bytes(second)
    assert json.loads(tfds.json_bytes(first)) == first
    assert tfds.json_bytes(first).endswith(b"}\n")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"name": "../up"}, "`tfds_name`: got '../up', expected lower-case letters, digits and underscores"),
        ({"val": "val/x"}, "`val_name`: got 'val/x', expected"),
        ({"version": "5.1"}, "`tfds_version`: got '5.1', expected a version such as 5.1.0"),
    ],
)
def test_names_that_could_lead_elsewhere_are_refused(names, text):
    with pytest.raises(UsageError, match=re.escape(text)):
        tfds.TfdsNames(**names)
