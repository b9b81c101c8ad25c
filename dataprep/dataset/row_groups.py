"""Parquet files written one row group at a time: the index, the events, the plan's references."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dataprep.dataset.records import FileEntry
from dataprep.errors import ConflictError
from dataprep.storage import Storage
from dataprep.storage.checksums import HashingWriter, digests_of
from dataprep.storage.copies import stored_crc32c
from dataprep.storage.disk_errors import disk_errors
from dataprep.storage.messages import GO_ON

if TYPE_CHECKING:
    import pyarrow as pa


class PublishingRows:
    """Publishes parquet files like `publish_row_groups`, two at a time: while one is published, the next is written.

    All files exist when the `with` block has ended without an error.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.replaces = False
        """Whether the names may be those of files of a dataset whose manifest is gone, which are replaced."""
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="dataprep-publish")
        self._under_way: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._threads:
            if error is None:
                self.wait()

    def wait(self) -> None:
        """Wait until all files exist that were put so far."""
        while self._under_way:
            self._under_way.popleft().result()

    def put(self, name: str, groups: Iterator[pa.Table], schema: pa.Schema) -> FileEntry:
        """Write a file, and return its entry for the manifest; a file before it may fail in this call."""
        spool, digests = spool_row_groups(self._storage, name, groups, schema)
        while len(self._under_way) > 1 or (self._under_way and self._under_way[0].done()):
            self._under_way.popleft().result()
        self._under_way.append(self._threads.submit(self._publish, spool, name, digests.crc32c))
        return {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}

    def _publish(self, spool: Path, name: str, crc32c: str) -> None:
        existing = self._storage.stat(name) if self.replaces else None
        if existing is None:
            self._storage.publish(spool, name, crc32c)
            return
        expected = replace(existing, crc32c=stored_crc32c(self._storage, existing))
        if not self._storage.replace_file(spool, name, crc32c, expected):
            raise ConflictError(f"{self._storage.url_of(name)}: another process has replaced it; {GO_ON}")


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
