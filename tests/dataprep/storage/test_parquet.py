"""Parquet files wherever they lie."""

import io
import random
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.errors import FormatError
from dataprep.storage import open_storage
from dataprep.storage.parquet import open_parquet, read_columns, table_in
from tests.support.slow_storage import SlowStorage

TABLE = pa.table({"key": ["a", "b", "c", "d"], "size": [1, 2, 3, 4]})


@pytest.fixture
def stored(storage):
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=2)
    storage.create("t.parquet", sink.getvalue())
    return storage


@pytest.mark.parametrize("settings", [{}, {"window_bytes": 1 << 20}, {"window_bytes": 64, "buffer_bytes": 4096}])
def test_row_groups_are_read_from_disk_and_bucket(stored, settings):
    file = open_parquet(stored, "t.parquet", **settings)
    assert file.metadata.num_row_groups == 2
    assert file.read_row_group(1).to_pydict() == {"key": ["c", "d"], "size": [3, 4]}


WIDE = pa.table(
    {
        "key": [f"{number:09}" for number in range(4000)],
        "image": [{"path": f"{number}.jpg", "bytes": random.Random(number).randbytes(1000)} for number in range(4000)],
        "size": list(range(4000)),
    }
)
"""Row groups of 1,000 rows are larger than the end of a file that is read for the footer, 64 KiB."""


@pytest.fixture
def requests(bucket_url, monkeypatch):
    """Ranges of a bucket that are read, as start, number of bytes and name of the thread."""
    found = []
    bucket = type(open_storage(bucket_url))
    read_range = bucket.read_range

    def noted(self, name, start, num_bytes):
        found.append((start, num_bytes, threading.current_thread()))
        return read_range(self, name, start, num_bytes)

    monkeypatch.setattr(bucket, "read_range", noted)
    return found


@pytest.fixture
def wide(bucket_url, requests):
    storage = open_storage(bucket_url)
    sink = io.BytesIO()
    pq.write_table(WIDE, sink, row_group_size=1000)
    storage.create("wide.parquet", sink.getvalue())
    file = open_parquet(storage, "wide.parquet")
    assert len(requests) == 1  # the footer
    return file


def read_group(file):
    return file.read_row_group(1), WIDE.slice(1000, 1000)


def read_columns_far_apart(file):
    return file.read_row_group(0, ("key", "size")), WIDE.slice(0, 1000).select(["key", "size"])


def read_leaf(file):
    paths = file.read_row_group(2, ("image.path",)).column("image").combine_chunks().field("path")
    return pa.table({"path": paths}), pa.table({"path": [f"{number}.jpg" for number in range(2000, 3000)]})


def read_all(file):
    return file.read(("key", "image")), WIDE.select(["key", "image"])


def read_batch(file):
    return pa.Table.from_batches([next(file.iter_batches(2000))]), WIDE.slice(0, 2000)


@pytest.mark.parametrize(
    ("read", "bytes_at_most"),
    [
        (read_group, 1_100_000),
        (read_columns_far_apart, 1_100_000),
        (read_leaf, 20_000),
        (read_all, 4_400_000),
        (read_batch, 2_200_000),
    ],
)
def test_one_request_in_the_calling_thread_reads_what_is_wanted_of_a_bucket(wide, requests, read, bytes_at_most):
    found, expected = read(wide)
    assert found.equals(expected)
    assert {thread for _, _, thread in requests} == {threading.current_thread()}
    [(_, num_bytes, _)] = requests[1:]
    assert num_bytes <= bytes_at_most


def test_batches_of_a_bucket_are_read_run_by_run(wide, requests):
    batches = list(wide.iter_batches(1500, columns=("key", "size")))
    assert pa.Table.from_batches(batches).equals(WIDE.select(["key", "size"]))
    assert max(batch.num_rows for batch in batches) <= 1500
    assert len(requests[1:]) == 2  # of two row groups each
    group_3 = list(wide.iter_batches(1500, row_groups=[3], columns=("size",)))
    assert pa.Table.from_batches(group_3).equals(WIDE.slice(3000).select(["size"]))


def test_damaged_metadata_of_a_column_in_a_bucket_is_an_error_and_does_not_end_the_process(tmp_path):
    """pyarrow ends the process if it is asked for the metadata of such a column. A disk plays the bucket."""
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=2)
    whole, refused = sink.getvalue(), 0
    footer_at = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in range(footer_at, len(whole) - 8):
        (tmp_path / "t.parquet").write_bytes(whole[:at] + b"\0" + whole[at + 1 :])
        try:
            next(open_parquet(SlowStorage(tmp_path), "t.parquet").iter_batches(1024), None)
        except (pa.ArrowException, OSError, ValueError):
            refused += 1
    assert refused > 100


def test_group_that_a_file_of_a_bucket_lacks_is_an_error_of_pyarrow(wide):
    with pytest.raises(pa.ArrowInvalid, match="row_group_indices is 4"):
        wide.read_row_group(4)


def test_only_the_given_columns_are_read(stored):
    assert read_columns(stored, "t.parquet", ("size",)).to_pydict() == {"size": [1, 2, 3, 4]}
    assert read_columns(stored, "t.parquet").equals(TABLE)


def test_absent_and_damaged_files_and_columns_are_named(stored):
    stored.create("damaged.parquet", b"PAR1 no table PAR1")
    for name, columns in (("none.parquet", None), ("damaged.parquet", None), ("t.parquet", ("status",))):
        with pytest.raises(FormatError, match=rf"{name}: not a readable parquet file \(.*\); restore it$"):
            read_columns(stored, name, columns)


def test_bytes_of_a_small_file_are_read(stored):
    assert table_in(stored.read("t.parquet")).equals(TABLE)
