"""Rows of the index, of builds and of adopted data."""

import contextlib
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dataset import index as indexing
from dataprep.dataset.index import IndexRow, IndexRows, index_schema, open_index, publish_row_groups
from dataprep.dataset.manifest import MANIFEST, digest_faults, read_manifest, schema_version
from dataprep.dataset.records import Event, Placement
from dataprep.errors import FormatError, StorageError
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of
from dataprep.storage.parquet import open_parquet
from dataprep.storage.ranges import RangeFile
from tests.support.adoption import upload
from tests.support.finished import change_cell, column_values
from tests.support.parted_index import in_parts, parts_of
from tests.support.splits import split_of


def train_index(copy):
    return indexing.open_index_file(open_storage(str(copy.root)), "index/train.parquet")


def test_row_groups_and_batches_of_the_index_are_read(damaged):
    copy = damaged("imagenet-webdataset")
    index = train_index(copy)
    assert index.group_rows == [shard["samples"] for shard in copy.document["splits"][0]["shards"]]
    keys = [key for batch in index.batches(["key"]) for key in batch.column("key").to_pylist()]
    assert keys == column_values(copy, "key")
    assert index.read_group(1, ["key"]).column("key").to_pylist() == keys[index.group_rows[0] :][: index.group_rows[1]]


def test_an_index_in_a_bucket_is_read(finished, bucket_url):
    storage = open_storage(upload(finished("imagenet-webdataset"), bucket_url))
    index = indexing.open_index_file(storage, "index/val.parquet")
    assert len(index.read_group(0)) == index.group_rows[0]
    kinds = {event.kind for event in indexing.read_events(storage, "index/train-events.parquet")}
    assert kinds == {"repaired", "rejected"}


def test_a_missing_index_is_a_file_not_found_error(damaged):
    with pytest.raises(FileNotFoundError):
        indexing.open_index_file(open_storage(str(damaged("imagenet-webdataset").root)), "index/test.parquet")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"no parquet at all"])
def test_a_file_that_is_no_parquet_is_refused(damaged, data):
    copy = damaged("imagenet-webdataset")
    copy.write("index/train.parquet", data)
    with pytest.raises(FormatError, match=r"train.parquet: not the parquet file of a build \(.*\); build it again"):
        train_index(copy)


def test_an_index_of_other_columns_is_refused(damaged):
    copy = damaged("imagenet-webdataset")
    path = copy.root / "index/train.parquet"
    path.unlink()
    pq.write_table(pa.table({"key": ["a"]}), path)
    with pytest.raises(FormatError, match="columns key string; expected key, shard, record_offset"):
        train_index(copy)


@pytest.mark.parametrize("column", ["key", "image_offset"])
def test_missing_values_in_a_required_column_are_refused(damaged, column):
    copy = damaged("imagenet-webdataset")
    change_cell(copy, "index/train.parquet", column, None)
    index = train_index(copy)
    for read in (lambda: index.read_group(0), lambda: list(index.batches(["key", "image_offset"]))):
        with pytest.raises(FormatError, match=f"values of {column} are missing"):
            read()


def test_heights_may_be_missing(damaged):
    copy = damaged("imagenet-webdataset")
    change_cell(copy, "index/train.parquet", "height", None)
    assert train_index(copy).read_group(0).column("height").null_count == 1


def test_every_bit_of_noise_is_data_or_an_error(damaged):
    copy = damaged("imagenet-webdataset")
    path = copy.root / "index/train.parquet"
    data = path.read_bytes()
    for at in range(0, len(data), 41):
        copy.write("index/train.parquet", data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with contextlib.suppress(FormatError):  # any other error is a fault
            index = train_index(copy)
            for group in range(len(index.group_rows)):
                assert index.read_group(group).num_columns == 10


def test_a_bucket_that_fails_is_not_a_broken_file(finished, bucket_url, monkeypatch):
    storage = open_storage(upload(finished("imagenet-webdataset"), bucket_url))

    def fail(self, size=-1):
        raise StorageError("connection lost")

    monkeypatch.setattr(RangeFile, "read", fail)
    with pytest.raises(StorageError, match="connection lost"):
        indexing.open_index_file(storage, "index/train.parquet")


def publish_rows(storage, samples):
    """Publish an index of rows that differ."""
    groups = []
    for shard, count in enumerate(samples):
        rows = [IndexRow(f"{shard}-{row}", row, 9, row, 5, None, row, None, shard) for row in range(count)]
        groups.append(indexing.index_table(rows, shard))

    def put(name, part):
        return publish_row_groups(storage, name, iter([groups[shard] for shard in part]), index_schema())

    return split_of(samples, indexing.publish_index("train", samples, put))


@settings(max_examples=25)
@given(
    samples=st.lists(st.integers(0, 6), min_size=1, max_size=30).filter(any),
    rows=st.integers(1, 60),
    compare=st.booleans(),
    data=st.data(),
)
def test_parts_are_read_as_one_index(tmp_path_factory, samples, rows, compare, data):
    storages = [open_storage(str(tmp_path_factory.mktemp("index"))) for _ in range(2)]
    single = open_index(storages[0], publish_rows(storages[0], samples), compare=compare)
    with parts_of(rows):
        parted = open_index(storages[1], publish_rows(storages[1], samples), compare=compare)
    assert parted.columns == single.columns and parted.group_rows == single.group_rows == samples
    for shard in data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=40)):
        assert parted.read_group(shard) == single.read_group(shard)
        assert parted.read_group(shard, without="shard") == single.read_group(shard).drop_columns("shard")
    found, due = (pa.Table.from_batches(index.batches(["key", "label"])) for index in (parted, single))
    assert found == due


