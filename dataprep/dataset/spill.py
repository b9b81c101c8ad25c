"""Tables of any length in bounded memory: their rows wait in a temporary file, and come back in any order.

    add ─▶ SpilledTable ─▶ batches                  in the order in which they were added
                        ─▶ in_order_of_words        in the order of a random number a row: shuffled, or equal rows found
                        ─▶ in_order_of_text         sorted by a column of text

The rows are put into another order in two steps. First they are divided among parts, each of which has the rows between
two numbers or texts, and fits into memory; then each part is sorted, one after the other. Parts of random numbers are
equally large. A table that fits into memory is one part, and never touches the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from dataprep.dataset.columns import from_numpy, to_numpy
from dataprep.dataset.spread import spread
from dataprep.storage.scratch import Extent, ScratchFile

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Words = Callable[[int, pa.RecordBatch], NDArray[np.uint64]]
    """Function that returns the random number of each row; takes the position of the first row, and the rows."""

MEMORY_BYTES = 1 << 22
"""Bytes of rows that a table keeps in memory before it writes to the disk."""
PART_BYTES = 1 << 24
"""Approximate size of a part, which is sorted in memory."""
MAX_PARTS = 512
"""Maximum number of parts; only beyond 8 GiB of rows are parts larger than PART_BYTES."""
_SAMPLE_ROWS = 1 << 16
"""Rows whose texts decide where parts begin and end."""


class SpilledTable:
    """Rows of one schema, which has no dictionaries; from a size on they are in a temporary file.

    Args:
        schema: Names and types of the columns.
        content: What the rows are, for messages.
        scratch: File to share with other tables; by default the table has its own.
    """

    def __init__(self, schema: pa.Schema, content: str, scratch: ScratchFile | None = None) -> None:
        self.schema, self.content = schema, content
        self.num_rows = 0
        self.num_bytes = 0
        """Size of all rows in memory, where they are not compressed."""
        self._scratch = scratch or ScratchFile(content)
        self._pieces: list[pa.RecordBatch | Extent] = []
        self._held_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows. Raises StorageError if the temporary folder is full."""
        self.num_rows += rows.num_rows
        self.num_bytes += rows.nbytes
        self._held_bytes += rows.nbytes
        self._pieces.append(rows)
        if self._held_bytes > MEMORY_BYTES:
            self.spill()

    def spill(self) -> None:
        """Move all rows that are in memory to the temporary file."""
        for index in range(len(self._pieces) - 1, -1, -1):
            piece = self._pieces[index]
            if isinstance(piece, Extent):
                break
            self._pieces[index] = self._scratch.append(_packed(piece))
        self._held_bytes = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, in the order in which they were added."""
        for piece in self._pieces:
            yield _unpacked(self._scratch.read(piece)) if isinstance(piece, Extent) else piece

    def some_batches(self, most: int) -> list[pa.RecordBatch]:
        """Return up to `most` of the batches that `batches` yields, spread over all; no other is read."""
        chosen = (self._pieces[position] for position in spread(len(self._pieces), most))
        return [_unpacked(self._scratch.read(piece)) if isinstance(piece, Extent) else piece for piece in chosen]

    def table(self) -> pa.Table:
        """Return all rows as one table, in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(), self.schema).combine_chunks()


