import json
from dataclasses import asdict

import pytest

from dataprep.errors import FormatError
from dataprep.manifest import MANIFEST, manifest_bytes, read_events, read_manifest
from dataprep.storage import open_storage
from tests.support.finished import build_here


@pytest.fixture(scope="module")
def dataset(originals, tmp_path_factory):
    return open_storage(build_here("imagenet", originals["imagenet"], tmp_path_factory.mktemp("m") / "out", "tfrecord"))


def changed(dataset, tmp_path, **fields):
    """A dataset that has only a manifest, with some fields changed."""
    document = json.loads(dataset.read(MANIFEST)) | fields
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    return open_storage(str(tmp_path))


def test_round_trip(dataset):
    manifest = read_manifest(dataset)
    assert manifest_bytes(manifest) == dataset.read(MANIFEST)
    assert json.loads(manifest_bytes(manifest)) == json.loads(json.dumps(asdict(manifest)))


def test_it_says_what_was_done(dataset):
    manifest = read_manifest(dataset)
    train, val = manifest.splits
    assert (manifest.name, manifest.format, manifest.checked, manifest.revision) == (
        "imagenet",
        "tfrecord",
        "decode",
        1,
    )
    assert (train.name, val.name) == ("train", "val")
    assert train.samples + sum(train.rejected.values()) == 120
    assert sum(train.class_counts) == train.samples == sum(shard["samples"] for shard in train.shards)
    assert train.num_bytes == sum(shard["bytes"] for shard in train.shards)
    assert train.repeats == {"count": 1, "stored": 1}
    events = read_events(dataset, "train")
    assert len(events) == sum(train.repaired.values()) + sum(train.rejected.values())
    assert {file["file"] for file in manifest.files} == {"dataset_info.json", "features.json", "label.labels.txt"}


def test_it_holds_no_time_and_no_absolute_path(dataset, originals):
    text = dataset.read(MANIFEST).decode()
    assert dataset.url not in text
    assert str(originals["imagenet"]) not in text


def test_absent(tmp_path):
    assert read_manifest(open_storage(str(tmp_path))) is None


def test_a_later_minor_version_with_more_fields_is_read(dataset, tmp_path):
    assert read_manifest(changed(dataset, tmp_path, schema_version="1.7", news=1)).schema_version == "1.7"


def test_an_unknown_major_version_is_refused(dataset, tmp_path):
    with pytest.raises(FormatError, match=r"dataset\.json: schema version 2\.0, this dataprep reads 1\.1; update"):
        read_manifest(changed(dataset, tmp_path, schema_version="2.0"))


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"schema_version": "1.0"}', "\x00\xff"])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match=r"dataset\.json: "):
        read_manifest(open_storage(str(tmp_path)))