def test_few_readers_are_open_and_many_threads_share_them(tmp_path):
    storage, samples = open_storage(str(tmp_path)), [3] * 40
    with parts_of(3):
        index = open_index(storage, publish_rows(storage, samples), compare=True)
    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(lambda shard: index.read_group(shard, ["shard"]), [*range(40), *range(40)]))
    assert [table.column("shard").to_pylist() for table in found] == 2 * [[shard] * 3 for shard in range(40)]
    assert len(index._idle) <= indexing.MAX_READERS


ROW = IndexRow("a", 0, 30, 10, 20, 7, 1, 480, 640)


def test_rows_of_a_shard_are_one_table():
    table = indexing.index_table([ROW, ROW._replace(key="b", image_crc32c=None, height=None, width=None)], 5)
    assert table.schema.equals(index_schema())
    assert table.to_pylist() == [
        {
            "key": key, "shard": 5, "record_offset": 0, "record_bytes": 30, "image_offset": 10, "image_bytes": 20,
            "image_crc32c": crc32c, "label": 1, "height": height, "width": width,
        }
        for key, crc32c, height, width in (("a", 7, 480, 640), ("b", None, None, None))
    ]  # fmt: skip


def test_rows_of_an_adopted_image_folder_name_its_files():
    table = indexing.index_table([ROW._replace(file="ant/a.png")], 0, with_files=True)
    assert table.schema.equals(index_schema(with_files=True))
    assert table.column("file").to_pylist() == ["ant/a.png"]


@pytest.mark.parametrize("with_files", [False, True])
def test_shard_without_samples_has_an_empty_table(with_files):
    table = indexing.index_table([], 3, with_files=with_files)
    assert (table.num_rows, table.schema.equals(index_schema(with_files=with_files))) == (0, True)


def test_rows_are_collected_with_the_digest_of_their_image():
    rows = IndexRows(2)
    rows.add("a", b"image", Placement(0, 30, 10, 20), label=1, height=480, width=640)
    rows.add("b", b"other", Placement(30, 30, 40, 20), label=-1, height=0, width=0)
    assert len(rows) == 2
    found = rows.table().to_pylist()
    assert [row["image_crc32c"] for row in found] == [crc32c_of(b"image"), crc32c_of(b"other")]
    assert [(row["shard"], row["height"], row["width"]) for row in found] == [(2, 480, 640), (2, None, None)]


