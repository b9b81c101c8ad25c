"""Tables of any length in bounded memory: their rows wait in a temporary file, and come back in any order.

    add ─▶ SpilledTable ─▶ batches                  in the order in which they were added
                        ─▶ in_order_of_words        in the order of a random number a row: shuffled, or equal rows found
                        ─▶ in_order_of_text         sorted by a column of text

The rows are put into another order in two steps. First they are divided among parts, each of which has the rows between
two numbers or texts, and fits into memory; then each part is sorted, one after the other. Parts of random numbers are
equally large. A table that fits into memory is one part, and never touches the disk.

Two lists are made of such tables: `SpilledItems` holds values of any kind, and `SpilledReferences` the references of a
split, of which a million take 281 to 900 MB as Python objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

from dataprep.arrays import NDArray, np, pa
from dataprep.dataset.columns import binaries, call, cast, from_numpy, numbers, repeated, strings, table_of, to_numpy
from dataprep.dataset.randomness import spread
from dataprep.dataset.records import References, SampleRef
from dataprep.storage.spool import Extent, ScratchFile

if TYPE_CHECKING:
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
_WORD = "\0word"
T = TypeVar("T")
_BATCH_ITEMS, _ITEMS_BYTES = 1 << 15, 1 << 24
"""Maximum number of values that wait in memory, and of their bytes."""
REFERENCE_ROWS = 1 << 15
"""Maximum number of references that wait in memory as Python objects."""
_ANNOTATION_BYTES = 1 << 24
"""Maximum size of their annotations."""
_SAMPLED_BATCHES = 16
"""Batches from which a sample of references is taken; to read one of REFERENCE_ROWS takes a few milliseconds."""


class SpilledTable:
    """Rows of one schema without dictionaries; beyond MEMORY_BYTES they are in a temporary file, which tables may
    share. Messages name the content."""

    def __init__(self, schema: pa.Schema, content: str, scratch: ScratchFile | None = None) -> None:
        self.schema, self.content = schema, content
        self.num_rows = 0
        self.num_bytes = 0
        """Size of all rows before compression."""
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
        """Yield all rows, in the order of their addition."""
        for piece in self._pieces:
            yield _unpacked(self._scratch.read(piece)) if isinstance(piece, Extent) else piece

    def some_batches(self, most: int) -> list[pa.RecordBatch]:
        """Return up to `most` of the batches that `batches` yields, spread over all; the others are not read."""
        chosen = (self._pieces[position] for position in spread(len(self._pieces), most))
        return [_unpacked(self._scratch.read(piece)) if isinstance(piece, Extent) else piece for piece in chosen]

    def table(self) -> pa.Table:
        """Return all rows as one table, in memory."""
        return pa.Table.from_batches(self.batches(), self.schema).combine_chunks()


def in_order_of_words(rows: SpilledTable, words: Words) -> Iterator[pa.Table]:
    """Yield all rows in the order of a random number of each, spread evenly over 64 bits; equal ones keep their
    order."""
    parts = _part_count(rows)
    high = np.uint64(32)

    def part_of(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        return ((numbers >> high) * np.uint64(parts) >> high).astype(np.int64)

    def with_words() -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        first = 0
        for batch in rows.batches():
            numbers = words(first, batch)
            first += batch.num_rows
            columns, names = [*batch.columns, from_numpy(numbers)], [*batch.schema.names, _WORD]
            yield pa.RecordBatch.from_arrays(columns, names=names), part_of(numbers)

    for part in _parts(rows, with_words(), parts):
        order = np.argsort(to_numpy(part.column(part.num_columns - 1)), kind="stable")
        yield call("take", part.drop_columns([_WORD]), from_numpy(order))


def in_order_of_text(rows: SpilledTable, column: str) -> Iterator[pa.Table]:
    """Yield all rows, sorted by the bytes of a column of text or bytes; rows with equal values keep their order."""
    bounds = _bounds(rows, column, _part_count(rows))

    def with_parts() -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        for batch in rows.batches():
            texts = np.empty(batch.num_rows, object)
            texts[:] = _bytes_of(batch.column(column))
            yield batch, np.searchsorted(bounds, texts, side="right")

    for part in _parts(rows, with_parts(), len(bounds) + 1):
        yield call("take", part, call("array_sort_indices", part.column(column)))


def _part_count(rows: SpilledTable) -> int:
    return min(MAX_PARTS, max(1, -(-rows.num_bytes // PART_BYTES)))


def _bounds(rows: SpilledTable, column: str, parts: int) -> NDArray[np.object_]:
    """Return the first texts of all parts except the first, from an even sample of the rows."""
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
    texts: list[bytes] = column.view(pa.binary()).to_pylist()
    return texts


def _parts(
    rows: SpilledTable, divided: Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]], count: int
) -> Iterator[pa.Table]:
    """Yield the rows of each part as a table, in their own order; `divided` are batches of the rows, perhaps with
    another column, each with the parts' numbers of its rows."""
    if count == 1:
        batches = [batch for batch, _ in divided]
        if batches:
            yield pa.Table.from_batches(batches).combine_chunks()
        return
    scratch = ScratchFile(f"{rows.content}, in another order,", rows.num_bytes)
    parts: list[SpilledTable] = []
    waiting: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
    waiting_bytes = 0
    for batch, places in divided:
        parts = parts or [SpilledTable(batch.schema, rows.content, scratch) for _ in range(count)]
        _divide(batch, places, waiting)
        waiting_bytes += batch.nbytes
        if waiting_bytes > PART_BYTES:
            _put(waiting, parts)
            waiting_bytes = 0
    _put(waiting, parts)
    for part in parts:
        yield part.table()


