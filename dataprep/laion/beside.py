"""The parquet file beside a shard: all rows of it, and how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dataprep.errors import FormatError
from dataprep.storage import Storage
from dataprep.workspace import RangeFile

if TYPE_CHECKING:
    import pyarrow as pa


def read_beside(storage: Storage, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A parquet file beside a shard, or some columns of it.

    Raises:
        FormatError: It is not there, damaged, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = storage.url_of(name) if storage.is_local else pa.PythonFile(RangeFile(storage, name), mode="r")
        table = pq.ParquetFile(source, pre_buffer=True).read(columns=columns, use_threads=False)
        missing = set(columns or ()) - set(table.column_names)
        if missing:
            raise ValueError(f"no column {', '.join(sorted(missing))}")
        return table
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        text = " ".join(str(error).split())[:200]
        raise FormatError(f"{storage.url_of(name)}: no readable parquet file ({text}); restore it") from error
