"""`index/<split>.parquet` and its events, read group by group: hostile bytes until their digest is known.

Whatever pyarrow says of a damaged file becomes a FormatError that names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dataprep.errors import FormatError
from dataprep.records import Event
from dataprep.storage import Storage
from dataprep.workspace import RangeFile, index_schema

if TYPE_CHECKING:
    import pyarrow as pa

# Of one batch of rows that is not read shard by shard: 10 columns of them take some 10 MB.
BATCH_ROWS = 1 << 16


class ParquetTable:
    """One parquet file in a dataset, of which only what is asked for is read.

    Args:
        storage: The dataset's.
        name: The file.
        schemas: The columns that it must have; one of them.
        nullable: Those in which values may be missing.

    Raises:
        FileNotFoundError: There is none.
        FormatError: It is no parquet file, or has other columns.
    """

    def __init__(
        self, storage: Storage, name: str, *schemas: pa.Schema, nullable: frozenset[str] = frozenset()
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._url, self._nullable = storage.url_of(name), nullable
        with self._readable():
            if storage.is_local:
                self._file = pq.ParquetFile(self._url)
            else:
                # One request for the columns of a row group, not one a column.
                source = pa.PythonFile(RangeFile(storage, name), mode="r")
                self._file = pq.ParquetFile(source, pre_buffer=True)
            found = self._file.schema_arrow.remove_metadata()
        if not any(found.equals(schema) for schema in schemas):
            columns = ", ".join(f"{field.name} {field.type}" for field in found)[:200]
            raise FormatError(f"{self._url}: columns {columns}; expected {', '.join(schemas[0].names)}; build it again")
        self.columns: tuple[str, ...] = tuple(found.names)

    @property
    def group_rows(self) -> list[int]:
        """Rows of each row group."""
        metadata = self._file.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """One row group. Raises FormatError."""
        with self._readable():
            table = self._file.read_row_group(group, columns=columns, use_threads=False)
            self._check(table)
            return table

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows in order, some at a time. Raises FormatError."""
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
        # Damaged thrift, pages and dictionaries come out as any of these.
        except (pa.ArrowException, ValueError, OSError, KeyError, MemoryError, OverflowError) as error:
            text = " ".join(str(error).split())[:200]
            raise FormatError(f"{self._url}: not the parquet file of a build ({text}); build it again") from error


def open_index(storage: Storage, split: str) -> ParquetTable:
    """The index of a split; see `index_schema` for its columns. Raises FileNotFoundError and FormatError."""
    nullable = frozenset({"image_crc32c", "height", "width"})
    schemas = index_schema(), index_schema(with_files=True)
    return ParquetTable(storage, f"index/{split}.parquet", *schemas, nullable=nullable)


def open_events(storage: Storage, split: str) -> ParquetTable:
    """Repairs and rejections of a split. Raises FileNotFoundError and FormatError."""
    return ParquetTable(storage, f"index/{split}-events.parquet", events_schema())


def events_schema() -> pa.Schema:
    """Columns of `index/<split>-events.parquet`."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in Event.__dataclass_fields__])
