"""TFRecords of img2dataset described to TFDS; that TFDS reads them, test_img2dataset.py shows."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dataprep.adoption.find import Found, FoundShard
from dataprep.adoption.labels import ShardLabels
from dataprep.adoption.shards import ReadShard
from dataprep.adoption.tfds import FeatureShape, describe
from dataprep.dataset.records import Event
from dataprep.formats.example import BYTES, FLOATS, INTEGERS
from dataprep.formats.tfds import DATASET_INFO, FEATURES

CAPTION, WIDTH = FeatureShape("caption", BYTES, True), FeatureShape("width", INTEGERS, True)


def found(*names):
    shards = tuple(FoundShard("train", number, name, 100, "", None) for number, name in enumerate(names))
    return Found(kind="img2dataset", format="tfrecord", name="CC 3M!", licence="CC BY 4.0", shards=shards)


def read(index, features, *, samples=2, events=0):
    """Return what a shard holds."""
    return ReadShard(
        index=index,
        rows_file=Path("none"),
        samples=samples,
        image_bytes=0,
        key_hashes=np.empty(0, np.uint64),
        labels=Counter(),
        kind=ShardLabels(),
        fields=Counter(),
        events=[Event("a", "rejected", "empty", "")] * events,
        features=Counter(features),
        counts=None,
        problem="",
    )


def test_features_of_one_kind_in_all_records_are_described():
    shapes = {CAPTION: 3, WIDTH: 3, FeatureShape("similarity", FLOATS, True): 3, FeatureShape("jpg", BYTES, True): 3}
    lists = {FeatureShape("tags", BYTES, False): 1, FeatureShape("tags", BYTES, True): 2}
    described = describe(found("00000.tfrecord"), [read(0, shapes | lists, events=1)], "")
    assert described.remarks == ()
    info = json.loads(described.files[DATASET_INFO])
    assert (info["name"], info["redistributionInfo"]) == ("cc_3m", {"license": "CC BY 4.0"})
    (split,) = info["splits"]
    assert (split["shardLengths"], split["numBytes"]) == (["3"], "100")  # rejected images are records, too
    features = json.loads(described.files[FEATURES])["featuresDict"]["features"]
    classes = {name: feature["pythonClassName"].rpartition(".")[2] for name, feature in features.items()}
    assert classes == {"caption": "Text", "width": "Scalar", "similarity": "Scalar", "jpg": "Image", "tags": "Tensor"}


@pytest.mark.parametrize(
    "shapes", [{WIDTH: 3, FeatureShape("width", BYTES, True): 1}, {WIDTH: 3}, {FeatureShape("width", 0, True): 4}]
)
def test_feature_that_is_absent_or_of_several_kinds_is_left_out(shapes):
    described = describe(found("00000.tfrecord"), [read(0, {CAPTION: 4} | shapes, samples=4)], "")
    assert described.remarks == ("TFDS cannot read width: absent in some records, or of several kinds",)
    assert list(json.loads(described.files[FEATURES])["featuresDict"]["features"]) == ["caption"]


def test_webp_is_described_as_bytes():
    described = describe(found("00000.tfrecord"), [read(0, {FeatureShape("webp", BYTES, True): 2})], "")
    assert described.remarks == ("TFDS decodes no WebP: its feature webp gives the images' bytes",)


def test_data_elsewhere_are_named_with_their_folder():
    described = describe(found("00000.tfrecord", "00002.tfrecord"), [read(0, {}), read(1, {})], "/data/{x}/")
    (split,) = json.loads(described.files[DATASET_INFO])["splits"]
    assert split["filepathTemplate"] == "/data/{{x}}/{SHARD_INDEX}.{FILEFORMAT}"
    assert split["shardLengths"] == ["2", "0", "2"]


def test_names_that_tfds_cannot_make_are_not_described():
    described = describe(found("0.tfrecord"), [read(0, {CAPTION: 2})], "")
    assert described.files == {}
    assert described.remarks == ("TFDS cannot read it: 0.tfrecord, expected numbers of one width, 5 digits or more",)
