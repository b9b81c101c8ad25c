import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.finished import change_cell, column_values, details, kinds, verify_here


@pytest.mark.parametrize("column", ["key", "image_offset", "image_crc32c", "label", "height", "width"])
def test_an_index_row_that_differs_from_its_shard_is_found(damaged, column):
    copy = damaged("imagenet-tfrecord")
    before = column_values(copy, column)[0]
    change_cell(copy, "index/train.parquet", column, f"{before}x" if column == "key" else before + 1)
    copy.sign()
    report = verify_here(copy.root)
    assert "record" in kinds(report)
    key = column_values(copy, "key")[0]
    assert f" record 0 ({key}): {column} " in details(report)


@pytest.mark.parametrize(("column", "value"), [("shard", 1), ("key", None)])
def test_an_index_row_with_impossible_values_is_found(damaged, column, value):
    copy = damaged("imagenet-tfrecord")
    change_cell(copy, "index/train.parquet", column, value)
    copy.sign()
    assert kinds(verify_here(copy.root)) == {"index" if column == "shard" else "format"}


def test_wrong_row_groups_and_columns_are_found(damaged):
    copy = damaged("imagenet-webdataset")
    table = pq.read_table(copy.root / "index/train.parquet")
    (copy.root / "index/train.parquet").unlink()
    pq.write_table(table, copy.root / "index/train.parquet")
    copy.sign()
    assert "index index/train.parquet: 1 row groups, expected one a shard: 3" in details(verify_here(copy.root))
    (copy.root / "index/train.parquet").unlink()
    pq.write_table(table.drop_columns("label"), copy.root / "index/train.parquet")
    copy.sign()
    report = verify_here(copy.root)
    assert kinds(report) == {"format"}
    assert "expected key, shard, record_offset" in details(report)
    copy.write("index/train.parquet", b"PAR1 no PAR1")
    copy.sign()
    assert kinds(verify_here(copy.root)) == {"format"}


@pytest.mark.parametrize("file", ["index/train-events.parquet", "index/train.parquet", "index/val.parquet"])
def test_a_missing_file_is_found(damaged, file):
    copy = damaged("imagenet-imagefolder")
    (copy.root / file).unlink()
    assert f"missing {file}: no such file, expected " in details(verify_here(copy.root))


def test_events_that_disagree_with_the_manifest_are_found(damaged):
    copy = damaged("imagenet-webdataset")
    rows = pq.read_table(copy.root / "index/train-events.parquet").to_pylist()
    schema = pq.read_schema(copy.root / "index/train-events.parquet")
    kept = next(sample.key for sample in copy.read_shard(copy.shards()[0]))
    rejected = next(row for row in rows if row["kind"] == "rejected")
    for changed, kind, text in (
        (rows[:-1], "count", "the manifest counts"),
        ([*rows, {**rejected, "kind": "vanished"}], "count", "vanished: {"),
        (
            [{**row, "key": kept} if row is rejected else row for row in rows],
            "index",
            f"{kept!r} was rejected and is in",
        ),
        (
            [{**row, "key": "no/where"} if row["kind"] == "repaired" else row for row in rows],
            "index",
            "is not in the split",
        ),
    ):
        (copy.root / "index/train-events.parquet").unlink()
        pq.write_table(pa.Table.from_pylist(changed, schema), copy.root / "index/train-events.parquet")
        copy.sign()
        report = verify_here(copy.root)
        assert (kinds(report), text in details(report)) == ({kind}, True)


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("dataset_info.json", '"shardLengths": [\n        "', '"shardLengths": [\n        "1', "splits"),
        ("dataset_info.json", '"name": "imagenet"', '"name": "imagenut"', "name"),
        ("dataset_info.json", "{", "[", "its syntax"),
        ("features.json", "class_label_feature.ClassLabel", "os.system", "featuresDict"),
        ("label.labels.txt", "n0", "n1", "its content"),
    ],
)
def test_metadata_that_disagree_with_the_manifest_are_found(damaged, file, old, new, what):
    copy = damaged("imagenet-tfrecord")
    document = copy.document
    copy.write(file, (copy.root / file).read_text().replace(old, new, 1).encode())
    copy.write_document(document)
    copy._sign(entry := next(entry for entry in document["files"] if entry["file"] == file))
    copy.write_document(document)
    report = verify_here(copy.root)
    assert (kinds(report), entry["file"]) == ({"metadata"}, file)
    assert f"metadata {file}: {what}" in details(report)


def test_changed_descriptions_and_citations_are_no_fault(damaged):
    copy = damaged("imagenet-tfrecord")
    info = json.loads((copy.root / "dataset_info.json").read_bytes())
    info["description"] = info["citation"] = "other words"
    copy.write("dataset_info.json", json.dumps(info).encode())
    copy.sign()
    assert details(verify_here(copy.root)) == ""
