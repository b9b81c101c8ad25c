"""Shards of fetched rows: every byte of samples, parquet file and stats is accounted for, and each lie is named."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.fetched.collect import EncodeOptions, RowOptions
from tests.support.faults import Damaged, linked_copy
from tests.support.fetched import FAULTS, ROWS, build_table
from tests.support.finished import details, kinds, verify_here
from tests.support.picture_web import picture_web

PARQUET, STATS = "train/00001.parquet", "train/00001_stats.json"


@pytest.fixture(params=["webdataset", "tfrecord"])
def copy(request, fetched, tmp_path):
    """A copy to change at will."""
    linked_copy(fetched(request.param), tmp_path / "copy")
    return Damaged(tmp_path / "copy")


def test_a_whole_dataset_has_no_fault(copy):
    report = verify_here(copy.root, deep=True)
    assert (report.findings, report.samples) == ((), ROWS - len(FAULTS))


@pytest.mark.parametrize(
    ("name", "change", "kind"),
    [
        (PARQUET, lambda data: data[:-9] + b"x" + data[-8:], "digest"),
        (STATS, lambda data: data + b" ", "size"),
        (STATS, None, "missing"),
        ("train/00007.parquet", lambda _: b"more", "extra"),
    ],
)
def test_verify_finds_damaged_sidecars(copy, name, change, kind):
    path = copy.root / name
    if change is None:
        path.unlink()
    else:
        copy.write(name, change(path.read_bytes() if path.exists() else b""))
    report = verify_here(copy.root)
    assert report.verdict == "differs"
    assert (kind, name) in {(found.kind, found.where) for found in report.findings}


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0", None])
def test_a_file_of_samples_of_another_size_is_found(copy, change):
    shard = copy.shards()[1]
    if change is None:
        (copy.root / shard).unlink()
    else:
        copy.write(shard, change((copy.root / shard).read_bytes()))
    found = {(finding.kind, finding.where) for finding in verify_here(copy.root).findings}
    assert ("missing" if change is None else "size", shard) in found


# From here on sizes and digests are made right again, so that the content alone gives it away.


def test_verify_finds_a_changed_caption_in_its_record(copy):
    shard = copy.shards()[2]
    copy.write(shard, (copy.root / shard).read_bytes().replace(b"Bild 26", b"Bild 27"))
    assert {"digest", "record"} <= kinds(verify_here(copy.root))
    copy.sign()
    (finding,) = verify_here(copy.root).findings
    assert (finding.kind, finding.where) == ("record", f"{shard} record 5 (000026)")
    assert finding.detail == "its bytes are not those that its row in the parquet file gives"


def test_a_parquet_file_that_is_none_is_found(copy):
    copy.write(PARQUET, b"PAR1 no parquet at all PAR1")
    copy.sign()
    report = verify_here(copy.root)
    assert f"format {PARQUET}: not a readable parquet file (" in details(report)


def test_other_columns_are_found(copy):
    table = pq.read_table(copy.root / PARQUET)
    sink = io.BytesIO()
    pq.write_table(table.append_column("more", pa.nulls(table.num_rows, pa.int64())), sink)
    copy.write(PARQUET, sink.getvalue())
    copy.sign()
    assert f"format {PARQUET}: columns similarity double, " in details(verify_here(copy.root))


@pytest.mark.parametrize(
    "change",
    [
        {"successes": 8},
        {"status_dict": {"success": 10}},
        {"before": {"statuses": {"filtered": 1}, "reasons": {"nsfw": 1}}},
        {"before": 3},
    ],
)
def test_stats_that_count_otherwise_are_found(copy, change):
    stats = json.loads((copy.root / STATS).read_bytes())
    copy.write(STATS, json.dumps(stats | change, indent=4).encode())
    copy.sign()
    assert f"count {STATS}: its counts differ from the rows in the parquet file" in details(verify_here(copy.root))


def test_a_success_that_is_not_in_the_index_is_found(copy):
    def change(table):
        ends = table.column("status").to_pylist()
        ends[ends.index("failed_to_download")] = "success"
        return table.set_column(table.column_names.index("status"), "status", pa.array(ends))

    copy.change_table(PARQUET, change)
    copy.sign()
    text = details(verify_here(copy.root))
    assert f"format {copy.shards()[1]}: 7 rows of the index, 8 successes in the parquet file" in text


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("height", 7, "index and parquet file contradict each other about it"),
        ("key", "000099", "index and parquet file contradict each other about it"),
        ("url", "http://elsewhere/", "its bytes are not those that its row in the parquet file gives"),
        ("caption", "Bild 99 ü", "its bytes are not those that its row in the parquet file gives"),
    ],
)
def test_a_row_that_says_something_else_than_its_record_is_found(copy, column, value, text):
    def change(table):
        values = table.column(column).to_pylist()
        values[0] = value
        at = table.column_names.index(column)
        return table.set_column(at, column, pa.array(values, table.schema.field(column).type))

    copy.change_table(PARQUET, change)
    copy.sign()
    assert f"record {copy.shards()[1]} record 0 (000010): {text}" in details(verify_here(copy.root))


def test_records_that_are_not_one_after_the_other_are_found(copy):
    def change(table):
        offsets = table.column("record_offset").to_pylist()
        at = table.column_names.index("record_offset")
        return table.set_column(at, "record_offset", pa.array([offset + 1 for offset in offsets], pa.int64()))

    copy.change_table("index/train.parquet", change)
    copy.sign()
    assert "record 0 at 1 with " in details(verify_here(copy.root))


def test_bytes_after_the_last_record_are_found(copy):
    shard = copy.shards()[1]
    copy.write(shard, (copy.root / shard).read_bytes() + bytes(512))
    copy.sign()
    text = details(verify_here(copy.root))
    assert f"format {shard}: after 7 records, got other bytes than the end of a shard" in text


def test_an_image_that_is_none_is_found_by_a_deep_look(copy):
    shard = copy.shards()[1]
    rows = pq.read_table(copy.root / "index/train.parquet").to_pylist()
    start = next(row["image_offset"] for row in rows if row["shard"] == 1)
    data = (copy.root / shard).read_bytes()
    copy.write(shard, data[:start] + b"no" + data[start + 2 :])
    copy.sign()
    shallow, deep = (verify_here(copy.root, deep=deep) for deep in (False, True))
    assert "image" not in kinds(shallow)
    assert f"image {shard} record 0 (000010): " in details(deep)


def test_images_that_are_no_jpegs_are_decoded_by_a_deep_look(tmp_path):
    root = tmp_path / "out"
    options = RowOptions(encode=EncodeOptions(encode_format="png", encode_quality=1))
    with picture_web() as web:
        build_table(web, tmp_path, str(root), "webdataset", rows=12, options=options)
    copy = Damaged(root)
    assert verify_here(root, deep=True).findings == ()
    shard = copy.shards()[0]
    start = pq.read_table(root / "index/train.parquet").to_pylist()[0]["image_offset"]
    data = (root / shard).read_bytes()
    assert data[start + 1 : start + 4] == b"PNG"
    copy.write(shard, data[: start + 16] + b"\1" + data[start + 17 :])  # the width in its header
    copy.sign()
    assert f"image {shard} record 0 (000000): no-image: " in details(verify_here(root, deep=True))
