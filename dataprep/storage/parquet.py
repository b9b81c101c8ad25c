"""Parquet files on disk or in a bucket; only the requested parts are read."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import BinaryIO, Self

from dataprep.arrays import pa, pq
from dataprep.errors import FormatError
from dataprep.messages import one_line
from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.ranges import RangeFile

_TAIL_BYTES = 1 << 14
"""Bytes at the end of a file that are read for its footer; one row group of ten columns takes some 3 kB there."""
_MAGIC = b"PAR1"
_MANY_BYTES = 1 << 60
"""Size larger than any file's."""
_PAGE_BYTES = 1 << 12
"""Buffer size that keeps pyarrow from reading a column before its first page is needed."""


class _UnreadableError(Exception):
    """Raised instead of reading bytes."""


class _Unreadable(io.RawIOBase):
    """A large file that cannot be read."""

    _position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = _MANY_BYTES if whence == io.SEEK_END else offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        raise _UnreadableError


class ParquetFile:
    """A parquet file; only the requested row groups and columns are read, in the thread that requests them.

    Files in buckets are read by Python code, and a thread of Arrow that needs the interpreter while it shuts down would
    abort the process.

    Args:
        file: The file as pyarrow opened it.
        ranges: A file in a bucket; pyarrow reads complete column chunks from it, so that close ones take one request.
    """

    def __init__(self, file: pq.ParquetFile, ranges: RangeFile | None = None) -> None:
        self._file, self._ranges = file, ranges
        self._unread: pq.ParquetFile | None = None
        self.metadata: pq.FileMetaData = file.metadata
        self.schema_arrow: pa.Schema = file.schema_arrow

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read all row groups."""
        with self._expecting(range(self.metadata.num_row_groups), columns):
            return self._file.read(columns=columns, use_threads=False)

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one row group."""
        with self._expecting([group], columns):
            return self._file.read_row_group(group, columns=columns, use_threads=False)

    def iter_batches(
        self, rows: int, row_groups: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups or of all in order, at most `rows` at a time."""
        groups = range(self.metadata.num_row_groups) if row_groups is None else row_groups
        for run in [groups] if self._ranges is None else self._runs(groups, rows):
            with self._expecting(run, columns):
                yield from self._file.iter_batches(rows, row_groups=run, columns=columns, use_threads=False)

    def _runs(self, groups: Iterable[int], rows: int) -> Iterator[list[int]]:
        """Divide row groups into runs of at least `rows` rows: only the bytes of one run are in memory."""
        run, count = [], 0
        for group in groups:
            run.append(group)
            count += self.metadata.row_group(group).num_rows
            if count >= rows:
                yield run
                run, count = [], 0
        if run:
            yield run

    def _refuse_damaged(self, groups: Sequence[int], columns: Sequence[str] | None) -> None:
        """Raise an error if a column's metadata are damaged: `RowGroupMetaData.column` would end the process.

        Each row group is opened over a file that cannot be read, so that no bytes are requested.
        """
        if self._unread is None:
            source = pa.PythonFile(_Unreadable(), mode="r")
            self._unread = pq.ParquetFile(source, metadata=self.metadata, buffer_size=_PAGE_BYTES, pre_buffer=False)
        for group in groups:
            with suppress(_UnreadableError):
                next(self._unread.iter_batches(1, row_groups=[group], columns=columns, use_threads=False), None)

    def _expecting(self, groups: Sequence[int], columns: Sequence[str] | None) -> AbstractContextManager[None]:
        if self._ranges is None:
            return nullcontext()
        schema = self.metadata.schema
        self._refuse_damaged(groups, columns)
        paths = [schema.column(leaf).path for leaf in range(self.metadata.num_columns)]
        leaves = [
            leaf
            for leaf, path in enumerate(paths)
            if columns is None or path in columns or path.startswith(tuple(f"{column}." for column in columns))
        ]
        known = range(self.metadata.num_row_groups)  # pyarrow has the error for others
        chunks = (self.metadata.row_group(group).column(leaf) for group in groups if group in known for leaf in leaves)
        return self._ranges.expecting(map(_range_of, chunks))


def open_parquet(
    storage: Storage, name: str, *, window_bytes: int = 0, buffer_bytes: int = 0, num_bytes: int | None = None
) -> ParquetFile:
    """Open a parquet file: the footer is read now, everything else when it is requested.

    In a bucket, one request reads the columns of a row group.

    Args:
        window_bytes: Minimum number of bytes of a request to a bucket; for reading many small row groups in order.
        buffer_bytes: Read the pages of each column when they are needed, this many bytes at a time; for row groups
            whose columns are too large for memory.
        num_bytes: The file's size, if it is known: one request less to a bucket.

    Raises:
        FileNotFoundError: There is no such file.
        pyarrow.ArrowException, OSError, ValueError: The file is not a parquet file.
    """
    if storage.is_local:
        # With pre_buffer, pyarrow keeps all bytes that it has read until the file is closed.
        with storage.open(name) as file:
            return ParquetFile(pq.ParquetFile(path_of(file), buffer_size=buffer_bytes, pre_buffer=not buffer_bytes))
    ranges = RangeFile(storage, name, window_bytes, num_bytes=num_bytes)
    file = pq.ParquetFile(pa.PythonFile(ranges, mode="r"), buffer_size=buffer_bytes, pre_buffer=False)
    return ParquetFile(file, None if window_bytes or buffer_bytes else ranges)


def path_of(file: BinaryIO) -> str:
    """Return a path to an open file that stays valid if the file is renamed or replaced."""
    return f"/proc/self/fd/{file.fileno()}" if sys.platform == "linux" else f"/dev/fd/{file.fileno()}"


def read_columns(storage: Storage, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a parquet file, or some of its columns. Raises FormatError if it is absent or damaged, or lacks a column."""
    try:
        table = open_parquet(storage, name).read(columns)
        missing = set(columns or ()) - set(table.column_names)
        if missing:
            raise ValueError(f"no column {', '.join(sorted(missing))}")
        return table
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        raise FormatError(
            f"{storage.url_of(name)}: not a readable parquet file ({one_line(error)}); restore it"
        ) from error


def table_in(data: bytes) -> pa.Table:
    """Read the bytes of a small parquet file. Raises what pyarrow raises for damaged ones."""
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def footer_metadata(storage: Storage, info: ObjectInfo, max_bytes: int) -> Mapping[bytes, bytes]:
    """Return the metadata of a parquet file from its footer: one request, a second one for a large footer.

    Raises FileNotFoundError, and ValueError if the file does not end with a footer of at most `max_bytes` bytes.
    """
    tail = storage.read_range(info.name, max(0, info.num_bytes - _TAIL_BYTES), min(info.num_bytes, _TAIL_BYTES))
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] != _MAGIC or footer_bytes > min(info.num_bytes, max_bytes):
        raise ValueError(f"{info.num_bytes:,} bytes that do not end as a parquet file of at most {max_bytes:,}")
    if footer_bytes > len(tail):
        tail = storage.read_range(info.name, info.num_bytes - footer_bytes, footer_bytes)
    try:
        return pq.read_metadata(pa.BufferReader(tail)).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(one_line(error)) from error


def _range_of(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return start and end of a column chunk; its dictionary precedes its data."""
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    return start, start + chunk.total_compressed_size
