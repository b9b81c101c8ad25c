"""Clauses about files that are not as the manifest lists them."""

import json
import tracemalloc
from dataclasses import asdict, replace

import pytest

from dataprep.dataset.index import read_events
from dataprep.dataset.manifest import MANIFEST, first_faults, manifest_bytes, read_manifest, size_faults
from dataprep.errors import FormatError
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


def test_manifest_is_read_back_with_the_same_bytes(dataset):
    manifest = read_manifest(dataset)
    assert manifest_bytes(manifest) == dataset.read(MANIFEST)
    omitted = {"features": {}, "converted_from": "", "changes": []}
    assert json.loads(manifest_bytes(manifest)) | omitted == json.loads(json.dumps(asdict(manifest)))


def test_manifest_records_what_the_build_did(dataset):
    manifest = read_manifest(dataset)
    train, val = manifest.splits
    described = manifest.name, manifest.format, manifest.checked, manifest.revision, train.name, val.name
    assert described == ("imagenet", "tfrecord", "decode", 1, "train", "val")
    assert train.samples + sum(train.rejected.values()) == 120
    assert sum(train.class_counts) == train.samples == sum(shard["samples"] for shard in train.shards)
    assert train.num_bytes == sum(shard["bytes"] for shard in train.shards)
    assert train.repeats == {"count": 1, "stored": 1}
    events = read_events(dataset, "index/train-events.parquet")
    assert len(events) == sum(train.repaired.values()) + sum(train.rejected.values())
    assert {file["file"] for file in manifest.files} == {"dataset_info.json", "features.json", "label.labels.txt"}


def test_manifest_holds_no_time_and_no_absolute_path(dataset, originals):
    text = dataset.read(MANIFEST).decode()
    assert dataset.url not in text
    assert str(originals["imagenet"]) not in text


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"options": {"x": [[]] * 4_000_000}}, r"\$\.options: 16,000,007 bytes, expected at most 1,048,576"),
        ({"unknown": [[]] * 4_000_000, "revision": "1"}, r"Expected `int`, got `str` - at `\$\.revision`"),
    ],
    ids=["options", "a fault elsewhere"],
)
def test_values_without_types_take_no_multiple_of_their_size(dataset, tmp_path, fields, fault):
    hostile = changed(dataset, tmp_path, **fields)
    tracemalloc.start()
    with pytest.raises(FormatError, match=fault):
        read_manifest(hostile)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 * (tmp_path / MANIFEST).stat().st_size


def test_absent_manifest_is_read_as_none(tmp_path):
    assert read_manifest(open_storage(str(tmp_path))) is None


def test_a_later_minor_version_with_more_fields_is_read(dataset, tmp_path):
    assert read_manifest(changed(dataset, tmp_path, schema_version="1.7", news=1)).schema_version == "1.7"


def test_an_unknown_major_version_is_refused(dataset, tmp_path):
    with pytest.raises(FormatError, match=r"dataset\.json: schema version 3\.0, this dataprep reads 1\.1 and 2\.0; up"):
        read_manifest(changed(dataset, tmp_path, schema_version="3.0"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "{", '{"schema_version": "1.0"}', "\x00\xff", "[" * 100_000),
        '{"schema_version": "1.0", "splits": [3]}',
    ],
)
def test_files_that_are_no_manifest_are_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match=r"dataset\.json: "):
        read_manifest(open_storage(str(tmp_path)))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "zip", r"\$\.format 'zip', expected one of imagefolder, tfrecord, webdataset"),
        (("format",), "TFRecords", r"; did you mean tfrecord\?"),
        (("classes",), "abc", r'\$\.classes: expected array, got "abc"'),
        (("options",), [], r"\$\.options: expected object, got \[\]"),
        (("options",), {"adopted": {"data_url": 3}}, r"\$\.options\.adopted\.data_url: expected str \| null, got 3"),
        (("splits", 0, "name"), "../x", r'\$\.splits\[0\]\.name: expected letters, digits, _ and -, got "\.\./x"'),
        (("splits", 0, "repeats"), {"count": 1, "stored": 0}, r"repeats\.stored: expected int >= 1, got 0"),
        (("splits", 0, "repeats"), {"count": 1001, "stored": 1}, r"repeats\.count: expected int <= 1000, got 1001"),
        (("splits", 0, "repeats"), {"count": 1, "stored": 2}, "expected at most as many stored as count"),
        (("splits", 0, "repeats"), {"count": 1}, r"\$\.splits\[0\]\.repeats: the field stored is missing"),
        (("splits", 0, "rejected"), {"x": "y"}, r'\$\.splits\[0\]\.rejected\[\.\.\.\]: expected int, got "y"'),
        (("splits", 0, "shards", 1, "samples"), 10**18, r"shards\[1\]\.samples: expected int <= .*, got 1000000000000"),
        (("splits", 0, "shards", 1), None, r"\$\.splits\[0\]\.shards\[1\]: expected object, got null"),
        (("splits", 0, "index", "file"), "/etc/passwd", 'index.file: expected index/train.parquet, got "/etc/passwd"'),
        (("splits",), [], r"\$\.splits: expected each name once and at least one, got \[\]"),
        (("licence",), "\udcff", "surrogate"),
    ],
)
def test_a_field_of_another_type_is_named(dataset, tmp_path, path, value, message):
    document = json.loads(dataset.read(MANIFEST))
    parent = document
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(FormatError, match=message):
        read_manifest(open_storage(str(tmp_path)))


def test_a_manifest_above_the_size_limit_is_not_read(tmp_path):
    with (tmp_path / MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match=r"dataset\.json: 1,099,511,627,776 bytes, expected at most 268,435,456"):
        read_manifest(open_storage(str(tmp_path)))


def test_a_loader_reads_everything_but_the_files_beside_the_shards(dataset):
    manifest = read_manifest(dataset)
    assert manifest.files
    assert read_manifest(dataset, sidecars=False) == replace(manifest, files=())


def test_faults_are_found_without_sidecars_too(dataset, tmp_path):
    with pytest.raises(FormatError, match="format 'x', expected one of"):
        read_manifest(changed(dataset, tmp_path, format="x"), sidecars=False)


def test_missing_files_and_other_sizes_are_clauses():
    due = {"a": 1, "b": 2_000, "c": 3}
    assert list(size_faults(due.items(), {"a": 1, "b": 1_999, "d": 4})) == [
        "b has 1,999 bytes, expected 2,000",
        "c is missing",
    ]


def test_the_first_clauses_are_joined_and_the_others_counted():
    assert first_faults(["a", "b", "c"]) == "a; b; c"
    assert first_faults([str(number) for number in range(1_003)]) == "0; 1; 2 and 1,000 more"
