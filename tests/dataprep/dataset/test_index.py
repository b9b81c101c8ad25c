import contextlib
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dataset.events import open_events
from dataprep.dataset.index import MAX_READERS, open_index, open_index_file
from dataprep.dataset.index_parts import publish_index
from dataprep.dataset.index_rows import IndexRow, index_schema, index_table
from dataprep.dataset.records import SplitManifest
from dataprep.dataset.row_groups import publish_row_groups
from dataprep.errors import FormatError, StorageError
from dataprep.storage import open_storage
from dataprep.storage.range_file import RangeFile
from tests.support.finished import build_here, change_cell, column_values
from tests.support.parted_index import parts_of


def test_row_groups_and_batches_of_the_index_are_read(damaged):
    copy = damaged("imagenet-webdataset")
    index = open_index_file(open_storage(str(copy.root)), "index/train.parquet")
    assert index.group_rows == [shard["samples"] for shard in copy.document["splits"][0]["shards"]]
    keys = [key for batch in index.batches(["key"]) for key in batch.column("key").to_pylist()]
    assert keys == column_values(copy, "key")
    assert index.read_group(1, ["key"]).column("key").to_pylist() == keys[index.group_rows[0] :][: index.group_rows[1]]


def test_an_index_in_a_bucket_is_read(originals, bucket_url):
    storage = open_storage(build_here("imagenet", originals["imagenet"], bucket_url, "webdataset"))
    index = open_index_file(storage, "index/val.parquet")
    assert len(index.read_group(0)) == index.group_rows[0]
    assert {row["kind"] for batch in open_events(storage, "train").batches(["kind"]) for row in batch.to_pylist()} == {
        "repaired",
        "rejected",
    }


def test_a_missing_index_is_a_file_not_found_error(damaged):
    with pytest.raises(FileNotFoundError):
        open_index_file(open_storage(str(damaged("imagenet-webdataset").root)), "index/test.parquet")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"no parquet at all"])
def test_a_file_that_is_no_parquet_is_refused(damaged, data):
    copy = damaged("imagenet-webdataset")
    copy.write("index/train.parquet", data)
    with pytest.raises(
        FormatError, match=r"index/train.parquet: not the parquet file of a build \(.*\); build it again"
    ):
        open_index_file(open_storage(str(copy.root)), "index/train.parquet")


def test_an_index_of_other_columns_is_refused(damaged):
    copy = damaged("imagenet-webdataset")
    path = copy.root / "index/train.parquet"
    path.unlink()
    pq.write_table(pa.table({"key": ["a"]}), path)
    with pytest.raises(FormatError, match="columns key string; expected key, shard, record_offset"):
        open_index_file(open_storage(str(copy.root)), "index/train.parquet")


@pytest.mark.parametrize("column", ["key", "image_offset"])
def test_missing_values_in_a_required_column_are_refused(damaged, column):
    copy = damaged("imagenet-webdataset")
    change_cell(copy, "index/train.parquet", column, None)
    index = open_index_file(open_storage(str(copy.root)), "index/train.parquet")
    with pytest.raises(FormatError, match=f"values of {column} are missing"):
        index.read_group(0)
    with pytest.raises(FormatError, match=f"values of {column} are missing"):
        list(index.batches(["key", "image_offset"]))


def test_heights_may_be_missing(damaged):
    copy = damaged("imagenet-webdataset")
    change_cell(copy, "index/train.parquet", "height", None)
    assert (
        open_index_file(open_storage(str(copy.root)), "index/train.parquet").read_group(0).column("height").null_count
        == 1
    )


def test_every_bit_of_noise_is_data_or_an_error(damaged):
    copy = damaged("imagenet-webdataset")
    path = copy.root / "index/train.parquet"
    data = path.read_bytes()
    for at in range(0, len(data), 41):
        copy.write("index/train.parquet", data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with contextlib.suppress(FormatError):  # any other error is a fault
            index = open_index_file(open_storage(str(copy.root)), "index/train.parquet")
            for group in range(len(index.group_rows)):
                assert index.read_group(group).num_columns == 10


def test_a_bucket_that_fails_is_not_a_broken_file(originals, bucket_url, monkeypatch):
    storage = open_storage(build_here("coco-dup5", originals["coco"], bucket_url, "webdataset"))

    def fail(self, size=-1):
        raise StorageError("connection lost")

    monkeypatch.setattr(RangeFile, "read", fail)
    with pytest.raises(StorageError, match="connection lost"):
        open_index_file(storage, "index/train.parquet")


def split_of(samples: list[int], index) -> SplitManifest:
    """A split with shards of these samples, which do not exist."""
    shards = tuple(
        {"file": f"{shard}.tar", "samples": count, "bytes": 100, "sha256": "", "crc32c": ""}
        for shard, count in enumerate(samples)
    )
    events = {"file": "index/train-events.parquet", "bytes": 0, "sha256": ""}
    return SplitManifest("train", sum(samples), 0, shards, (), {"count": 1, "stored": 1}, {}, {}, index, events)


def publish_rows(storage, samples: list[int]) -> SplitManifest:
    """Publish an index of rows that differ."""
    groups = []
    for shard, count in enumerate(samples):
        rows = [IndexRow(f"{shard}-{row}", row, 9, row, 5, None, row, None, shard) for row in range(count)]
        groups.append(index_table(rows, shard))

    def put(name, part):
        return publish_row_groups(storage, name, iter([groups[shard] for shard in part]), index_schema())

    return split_of(samples, publish_index("train", samples, put))


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
    assert len(index._idle) <= MAX_READERS
