"""Parquet files written one row group at a time."""

import hashlib

import pyarrow as pa

from dataprep.dataset.row_groups import publish_row_groups, spool_row_groups
from dataprep.storage import open_storage
from dataprep.storage.parquet import open_parquet

SCHEMA = pa.schema([("number", pa.int64())])


def tables(*sizes):
    return iter([pa.table({"number": list(range(size))}, schema=SCHEMA) for size in sizes])


def test_each_table_is_a_row_group_and_empty_ones_are_kept(storage_url):
    storage = open_storage(storage_url)
    entry = publish_row_groups(storage, "index/train.parquet", tables(3, 0, 100_000), SCHEMA)
    file = open_parquet(storage, "index/train.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(3)] == [3, 0, 100_000]
    data = storage.read("index/train.parquet")
    assert entry == {"file": "index/train.parquet", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_spool_file_has_its_digest_and_is_not_published(tmp_path):
    storage = open_storage(str(tmp_path))
    spool, digests = spool_row_groups(storage, "index/train.parquet", tables(2), SCHEMA)
    assert hashlib.sha256(spool.read_bytes()).hexdigest() == digests.sha256
    assert storage.stat("index/train.parquet") is None
