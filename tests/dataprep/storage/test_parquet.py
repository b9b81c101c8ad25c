"""Parquet files wherever they lie."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.errors import FormatError
from dataprep.storage import open_storage
from dataprep.storage.parquet import open_parquet, read_columns, table_in

TABLE = pa.table({"key": ["a", "b", "c", "d"], "size": [1, 2, 3, 4]})


@pytest.fixture
def stored(storage_url):
    storage = open_storage(storage_url)
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=2)
    storage.create("t.parquet", sink.getvalue())
    return storage


@pytest.mark.parametrize("settings", [{}, {"window_bytes": 1 << 20}, {"window_bytes": 64, "buffer_bytes": 4096}])
def test_row_groups_are_read_from_disk_and_bucket(stored, settings):
    file = open_parquet(stored, "t.parquet", **settings)
    assert file.metadata.num_row_groups == 2
    assert file.read_row_group(1).to_pydict() == {"key": ["c", "d"], "size": [3, 4]}


def test_only_the_given_columns_are_read(stored):
    assert read_columns(stored, "t.parquet", ("size",)).to_pydict() == {"size": [1, 2, 3, 4]}
    assert read_columns(stored, "t.parquet").equals(TABLE)


def test_absent_and_damaged_files_and_columns_are_named(stored):
    stored.create("damaged.parquet", b"PAR1 no table PAR1")
    for name, columns in (("none.parquet", None), ("damaged.parquet", None), ("t.parquet", ("status",))):
        with pytest.raises(FormatError, match=rf"{name}: no readable parquet file \(.*\); restore it$"):
            read_columns(stored, name, columns)


def test_bytes_of_a_small_file_are_read(stored):
    assert table_in(stored.read("t.parquet")).equals(TABLE)
