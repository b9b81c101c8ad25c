"""Values of one kind, any number of them, in bounded memory: what a list would be if it had not to fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from dataprep.dataset.columns import binaries
from dataprep.dataset.spill import SpilledTable, in_order_of_text

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_BATCH_ITEMS = 1 << 15
_BATCH_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How values become bytes in a temporary file, and come back."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    content: str
    """What the values are, for messages."""


class SpilledItems(Generic[T]):
    """Values in the order in which they are added; they are read from the first to the last, any number of times."""

    def __init__(self, codec: Codec[T], items: Iterable[T] = ()) -> None:
        self._codec = codec
        self._rows = SpilledTable(_schema("item"), codec.content)
        self._added: list[bytes] = []
        self._added_bytes = 0
        for item in items:
            self.append(item)

    def append(self, item: T) -> None:
        """Add a value at the end. Raises StorageError if the temporary folder is full."""
        data = self._codec.encode(item)
        self._added.append(data)
        self._added_bytes += len(data)
        if len(self._added) >= _BATCH_ITEMS or self._added_bytes >= _BATCH_BYTES:
            self._flush()

    def __len__(self) -> int:
        return self._rows.num_rows + len(self._added)

    def __iter__(self) -> Iterator[T]:
        self._flush()
        for batch in self._rows.batches():
            yield from map(self._codec.decode, batch.column(0).to_pylist())

    def in_order(self, key: Callable[[T], bytes]) -> SpilledItems[T]:
        """Return the values sorted by a key; those of the same key stay in their order."""
        import pyarrow as pa

        self._flush()
        keyed = SpilledTable(_schema("key", "item"), self._codec.content)
        for batch in self._rows.batches():
            keys = binaries([key(self._codec.decode(data)) for data in batch.column(0).to_pylist()])
            keyed.add(pa.RecordBatch.from_arrays([keys, batch.column(0)], schema=keyed.schema))
        found = SpilledItems(self._codec)
        for table in in_order_of_text(keyed, "key"):
            for batch in table.select(["item"]).to_batches(_BATCH_ITEMS):
                found._rows.add(batch)
        return found

    def _flush(self) -> None:
        import pyarrow as pa

        if self._added:
            self._rows.add(pa.RecordBatch.from_arrays([binaries(self._added)], schema=self._rows.schema))
            self._added, self._added_bytes = [], 0


def _schema(*names: str) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.binary()) for name in names])
