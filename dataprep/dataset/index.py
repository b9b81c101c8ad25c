"""Reads `index/<split>.parquet` row group by row group; its bytes are not trusted before their digest is compared.

Every error of pyarrow about a damaged file becomes a FormatError that names the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dataprep.dataset.index_rows import index_schema
from dataprep.dataset.paths import RETRY
from dataprep.dataset.records import SplitManifest
from dataprep.errors import FormatError
from dataprep.messages import one_line
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.parquet import open_parquet

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 16
"""Rows in a batch, where an index is not read shard by shard; with 10 columns they take about 10 MB."""
MAX_COMPARED_BYTES = 2**30
"""Size of the largest index on disk whose digest is compared: 18 million samples. ImageNet's 77 MB take 0.07 s."""
MAX_BUFFERED_BYTES = 2**28
"""Size of the largest index in a bucket whose digest is compared: 4 million samples. Such an index is kept in
memory."""
_BLOCK_BYTES = 1 << 22
_RANGES_IN_FLIGHT = 8


class ParquetTable:
    """One parquet file of a dataset; only the requested row groups and columns are read.

    Args:
        storage: Where the dataset is.
        name: The file.
        schemas: Accepted schemas: the file must have the columns of one of them.
        nullable: Columns in which values may be missing.
        source: The file's bytes, if they are open already; see `compared_index`.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The file is no parquet file, or has other columns.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        *schemas: pa.Schema,
        nullable: frozenset[str] = frozenset(),
        source: pa.NativeFile | None = None,
    ) -> None:
        import pyarrow.parquet as pq

        self._url, self._nullable = storage.url_of(name), nullable
        with self._readable():
            self._file = open_parquet(storage, name) if source is None else pq.ParquetFile(source)
            found = self._file.schema_arrow.remove_metadata()
            self._refuse_bomb(storage, name)
        if not any(found.equals(schema) for schema in schemas):
            columns = ", ".join(f"{field.name} {field.type}" for field in found)[:200]
            raise FormatError(f"{self._url}: columns {columns}; expected {', '.join(schemas[0].names)}; build it again")
        self.columns: tuple[str, ...] = tuple(found.names)

    def _refuse_bomb(self, storage: Storage, name: str) -> None:
        """Raise ValueError if the file claims more rows than it has bytes: each row takes several bytes."""
        info, rows = storage.stat(name), self._file.metadata.num_rows
        if info is not None and rows > info.num_bytes:
            raise ValueError(f"{rows:,} rows in {info.num_bytes:,} bytes")

    @property
    def group_rows(self) -> list[int]:
        """Number of rows of each row group."""
        metadata = self._file.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one row group. Raises FormatError."""
        with self._readable():
            table = self._file.read_row_group(group, columns=columns, use_threads=False)
            self._check(table)
            return table

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, BATCH_ROWS at a time. Raises FormatError."""
        batches = self._file.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False)
        while True:
            with self._readable():
                batch = next(batches, None)
                if batch is not None:
                    self._check(batch)
            if batch is None:
                return
            yield batch

    def _check(self, rows: pa.Table | pa.RecordBatch) -> None:
        rows.validate(full=True)  # offsets, dictionaries, UTF-8
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if column.null_count and name not in self._nullable:
                raise ValueError(f"values of {name} are missing")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except FileNotFoundError:
            raise
        # Damaged thrift, pages and dictionaries raise any of these.
        except (pa.ArrowException, ValueError, OSError, KeyError, MemoryError, OverflowError) as error:
            raise FormatError(
                f"{self._url}: not the parquet file of a build ({one_line(error)}); build it again"
            ) from error


def open_index(storage: Storage, split: str, source: pa.NativeFile | None = None) -> ParquetTable:
    """Open the index of a split; see `index_schema` for its columns. Raises FileNotFoundError and FormatError."""
    nullable = frozenset({"image_crc32c", "height", "width"})
    schemas = index_schema(), index_schema(with_files=True), index_schema(with_annotations=True)
    return ParquetTable(storage, f"index/{split}.parquet", *schemas, nullable=nullable, source=source)


def compared_index(storage: Storage, split: SplitManifest) -> pa.NativeFile | None:
    """Open an index and compare its digest with the manifest's; any number of calls of `open_index` can use the result.

    On disk the file stays open; from a bucket it is kept in memory. So the bytes that were compared are the bytes that
    are read, also after `retry-failed` has published a longer index. While a retry is under way, the index may be newer
    than the manifest.

    Returns:
        The bytes; None where only the size was compared, because the index is too large or a retry is under way.

    Raises:
        FileNotFoundError: There is no index.
        FormatError: The index is not the one that the manifest lists.
    """
    import pyarrow as pa

    entry, name = split.index, split.index["file"]
    info = storage.stat(name)
    if info is None:
        raise FileNotFoundError(storage.url_of(name))
    if info.num_bytes != entry["bytes"]:
        found, due = f"{info.num_bytes:,} bytes", f"{entry['bytes']:,}"
    elif info.num_bytes > (MAX_COMPARED_BYTES if storage.is_local else MAX_BUFFERED_BYTES):
        return None
    else:
        source = pa.OSFile(storage.url_of(name)) if storage.is_local else pa.BufferReader(_downloaded(storage, info))
        found, due = f"sha256 {_sha256(source)}", entry["sha256"]
        if found == f"sha256 {due}":
            return source
    if storage.stat(f"{RETRY}/plan.json") is not None:
        return None
    raise FormatError(
        f"{storage.url_of(name)}: {found[:23]}, the manifest has {due[:16]}: damaged, or of another dataset; restore "
        "it, or build it again"
    )


def _sha256(source: pa.NativeFile) -> str:
    found = hashlib.sha256()
    while block := source.read_buffer(_BLOCK_BYTES):
        found.update(block)
    source.seek(0)
    return found.hexdigest()


def _downloaded(storage: Storage, info: ObjectInfo) -> bytes:
    """Read an index in ranges, so that each response arrives within the storage's deadline even on a slow network."""
    ranges = [(at, min(_BLOCK_BYTES, info.num_bytes - at)) for at in range(0, info.num_bytes, _BLOCK_BYTES)]
    with ThreadPoolExecutor(min(len(ranges), _RANGES_IN_FLIGHT) or 1, thread_name_prefix="dataprep-index") as threads:
        return b"".join(threads.map(lambda found: storage.read_range(info.name, *found), ranges))