def _divide(batch: pa.RecordBatch, numbers: NDArray[np.int64], waiting: Sequence[list[pa.RecordBatch]]) -> None:
    """Append the rows of a batch to the lists of their parts."""
    sorted_batch = call("take", batch, from_numpy(np.argsort(numbers, kind="stable")))
    bounds = np.cumsum(np.bincount(numbers, minlength=len(waiting)))
    for part, (start, stop) in enumerate(pairwise([0, *bounds.tolist()])):
        if stop > start:
            waiting[part].append(sorted_batch.slice(start, stop - start))


def _put(waiting: Sequence[list[pa.RecordBatch]], parts: Sequence[SpilledTable]) -> None:
    for batches, part in zip(waiting, parts, strict=False):
        if batches:
            part.add(pa.concat_batches(batches))
            part.spill()
            batches.clear()


def _packed(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _unpacked(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Encoding of values in a temporary file."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    content: str


class SpilledItems(Generic[T]):
    """Values in the order of their addition; they are read from the first to the last, any number of times."""

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
        if len(self._added) >= _BATCH_ITEMS or self._added_bytes >= _ITEMS_BYTES:
            self._flush()

    def __len__(self) -> int:
        return self._rows.num_rows + len(self._added)

    def __iter__(self) -> Iterator[T]:
        self._flush()
        for batch in self._rows.batches():
            yield from map(self._codec.decode, batch.column(0).to_pylist())

    def in_order(self, key: Callable[[T], bytes]) -> SpilledItems[T]:
        """Return the values sorted by a key; values with the same key keep their order."""
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
        if self._added:
            self._rows.add(pa.RecordBatch.from_arrays([binaries(self._added)], schema=self._rows.schema))
            self._added, self._added_bytes = [], 0


def _schema(*names: str) -> pa.Schema:
    return pa.schema([(name, pa.binary()) for name in names])


@cache
def spill_schema() -> pa.Schema:
    """Return the columns of references in a temporary file: annotations are canonical JSON, empty without features, and
    a checksum is null where it is not known."""
    return pa.schema(
        [
            ("key", pa.string()),
            ("source", pa.string()),
            ("offset", pa.int64()),
            ("num_bytes", pa.int64()),
            ("label", pa.int32()),
            ("annotations", pa.large_string()),
            ("crc32c", pa.uint32()),
            ("version", pa.int64()),
        ]
    )


class SpilledReferences:
    """References in the order of their addition."""

    def __init__(self) -> None:
        self._rows = SpilledTable(spill_schema(), "the list of samples")
        self._added: list[SampleRef] = []
        self._added_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def add(self, ref: SampleRef) -> None:
        """Add a reference at the end. Raises StorageError if the temporary folder is full."""
        self._added.append(ref)
        self._added_bytes += len(ref.annotations)
        if len(self._added) >= REFERENCE_ROWS or self._added_bytes >= _ANNOTATION_BYTES:
            self._flush()

    def add_rows(self, rows: pa.RecordBatch) -> None:
        """Add many references at the end, as rows with the columns of `spill_schema`."""
        self._take_added()
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= REFERENCE_ROWS or rows.nbytes >= _ANNOTATION_BYTES:
            self._flush()

    def relabelled(self, ranks: Sequence[int]) -> SpilledReferences:
        """Return these references with other labels: each label, a position in `ranks`, becomes the number there."""
        found, table = SpilledReferences(), np.array(ranks, np.int32)
        position = spill_schema().get_field_index("label")
        for batch in self.batches():
            labels = from_numpy(table[to_numpy(batch.column(position))])
            found.add_rows(batch.set_column(position, batch.schema.field(position), labels))
        return found

    def __len__(self) -> int:
        return self._rows.num_rows + self._waiting_rows + len(self._added)

    def __iter__(self) -> Iterator[SampleRef]:
        for batch in self.batches():
            yield from refs_of_rows(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all references as rows with the columns of `spill_schema`."""
        return self.rows().batches()

    def sample(self, most: int) -> list[SampleRef]:
        """Return about `most` references, spread over all, or all if they are fewer; reads only a few batches."""
        batches = self.rows().some_batches(min(most, _SAMPLED_BATCHES))
        found: list[SampleRef] = []
        for batch in batches:
            positions = spread(batch.num_rows, -(-most // len(batches)))
            found.extend(refs_of_rows(call("take", batch, from_numpy(np.array(positions, np.int64)))))
        return found

    def rows(self) -> SpilledTable:
        """Return all references as a table with the columns of `spill_schema`."""
        self._flush()
        return self._rows

    def _flush(self) -> None:
        self._take_added()
        if self._waiting:
            self._rows.add(self._waiting[0] if len(self._waiting) == 1 else pa.concat_batches(self._waiting))
            self._waiting, self._waiting_rows = [], 0

    def _take_added(self) -> None:
        if self._added:
            added, self._added, self._added_bytes = self._added, [], 0
            self._waiting.append(rows_of_refs(added))
            self._waiting_rows += len(added)


def spilled(refs: References) -> SpilledReferences:
    """Return references that can be read in batches: these, or a copy of a list."""
    if isinstance(refs, SpilledReferences):
        return refs
    found = SpilledReferences()
    for ref in refs:
        found.add(ref)
    return found


def rows_of_refs(refs: Sequence[SampleRef]) -> pa.RecordBatch:
    """Return references as rows with the columns of `spill_schema`, in their order."""
    *columns, annotations, checksums, versions = zip(*refs, strict=True)
    texts = [text.decode() for text in annotations]
    return table_of([*columns, texts, checksums, versions], spill_schema()).to_batches()[0]


def spill_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return stored references as rows with the columns of `spill_schema`. Stored text may be dictionary-encoded, and
    annotations, checksums and versions may be missing. Raises pyarrow.ArrowException, KeyError or ValueError if another
    column is missing, or one is of another type or has missing values."""
    columns = []
    absent = {"annotations": strings([""], large=True), "crc32c": numbers([None], pa.uint32())}
    absent["version"] = numbers([0], pa.int64())
    for field in spill_schema():
        if field.name in absent and field.name not in rows.schema.names:
            columns.append(repeated(absent[field.name], rows.num_rows))
            continue
        columns.append(cast(rows.column(field.name), field.type))
        if columns[-1].null_count and field.name != "crc32c":
            raise ValueError(f"values of {field.name} are missing")
    return pa.RecordBatch.from_arrays(columns, schema=spill_schema())


def refs_of_rows(rows: pa.RecordBatch) -> Iterator[SampleRef]:
    """Yield the references of rows with the columns of `spill_schema`."""
    *columns, texts, checksums, versions = (rows.column(name).to_pylist() for name in spill_schema().names)
    yield from map(SampleRef, *columns, map(str.encode, texts), checksums, versions)


def enumeration_sha256(refs: References) -> str:
    """Return the hash of the references found in the originals, in their order.

    Each has a line of its fields with tabs between them: key, source, offset, bytes, label, and annotations if it has
    any; checksum and version are not among them.
    """
    digest, kind = hashlib.sha256(), pa.large_string()
    tab, end, nothing = strings(["\t", "\n", ""], large=True)  # pa.scalar would import pandas
    for batch in spilled(refs).batches():
        *fields, texts = (cast(column, kind) for column in batch.columns[:-2])
        before = call("if_else", call("equal", texts, nothing), nothing, tab)
        head = call("binary_join_element_wise", *fields, tab)
        lines = call("binary_join_element_wise", head, before, texts, end, nothing)
        digest.update(_text_of(lines))
    return digest.hexdigest()


def _text_of(texts: pa.LargeStringArray) -> memoryview:
    """Return the bytes of all texts, one after the other."""
    _, ends, data = texts.buffers()
    bounds = memoryview(ends).cast("q")
    return memoryview(data)[bounds[texts.offset] : bounds[texts.offset + len(texts)]]
