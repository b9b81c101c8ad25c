"""Reads the index of a split, `index/<split>.parquet` or its parts, row group by row group.

Its bytes are not trusted before their digest is compared. Every error of pyarrow about a damaged file becomes a
FormatError that names the file.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

from dataprep.dataset.index_parts import index_files
from dataprep.dataset.index_rows import index_schema
from dataprep.dataset.paths import RETRY_JSON
from dataprep.dataset.records import FileEntry, SplitManifest
from dataprep.errors import FormatError
from dataprep.messages import one_line
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.parquet import ParquetFile, open_parquet, path_of

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 16
"""Rows in a batch, where an index is not read shard by shard; with 10 columns they take about 10 MB."""
MAX_COMPARED_BYTES = 2**30
"""Size of the largest index on disk whose digest is compared: 18 million samples. ImageNet's 77 MB take 0.07 s."""
MAX_BUFFERED_BYTES = 2**28
"""Size of the largest index in a bucket whose digest is compared: 4 million samples. Such an index is kept in
memory."""
MAX_READERS = 8
"""Maximum number of readers of an index at work, and of idle ones; each keeps a footer, some 10 kB a shard."""
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
            self._file = open_parquet(storage, name) if source is None else ParquetFile(pq.ParquetFile(source))
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
            table = self._file.read_row_group(group, columns)
            self._check(table)
            return table

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, BATCH_ROWS at a time. Raises FormatError."""
        batches = self._file.iter_batches(BATCH_ROWS, columns=columns)
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


def open_index_file(storage: Storage, name: str, source: pa.NativeFile | None = None) -> ParquetTable:
    """Open one file of an index; see `index_schema` for its columns. Raises FileNotFoundError and FormatError."""
    nullable = frozenset({"image_crc32c", "height", "width"})
    schemas = index_schema(), index_schema(with_files=True), index_schema(with_annotations=True)
    return ParquetTable(storage, name, *schemas, nullable=nullable, source=source)


class Index:
    """The index of a split, shard by shard: one file, or parts that are opened when one of their shards is read.

    Safe in many threads: each borrows a reader, because pyarrow keeps a row group's bytes in the file while it is read.

    Args:
        storage: Place of the index.
        split: The split.
        compare: Compare the digest and the row groups of each file with the manifest before its rows are used. On disk
            the file stays open then; from a bucket it is kept in memory. So the bytes that were compared are the bytes
            that are read, also after `retry-failed` has published a longer index. Of a large index only the size is
            compared, and while a retry is under way, the index may be newer than the manifest.

    Raises:
        FileNotFoundError: The first file that a method opens does not exist.
        FormatError: A file that a method opens is damaged, or not the one that the manifest lists.
    """

    def __init__(self, storage: Storage, split: SplitManifest, *, compare: bool = False) -> None:
        self._storage, self._split, self._compare = storage, split, compare
        self._files = index_files(split)
        counts = [part["shards"] for part in split.index["parts"]] if "parts" in split.index else [len(split.shards)]
        self._first = [0, *accumulate(counts)]
        """First shard of each file, and the number of shards."""
        self._borrowing = threading.Semaphore(MAX_READERS)
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._idle: list[tuple[int, ParquetTable]] = []
        """Readers that no thread has, with the number of their file; the last one used last."""
        self._sources: dict[int, pa.NativeFile | None] = {}
        """Bytes of the files that were compared; None for those that are too large."""
        self._columns: tuple[str, ...] = ()
        """Columns of all files; empty until one of them is open."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; the first file is opened for them, unless a file is open."""
        if not self._columns:
            self.open_first()
        return self._columns

    def open_first(self) -> None:
        """Open the first file, so that errors of an index that is missing or damaged are raised now."""
        with self._reader(0):
            pass

    @property
    def group_rows(self) -> list[int]:
        """Number of rows of each row group; this opens all parts."""
        return [rows for number in range(len(self._files)) for rows in self._rows_of(number)]

    def read_group(self, shard: int, columns: Sequence[str] | None = None, *, without: str = "") -> pa.Table:
        """Read the rows of one shard: some columns, or all but the one that is left out."""
        number = self._number(shard)
        with self._reader(number) as table:
            chosen = [name for name in table.columns if name != without] if without else columns
            return table.read_group(shard - self._first[number], chosen)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, BATCH_ROWS at a time."""
        for number in range(len(self._files)):
            with self._reader(number) as table:
                yield from table.batches(columns)

    def place(self, shard: int) -> tuple[str, int]:
        """Return the name of the file with a shard's rows, and the number of their row group in it."""
        number = self._number(shard)
        return self._files[number]["file"], shard - self._first[number]

    def _number(self, shard: int) -> int:
        return min(bisect_right(self._first, shard), len(self._files)) - 1

    def _rows_of(self, number: int) -> list[int]:
        with self._reader(number) as table:
            return table.group_rows

    @contextmanager
    def _reader(self, number: int) -> Iterator[ParquetTable]:
        """Lend a reader of a file to one thread at a time; one that failed is not used again."""
        with self._borrowing:
            table = self._taken(number) or self._opened(number)
            yield table
            with self._lock:
                self._idle = [*self._idle[1 - MAX_READERS :], (number, table)]

    def _taken(self, number: int) -> ParquetTable | None:
        with self._lock:
            at = next((at for at, (file, _) in enumerate(self._idle) if file == number), None)
            return None if at is None else self._idle.pop(at)[1]

    def _opened(self, number: int) -> ParquetTable:
        try:
            with self._opening:
                if number not in self._sources:
                    self._sources[number] = self._source(self._files[number]) if self._compare else None
            table = open_index_file(self._storage, self._files[number]["file"], self._sources[number])
        except FileNotFoundError as error:
            if not self._columns:
                raise
            raise FormatError(f"{error}: missing, the manifest lists it; restore it or build again") from error
        if self._compare or len(self._files) > 1:
            self._compare_groups(number, table)
        if self._columns not in ((), table.columns):
            where = self._storage.url_of(self._files[number]["file"])
            raise FormatError(f"{where}: other columns than in another part of the index; build it again")
        self._columns = table.columns
        return table

    def _source(self, entry: FileEntry) -> pa.NativeFile | None:
        """Open a file and compare its digest with the manifest's; None where only its size was compared."""
        import pyarrow as pa

        storage, name = self._storage, entry["file"]
        info = storage.stat(name)
        if info is None:
            raise FileNotFoundError(storage.url_of(name))
        if info.num_bytes != entry["bytes"]:
            found, due = f"{info.num_bytes:,} bytes", f"{entry['bytes']:,}"
        elif self._split.index["bytes"] > (MAX_COMPARED_BYTES if storage.is_local else MAX_BUFFERED_BYTES):
            return None
        else:
            source = _opened(storage, name) if storage.is_local else pa.BufferReader(_downloaded(storage, info))
            found, due = f"sha256 {_sha256(source)}", entry["sha256"]
            if found == f"sha256 {due}":
                return source
        if storage.stat(RETRY_JSON) is not None:
            return None
        raise FormatError(
            f"{storage.url_of(name)}: {found[:23]}, the manifest has {due[:16]}: damaged, or of another dataset; "
            "restore it, or build it again"
        )

    def _compare_groups(self, number: int, table: ParquetTable) -> None:
        """Raise FormatError where a file does not have the shards of the manifest, before a count is relied on."""
        where, found = self._storage.url_of(self._files[number]["file"]), table.group_rows
        shards = self._split.shards[self._first[number] : self._first[number + 1]]
        is_last = number == len(self._files) - 1
        if len(found) < len(shards) or (len(found) > len(shards) and not is_last):  # a later revision adds shards
            raise FormatError(
                f"{where}: {len(found):,} row groups, the manifest lists {len(shards):,} shards; build it again"
            )
        for group, (rows, shard) in enumerate(zip(found, shards, strict=False)):
            if rows != shard["samples"]:
                raise FormatError(
                    f"{where}: row group {group} of {rows:,} samples does not describe {shard['file']} of "
                    f"{shard['samples']:,}; build it again"
                )


def open_index(storage: Storage, split: SplitManifest, *, compare: bool = False) -> Index:
    """Open the index of a split, and the first of its files; see `Index`. Raises FileNotFoundError and FormatError."""
    index = Index(storage, split, compare=compare)
    index.open_first()
    return index


def _sha256(source: pa.NativeFile) -> str:
    found = hashlib.sha256()
    while block := source.read_buffer(_BLOCK_BYTES):
        found.update(block)
    source.seek(0)
    return found.hexdigest()


def _opened(storage: Storage, name: str) -> pa.NativeFile:
    import pyarrow as pa

    with storage.open(name) as file:
        return pa.OSFile(path_of(file))


def _downloaded(storage: Storage, info: ObjectInfo) -> bytes:
    """Read an index in ranges, so that each response arrives within the storage's deadline even on a slow network."""
    ranges = [(at, min(_BLOCK_BYTES, info.num_bytes - at)) for at in range(0, info.num_bytes, _BLOCK_BYTES)]
    with ThreadPoolExecutor(min(len(ranges), _RANGES_IN_FLIGHT) or 1, thread_name_prefix="dataprep-index") as threads:
        return b"".join(threads.map(lambda found: storage.read_range(info.name, *found), ranges))
