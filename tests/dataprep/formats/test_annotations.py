"""Annotations in records of both packed formats: read back exactly, with the same types, and damage is found."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.features import annotations_json
from dataprep.dataset.records import Sample
from dataprep.errors import FormatError
from dataprep.formats import FORMATS
from dataprep.formats.base import DatasetInfo
from dataprep.formats.example import LEN_1, features_of, message
from dataprep.formats.fields import read_fields
from dataprep.formats.tfrecord import example_entries, example_values, tfds_features
from tests.support.annotations import FEATURES, VALUES, annotated_values
from tests.support.interop import read_features_with_tfds
from tests.support.own_data import picture
from tests.support.samples import CLASSES, accepted, examples, mutations, read_samples, samples, write_shard

PACKED = ("webdataset", "tfrecord")
SAMPLE = Sample("k", b"image", 1, CLASSES[1], 3, 4, 1, annotations_json(FEATURES, VALUES))


def written(fmt, shard, *, has_classes=True):
    return write_shard(FORMATS[fmt], shard, has_classes=has_classes, features=FEATURES)


def read(fmt, data, *, has_classes=True):
    return read_samples(FORMATS[fmt], data, classes=CLASSES if has_classes else (), features=FEATURES)


@pytest.mark.parametrize("fmt", PACKED)
@pytest.mark.parametrize("has_classes", [True, False])
@examples
@given(data=st.data())
def test_shards_come_back(fmt, has_classes, data):
    shard = [
        sample._replace(annotations=annotations_json(FEATURES, data.draw(annotated_values())))
        for sample in data.draw(st.lists(samples(has_classes=has_classes, max_image_bytes=600), max_size=3))
    ]
    assert read(fmt, written(fmt, shard, has_classes=has_classes)[0], has_classes=has_classes) == shard


@pytest.mark.parametrize("fmt", PACKED)
@examples
@given(data=st.data())
def test_what_is_accepted_is_what_the_writer_writes(fmt, data):
    whole, _ = written(fmt, [SAMPLE, SAMPLE._replace(key="l")])
    accepted(FORMATS[fmt], data.draw(mutations(whole)), classes=CLASSES, features=FEATURES)


@pytest.mark.parametrize("fmt", PACKED)
@examples
@given(values=annotated_values())
def test_fields_have_the_same_types_in_both_formats(fmt, values):
    data, (place,) = written(fmt, [SAMPLE._replace(annotations=annotations_json(FEATURES, values))])
    record = data[place.record_offset : place.record_offset + place.record_bytes]
    assert read_fields(fmt, record, list(FEATURES), FEATURES) == values
    assert read_fields(fmt, record, ("height",), FEATURES) == {"height": 3}


@pytest.mark.parametrize("fmt", PACKED)
@pytest.mark.parametrize("annotations", [b"", b"{}", b"{", b'{"caption":7}'])
def test_samples_without_their_annotations_are_not_written(fmt, annotations):
    with pytest.raises(FormatError):
        written(fmt, [SAMPLE._replace(annotations=annotations)])


@pytest.mark.parametrize("fmt", PACKED)
def test_shards_without_annotations_are_refused_where_some_are_due(fmt):
    data, _ = write_shard(FORMATS[fmt], [SAMPLE._replace(annotations=b"")], has_classes=True)
    with pytest.raises(FormatError):
        read(fmt, data)


def test_features_of_an_example_are_read_as_they_are_declared():
    entries = example_entries(FEATURES, VALUES)
    assert {name.decode() for name in entries} >= {"objects/bbox", "objects/category", "score"}
    whole = message(LEN_1, b"".join(entries.values()))

    def read_bytes(offset: int, size: int) -> bytes:
        return whole[offset : offset + size]

    found = features_of(read_bytes, 0, len(whole))
    assert example_values(FEATURES, read_bytes, found) == VALUES
    with pytest.raises(FormatError, match="'score' is absent"):
        example_values(FEATURES, read_bytes, {name: value for name, value in found.items() if name != "score"})
    with pytest.raises(FormatError, match="'score' is of another kind"):
        example_values(FEATURES, read_bytes, found | {"score": found["year"]})
    with pytest.raises(FormatError, match="'aa' has 1 values, expected lists of 2"):
        example_values(FEATURES, read_bytes, found | {"aa": found["year"]})


def test_tfds_is_told_of_every_feature():
    described = dict(tfds_features(FEATURES))
    assert list(described) == sorted(FEATURES)
    assert described["score"]["tensor"] == {"dtype": "float64", "encoding": "bytes", "shape": {}}
    assert described["tags"]["sequence"]["length"] == "-1"
    assert described["objects"]["featuresDict"]["features"]["bbox"]["tensor"]["shape"] == {"dimensions": ["-1", "4"]}
    features = json.loads(metadata_files(1, 1, ())["features.json"])
    assert set(features["featuresDict"]["features"]) == {*FEATURES, "height", "image", "key", "orientation", "width"}


def metadata_files(samples, num_bytes, classes):
    info = DatasetInfo(
        name="pets", description="", citation="", licence="", classes=classes, shard_samples={"train": (samples,)},
        split_bytes={"train": num_bytes}, features=FEATURES,
    )  # fmt: skip
    return FORMATS["tfrecord"].metadata_files(info)


def test_tfds_reads_values_of_every_kind(tmp_path):
    empty = VALUES | {"aa": [], "tags": [], "objects": {"bbox": [], "category": [], "name": [], "points": []}}
    shard = [
        Sample(f"k{number}", picture(number), 1, "b", 16, 24, 1, annotations_json(FEATURES, values))
        for number, values in enumerate([VALUES, empty])
    ]
    data, _ = written("tfrecord", shard)
    files = metadata_files(2, len(data), ("a", "b")) | {FORMATS["tfrecord"].shard_file("pets", "train", 0, 1): data}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = read_features_with_tfds(tmp_path)
    for example, values in zip(found, [VALUES, empty], strict=True):
        assert {name: example[name] for name in FEATURES} == _as_bytes(values)


def _as_bytes(value):
    """Texts as TFDS has them."""
    if isinstance(value, dict):
        return {name: _as_bytes(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_bytes(item) for item in value]
    return value.encode() if isinstance(value, str) else value
