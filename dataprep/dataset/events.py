"""`index/<split>-events.parquet`: every repair and rejection of a split, in the order of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dataprep.dataset.columns import table_of
from dataprep.dataset.index import ParquetTable
from dataprep.dataset.records import Event
from dataprep.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa


def events_file(split: str) -> str:
    """Return the name of the file with a split's events."""
    return f"index/{split}-events.parquet"


def events_schema() -> pa.Schema:
    """Return the columns of `index/<split>-events.parquet`."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in Event.__dataclass_fields__])


def events_table(events: Sequence[Event]) -> pa.Table:
    """Return events as columns, in their order."""
    schema = events_schema()
    return table_of(([getattr(event, name) for event in events] for name in schema.names), schema)


def open_events(storage: Storage, split: str) -> ParquetTable:
    """Open the events of a split. Raises FileNotFoundError and FormatError."""
    return ParquetTable(storage, events_file(split), events_schema())


def read_events(storage: Storage, split: str) -> list[Event]:
    """Read every repair and rejection of a split. Raises FileNotFoundError and FormatError."""
    names = list(Event.__dataclass_fields__)
    return [Event(**row) for batch in open_events(storage, split).batches(names) for row in batch.to_pylist()]
