"""Parquet files written one row group at a time: the index, the events, the plan's references."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.dataset.records import FileEntry
from dataprep.storage import Storage
from dataprep.storage.checksums import HashingWriter, digests_of
from dataprep.storage.disk_errors import disk_errors

if TYPE_CHECKING:
    import pyarrow as pa


def publish_row_groups(storage: Storage, name: str, groups: Iterator[pa.Table], schema: pa.Schema) -> FileEntry:
    """Write a parquet file with one row group a table, empty tables included, and publish it.

    Returns:
        `{file, bytes, sha256}`, as the manifest lists it.
    """
    spool, digests = spool_row_groups(storage, name, groups, schema)
    storage.publish(spool, name, digests.crc32c)
    return {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}


def spool_row_groups(
    storage: Storage, name: str, groups: Iterator[pa.Table], schema: pa.Schema
) -> tuple[Path, HashingWriter]:
    """Write a parquet file with one row group a table to a spool file, from which `storage.publish` takes it.

    Returns:
        The spool's path, and the digests of its content.
    """
    import pyarrow.parquet as pq

    spool = storage.spool_path(name)
    with disk_errors(spool), pq.ParquetWriter(spool, schema) as writer:
        for table in groups:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    with disk_errors(spool), spool.open("rb") as stream:
        return spool, digests_of(stream)
