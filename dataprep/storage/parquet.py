"""Parquet files on disk or in a bucket, of which only the requested parts are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dataprep.errors import FormatError
from dataprep.messages import one_line
from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.range_file import RangeFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


_TAIL_BYTES = 1 << 14
"""Bytes at the end of a file that are read for its footer; that of one row group of ten columns has some 3 kB."""
_MAGIC = b"PAR1"


def open_parquet(storage: Storage, name: str, *, window_bytes: int = 0, buffer_bytes: int = 0) -> pq.ParquetFile:
    """Open a parquet file: the footer is read now, everything else when it is requested.

    In a bucket, one request reads the columns of a row group.

    Args:
        storage: Where the file lies.
        name: The file.
        window_bytes: Minimum number of bytes of a request to a bucket; for reading many small row groups in order.
        buffer_bytes: Read the pages of each column when they are needed, this many bytes at a time; for row groups
            whose columns are too large for memory.

    Raises:
        FileNotFoundError: There is no such file.
        pyarrow.ArrowException, OSError, ValueError: The file is no parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if storage.is_local:
        # With pre_buffer, pyarrow keeps all that was read of a file until it is closed.
        return pq.ParquetFile(storage.url_of(name), buffer_size=buffer_bytes, pre_buffer=not buffer_bytes)
    source = pa.PythonFile(RangeFile(storage, name, window_bytes), mode="r")
    return pq.ParquetFile(source, buffer_size=buffer_bytes, pre_buffer=not (window_bytes or buffer_bytes))


def read_columns(storage: Storage, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a parquet file, or some of its columns.

    Raises:
        FormatError: The file is absent or damaged, or lacks a column.
    """
    import pyarrow as pa

    try:
        table = open_parquet(storage, name).read(columns=columns, use_threads=False)
        missing = set(columns or ()) - set(table.column_names)
        if missing:
            raise ValueError(f"no column {', '.join(sorted(missing))}")
        return table
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        raise FormatError(
            f"{storage.url_of(name)}: no readable parquet file ({one_line(error)}); restore it"
        ) from error


def table_in(data: bytes) -> pa.Table:
    """Read the bytes of a small parquet file. Raises what pyarrow raises for damaged ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def footer_metadata(storage: Storage, info: ObjectInfo, max_bytes: int) -> Mapping[bytes, bytes]:
    """Return the metadata of a parquet file from its footer: one request, a second one for a large footer.

    Args:
        storage: Where the file lies.
        info: The file, as it was listed.
        max_bytes: Maximum size of the footer.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The end of the file is no footer of at most `max_bytes` bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

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
