import contextlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.events import open_events
from dataprep.dataset.index import open_index_file
from dataprep.errors import FormatError, StorageError
from dataprep.storage import open_storage
from dataprep.storage.range_file import RangeFile
from tests.support.finished import build_here, change_cell, column_values


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