def in_order_of_words(rows: SpilledTable, words: Words) -> Iterator[pa.Table]:
    """Yield all rows in the order of a random number of each; rows with the same number in their own order.

    Args:
        rows: The rows.
        words: Returns the numbers, which must be spread evenly over 64 bits.
    """
    import numpy as np

    parts = _part_count(rows)
    high = np.uint64(32)

    def part_of(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        return ((numbers >> high) * np.uint64(parts) >> high).astype(np.int64)

    def with_words() -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        first = 0
        for batch in rows.batches():
            numbers = words(first, batch)
            first += batch.num_rows
            yield _with_column(batch, numbers), part_of(numbers)

    for part in _parts(rows, with_words(), parts):
        order = np.argsort(to_numpy(part.column(part.num_columns - 1)), kind="stable")
        yield part.drop_columns([_WORD]).take(from_numpy(order))


def in_order_of_text(rows: SpilledTable, column: str) -> Iterator[pa.Table]:
    """Yield all rows in the order of the bytes of a column, of text or bytes; rows of equal ones in their own order."""
    import numpy as np
    import pyarrow.compute as pc

    bounds = _bounds(rows, column, _part_count(rows))

    def with_parts() -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        for batch in rows.batches():
            texts = np.empty(batch.num_rows, object)
            texts[:] = _bytes_of(batch.column(column))
            yield batch, np.searchsorted(bounds, texts, side="right")

    for part in _parts(rows, with_parts(), len(bounds) + 1):
        yield part.take(pc.sort_indices(part.column(column)))


_WORD = "\0word"


def _part_count(rows: SpilledTable) -> int:
    return min(MAX_PARTS, max(1, -(-rows.num_bytes // PART_BYTES)))


def _bounds(rows: SpilledTable, column: str, parts: int) -> NDArray[np.object_]:
    """Return the texts at which all parts but the first begin, from an even sample of the rows."""
    import numpy as np

    sample: list[bytes] = []
    if parts > 1:
        step = max(1, rows.num_rows // _SAMPLE_ROWS)
        for batch in rows.batches():
            sample.extend(_bytes_of(batch.column(column))[::step])
        sample.sort()
    bounds = np.empty(parts - 1, object)
    bounds[:] = [sample[len(sample) * part // parts] for part in range(1, parts)]
    return bounds


def _bytes_of(column: pa.Array) -> list[bytes]:
    import pyarrow as pa

    texts: list[bytes] = column.cast(pa.binary()).to_pylist()
    return texts


def _parts(
    rows: SpilledTable, divided: Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]], count: int
) -> Iterator[pa.Table]:
    """Yield the rows of each part as a table, in their own order.

    Args:
        rows: The table whose rows these are.
        divided: Batches of that table, which may have got another column, each with the parts' numbers of its rows.
        count: Number of parts.
    """
    import pyarrow as pa

    if count == 1:
        batches = [batch for batch, _ in divided]
        schema = batches[0].schema if batches else rows.schema
        if batches:
            yield pa.Table.from_batches(batches, schema).combine_chunks()
        return
    scratch = ScratchFile(f"{rows.content}, in another order,", rows.num_bytes)
    parts: list[SpilledTable] = []
    waiting: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
    waiting_bytes = 0
    for batch, numbers in divided:
        parts = parts or [SpilledTable(batch.schema, rows.content, scratch) for _ in range(count)]
        _divide(batch, numbers, waiting)
        waiting_bytes += batch.nbytes
        if waiting_bytes > PART_BYTES:
            _put(waiting, parts)
            waiting_bytes = 0
    _put(waiting, parts)
    for index in range(len(parts)):
        yield parts[index].table()


def _divide(batch: pa.RecordBatch, numbers: NDArray[np.int64], waiting: Sequence[list[pa.RecordBatch]]) -> None:
    """Append the rows of a batch to the lists of their parts."""
    import numpy as np

    sorted_batch = batch.take(from_numpy(np.argsort(numbers, kind="stable")))
    bounds = np.cumsum(np.bincount(numbers, minlength=len(waiting)))
    for part, (start, stop) in enumerate(pairwise([0, *bounds.tolist()])):
        if stop > start:
            waiting[part].append(sorted_batch.slice(start, stop - start))


def _put(waiting: Sequence[list[pa.RecordBatch]], parts: Sequence[SpilledTable]) -> None:
    import pyarrow as pa

    for batches, part in zip(waiting, parts, strict=False):
        if batches:
            part.add(pa.concat_batches(batches))
            part.spill()
            batches.clear()


def _with_column(batch: pa.RecordBatch, numbers: NDArray[np.uint64]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([*batch.columns, from_numpy(numbers)], names=[*batch.schema.names, _WORD])


def _packed(batch: pa.RecordBatch) -> memoryview:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _unpacked(data: bytes) -> pa.RecordBatch:
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()