ROWS = 80
"""The train split of the small ImageNet has more rows than this, in three shards; val has fewer."""


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 400))
def test_parts_hold_every_shard_once_and_none_is_empty(samples, rows):
    with parts_of(rows):
        ranges = indexing.index_ranges(samples)
    assert [shard for part in ranges for shard in part] == list(range(len(samples)))
    assert len(ranges) == 1 or all(ranges)
    assert (len(ranges) == 1) == (sum(samples) <= rows or len(samples) < 2)
    sizes = [len(part) for part in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_datasets_of_up_to_sixteen_million_rows_have_one_file():
    assert indexing.index_ranges([1 << 20] * 16) == [range(16)]
    assert len(indexing.index_ranges([1 << 20] * 17)) == 17
    assert len(indexing.index_ranges([10_000] * 41_408)) == 395
    assert indexing.index_ranges([]) == [range(0)]
    assert indexing.index_ranges([indexing.MAX_ROWS_IN_ONE * 2]) == [range(1)]


@pytest.fixture
def parted(finished, tmp_path):
    return in_parts(finished("imagenet-webdataset"), tmp_path / "parted", ROWS)


def test_manifest_lists_the_parts(parted, tmp_path):
    storage = open_storage(str(tmp_path / "parted"))
    train, val = read_manifest(storage).splits
    assert train.index["file"] == "index/train-*-of-00002.parquet"
    assert [part["shards"] for part in train.index["parts"]] == [1, 2]
    assert [entry["file"] for entry in indexing.index_files(train)] == indexing.index_names("train", 2)
    assert [entry["file"] for entry in indexing.index_files(val)] == ["index/val.parquet"]
    assert train.index["bytes"] == sum(storage.stat(entry["file"]).num_bytes for entry in indexing.index_files(train))
    assert parted.schema_version == "2.0" and schema_version([val]) == "1.1"


def change_parts(tmp_path, change):
    """Read a manifest after a change of the entry of its index."""
    path = tmp_path / "parted" / MANIFEST
    document = json.loads(path.read_bytes())
    change(document["splits"][0]["index"])
    path.write_text(json.dumps(document))
    return read_manifest(open_storage(str(tmp_path / "parted")))


def with_part(index, number, **fields):
    index["parts"][number].update(fields)
    index.update(
        {name: value for name, value in indexing.joined_entry("train", index["parts"]).items() if name != "parts"}
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda index: index.update(file="index/train.parquet"), "index.file: expected index/train-*-of-00002.parquet"),
        (lambda index: index.update(bytes=1), "index.bytes: expected"),
        (lambda index: index.update(sha256="0" * 64), "index.sha256: expected"),
        (lambda index: with_part(index, 1, file="../x"), "parts[1].file: expected index/train-00001-of-00002.parq"),
        (lambda index: with_part(index, 1, shards=1), "parts: 2 shards, expected the split's 3"),
        (lambda index: (with_part(index, 1, shards=3), with_part(index, 0, shards=0)), "at least one in each"),
        (lambda index: with_part(index, 0, shards=-1), "parts[0].shards: expected int >= 0, got -1"),
        (lambda index: index.update(parts=[]), "index.parts: expected 2 to 99,999, got 0"),
        (lambda index: index.update(parts=index["parts"][:1]), "index.parts: expected 2 to 99,999, got 1"),
    ],
)  # fmt: skip
def test_a_hostile_list_of_parts_is_refused(parted, tmp_path, change, text):
    with pytest.raises(FormatError) as found:
        change_parts(tmp_path, change)
    assert text in str(found.value)


def test_digests_of_parts_are_digests(parted):
    (first, *others), (train, val) = parted.splits[0].index["parts"], parted.splits
    index = indexing.joined_entry("train", [{**first, "sha256": "x"}, *others])
    faults = list(digest_faults(replace(parted, splits=(replace(train, index=index), val))))
    assert faults == ["split train: index: sha256 is 'x', expected 64 hexadecimal digits"]


def test_a_longer_index_replaces_the_last_part(parted):
    train, val = parted.splits
    last = {"file": train.index["parts"][1]["file"], "bytes": 7, "sha256": "1" * 64}
    grown = indexing.grown_entry(train, last, 3)
    assert [part["shards"] for part in grown["parts"]] == [1, 5]
    assert grown["file"] == train.index["file"] and grown["sha256"] != train.index["sha256"]
    assert indexing.grown_entry(val, last, 3) == last
    assert json.loads(json.dumps(asdict(replace(train, index=grown))))["index"] == grown


SCHEMA = pa.schema([("number", pa.int64())])


def tables(*sizes):
    return iter([pa.table({"number": list(range(size))}, schema=SCHEMA) for size in sizes])


def test_each_table_is_a_row_group_and_empty_ones_are_kept(storage):
    entry = publish_row_groups(storage, "index/train.parquet", tables(3, 0, 100_000), SCHEMA)
    file = open_parquet(storage, "index/train.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(3)] == [3, 0, 100_000]
    data = storage.read("index/train.parquet")
    assert entry == {"file": "index/train.parquet", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_spool_file_has_its_digest_and_is_not_published(tmp_path):
    storage = open_storage(str(tmp_path))
    spool, digests = indexing.spool_row_groups(storage, "index/train.parquet", tables(2), SCHEMA)
    assert hashlib.sha256(spool.read_bytes()).hexdigest() == digests.sha256
    assert storage.stat("index/train.parquet") is None


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
EVENTS = [Event("n01440764/a", "repaired", "cmyk", "CMYK as RGB"), Event("n01440764/b", "rejected", "truncated", "cut")]


def test_events_are_read_back(tmp_path):
    storage = open_storage(str(tmp_path))
    entry = publish_row_groups(
        storage, indexing.events_file("train"), iter([indexing.events_table(EVENTS)]), indexing.events_schema()
    )
    assert entry["file"] == "index/train-events.parquet"
    assert indexing.read_events(storage, "index/train-events.parquet") == EVENTS
    (batch,) = indexing.open_events(storage, "index/train-events.parquet").batches(["reason"])
    assert batch.to_pydict() == {"reason": ["cmyk", "truncated"]}


@given(st.lists(st.builds(Event, key=TEXT, kind=TEXT, reason=TEXT, detail=TEXT), max_size=5))
def test_events_become_columns_in_their_order(events):
    table = indexing.events_table(events)
    assert table.schema.equals(indexing.events_schema())
    assert [Event(**row) for row in table.to_pylist()] == events
