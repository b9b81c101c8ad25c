"""Columns: a value for each stored sample, in separate files next to the shards, joined by position.

    columns/<name>/column.json              what the values are and which files have them; written last
    columns/<name>/<split>-<digest>.arrow   the values of one shard: an Arrow file without compression, of one batch

A value is one byte range of its file. Its place follows from the sample's number if all values have one size, and
otherwise from the offsets in the file. `column.json` names the shard of each file by an identity of the shard's bytes
(`shard_id`), so a shard that stays the same over revisions keeps its file.

Anyone may have written a column: its names and places are compared with the dataset's manifest, and offsets with the
file's size, before one of them is used.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from dataprep.arrays import NDArray, np, pa
from dataprep.dataset.columns import from_numpy
from dataprep.dataset.documents import MAX_COUNT, Count, decode
from dataprep.dataset.features import name_fault
from dataprep.dataset.records import Manifest, SplitManifest, ViewedSplit
from dataprep.errors import FormatError, UsageError
from dataprep.messages import counted, quoted, there_are
from dataprep.storage import Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.errors import disk_errors

COLUMNS = "columns"
COLUMN_JSON = "column.json"
COLUMN_VERSION = 1
MAX_COLUMN_BYTES = 2**28
DType = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"
]
DTYPES: tuple[str, ...] = get_args(DType)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_ADVICE = "make the column again with `dataprep map`"
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Length = Annotated[int, Meta(ge=1, lt=2**31)]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """Type of a column's values: `ColumnType("array", "float16", (4, 32, 32))`, `ColumnType("text")`.

    Raises:
        UsageError: Text or bytes with a dtype or shape, or an array without dtype or larger than a file can be.
    """

    kind: Literal["array", "text", "bytes"]
    dtype: DType | Literal[""] = ""
    """Type of an array's numbers."""
    shape: Annotated[tuple[Length | None, ...], Meta(max_length=8)] = ()
    """Shape of an array; `()` for single numbers, None for a length that differs between samples."""

    def __post_init__(self) -> None:
        """Check that kind, dtype and shape go together."""
        is_array = self.kind == "array"
        if (
            self.kind not in ("array", "text", "bytes")
            or (self.dtype in DTYPES) != is_array
            or not all(length is None or 1 <= length < 2**31 for length in self.shape)
            or (self.shape and not is_array)
            or math.prod(length or 1 for length in self.shape) >= MAX_COUNT // 8
        ):
            raise UsageError(
                f"type {self}: expected text, bytes, or array with one of {', '.join(DTYPES)} and lengths of 1 or more"
            )

    @property
    def is_free(self) -> bool:
        """Whether values differ in size, so that a file has offsets."""
        return self.kind != "array" or None in self.shape

    @property
    def item_bytes(self) -> int:
        """Size of a value in bytes; 0 if values differ."""
        return 0 if self.is_free else math.prod(self.lengths) * np.dtype(self.dtype).itemsize

    @property
    def lengths(self) -> tuple[int, ...]:
        """The shape with 0 for a length that differs."""
        return tuple(length or 0 for length in self.shape)

    def __str__(self) -> str:
        shape = ", ".join("any" if length is None else str(length) for length in self.shape)
        return f"{self.dtype} ({shape})" if self.shape else self.dtype or self.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnShard:
    """The file with the values of one shard."""

    of: Sha256
    """`shard_id` of the shard."""
    file: str
    bytes: Count
    sha256: Sha256
    samples: Count
    values: Count
    """Byte offset of the values in the file."""
    offsets: Count = 0
    """Byte offset of the `samples + 1` offsets (int64) of values of a free size, relative to `values`."""
    shapes: Count = 0
    """Byte offset of the shapes (int32, `samples` times the rank) of arrays of a free shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`column.json`."""

    version: int
    name: str
    plan_hash: str
    function: str
    """Origin of the values: a function, `module:NAME`, or a table."""
    function_version: str
    """SHA-256 of the source of the function's module or of the table, or the version that the user gave."""
    type: ColumnType
    splits: dict[str, tuple[ColumnShard, ...]]


@dataclass(frozen=True)
class OpenedColumn:
    """A column that was compared with its dataset."""

    column: Column
    sha256: str
    """Digest of `column.json`, which names the digests of all files: the column's identity."""
    url: str
    ids: Mapping[str, tuple[str, ...]] = field(repr=False)
    """`shard_id` of each shard of the dataset, by split."""

    @property
    def type(self) -> ColumnType:
        """Type of the values."""
        return self.column.type

    @cached_property
    def _by_id(self) -> Mapping[str, Mapping[str, ColumnShard]]:
        return {name: {shard.of: shard for shard in shards} for name, shards in self.column.splits.items()}

    def lacking(self, split: str) -> list[int]:
        """Return the numbers of the shards of a split whose values are not made yet."""
        return [number for number in range(len(self.ids[split])) if self.find(split, number) is None]

    def find(self, split: str, number: int) -> ColumnShard | None:
        """Return the file of a shard's values; None if they are not made yet."""
        return self._by_id.get(split, {}).get(self.ids[split][number])

    def shard(self, split: str, number: int) -> ColumnShard:
        """Return the file of a shard's values. Raises UsageError if they are not made yet."""
        found = self.find(split, number)
        if found is None:
            lacking = counted(len(self.lacking(split)), "shard")
            raise UsageError(
                f"{self.url}: the column {self.column.name} has no values for {lacking} of {split}, which are newer; "
                "run the `dataprep map` that made it again"
            )
        return found


def column_file(name: str, file: str) -> str:
    """Return the name of a file of a column, below the dataset's root."""
    return f"{COLUMNS}/{name}/{file}"


def values_file(name: str, split: str, sha256: str) -> str:
    """Return the name of a file with values: another content has another name, so nothing is ever overwritten."""
    return column_file(name, f"{split}-{sha256[:16]}.arrow")


def check_column_name(name: str, manifest: Manifest | None = None) -> str:
    """Return a column's name. Raises UsageError if it is not a valid name, or a field of the dataset has it."""
    fault = name_fault(name)
    if not _NAME.fullmatch(name):
        fault = f"expected letters, digits, _ and -, 100 at most, got {quoted(name)}"
    elif manifest is not None and name in manifest.features:
        fault = f"the dataset has a field {name}"
    if fault:
        raise UsageError(f"`columns`: {fault}")
    return name


def column_names(storage: Storage) -> list[str]:
    """Return the names of a dataset's columns, sorted."""
    parts = (info.name.split("/") for info in storage.list(f"{COLUMNS}/"))
    return sorted(part[1] for part in parts if len(part) == len((COLUMNS, "name", "file")) and part[2] == COLUMN_JSON)


def described_columns(storage: Storage, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield name and type of each column, and how many shards lack values. Raises FormatError."""
    for name in column_names(storage):
        column = read_column(storage, manifest, name)
        lacking = sum(len(column.lacking(split.name)) for split in manifest.splits)
        yield name, str(column.type) + (f", lacks {counted(lacking, 'shard')}" if lacking else "")


def column_faults(storage: Storage, manifest: Manifest, name: str) -> Iterator[str]:
    """Yield a line for each file of a column that is not what `column.json` says; all files are read. Raises
    FormatError if `column.json` is damaged."""
    column = read_column(storage, manifest, name)
    for split in manifest.splits:
        for number in range(len(split.shards)):
            shard = column.find(split.name, number)
            if shard is None:
                continue
            try:
                read_values(storage, column.type, shard)
                data = storage.read(shard.file, shard.bytes)
                if placed(column.type, data, shard.of, name, split.name) != shard:
                    yield f"{shard.file}: its values are not at the places that the column lists; {_ADVICE}"
            except FileNotFoundError:
                yield f"{shard.file}: missing; {_ADVICE}"
            except FormatError as error:
                yield str(error)


def shard_id(split: SplitManifest, number: int) -> str:
    """Return the identity of a shard's bytes: its digest, or if none is known one made of name, size and index."""
    shard = split.shards[number]
    if shard["sha256"]:
        return shard["sha256"]
    known = shard["file"], str(shard["bytes"]), shard["crc32c"] or f"{number} {split.index['sha256']}"
    return hashlib.sha256("\0".join(known).encode()).hexdigest()


def stored_samples(split: SplitManifest) -> tuple[int, ...]:
    """Return the stored samples of each shard, also of a view's split."""
    if isinstance(split, ViewedSplit):
        return split.kept.stored
    return tuple(shard["samples"] for shard in split.shards)


def find_column(storage: Storage, name: str) -> tuple[Column, bytes] | None:
    """Return a column and the content of its file; None if there is none. Raises FormatError."""
    file = column_file(check_column_name(name), COLUMN_JSON)
    data = read_bounded(storage, file, MAX_COLUMN_BYTES, advice=_ADVICE)
    if data is None:
        return None
    where = storage.url_of(file)
    try:
        column = decode(data, Column, where=where, advice=_ADVICE)
    except UsageError as error:
        raise FormatError(f"{where}: {error}; {_ADVICE}") from error
    if (column.version, column.name) != (COLUMN_VERSION, name):
        got = f"column {quoted(column.name)}, version {column.version}"
        raise FormatError(f"{where}: got {got}, expected {name!r}, version 1")
    for split, shards in column.splits.items():
        for shard in shards:
            if fault := entry_fault(column, split, shard):
                raise FormatError(f"{where}: {fault}; {_ADVICE}")
    return column, data


def entry_fault(column: Column, split: str, shard: ColumnShard) -> str:
    """Return the fault in the entry of a file; empty if there is none."""
    if shard.file != values_file(column.name, split, shard.sha256):
        return f"{quoted(shard.file)} is not a file of split {quoted(split)}"
    kind = column.type
    needed = {"values": shard.samples * kind.item_bytes}
    if kind.is_free:
        needed["offsets"] = 8 * (shard.samples + 1) if shard.samples else 0
        needed["shapes"] = 4 * shard.samples * len(kind.shape)
    for name, num_bytes in needed.items():
        if getattr(shard, name) + num_bytes > shard.bytes:
            return f"{shard.file} has {shard.bytes:,} bytes, its {name} end after that"
    return ""


def read_column(storage: Storage, manifest: Manifest, name: str) -> OpenedColumn:
    """Read a column, and compare it with its dataset; it may lack shards. Raises UsageError if there is no such column,
    and FormatError if its file is damaged."""
    found = find_column(storage, name)
    if found is None:
        known = column_names(storage)
        advice = there_are(name, known) if known else "; dataprep map makes columns"
        raise UsageError(f"{storage.url}: no column {name!r}{advice}")
    return opened_column(storage, manifest, *found)


def opened_column(storage: Storage, manifest: Manifest, column: Column, data: bytes) -> OpenedColumn:
    """Compare a column, and the content of its file, with its dataset. Raises FormatError if their counts differ."""
    if column.plan_hash != manifest.plan_hash:  # no value is one of this dataset
        column = replace(column, splits={})
    ids = {
        split.name: tuple(shard_id(split, number) for number in range(len(split.shards))) for split in manifest.splits
    }
    opened = OpenedColumn(column, hashlib.sha256(data).hexdigest(), storage.url, ids)
    for split in manifest.splits:
        for number, samples in enumerate(stored_samples(split)):
            shard = opened.find(split.name, number)
            if shard is not None and shard.samples != samples:
                raise FormatError(
                    f"{storage.url_of(shard.file)}: {counted(shard.samples, 'value')} for shard {number} of "
                    f"{split.name}, which has {counted(samples, 'sample')}; {_ADVICE}"
                )
    return opened


# Values


def value_bounds(storage: Storage, kind: ColumnType, shard: ColumnShard) -> NDArray[np.int64]:
    """Return the byte offsets of a shard's values in its file, shape (samples + 1,): value n is between offsets n and
    n + 1. Values of one size need no read, others one read of the offsets. Raises FormatError if these are not
    ascending, or lead out of the file."""
    if not kind.is_free or not shard.samples:
        return shard.values + kind.item_bytes * np.arange(shard.samples + 1, dtype=np.int64)
    data = storage.read_range(shard.file, shard.offsets, 8 * (shard.samples + 1))
    found = np.frombuffer(data, "<i8")
    if found[0] < 0 or (np.diff(found) < 0).any() or found[-1] > shard.bytes - shard.values:
        problem = f"its offsets are not those of {shard.samples:,} values"
        raise FormatError(f"{storage.url_of(shard.file)}: {problem}; {_ADVICE}")
    return shard.values + found


def value_shapes(
    storage: Storage, kind: ColumnType, shard: ColumnShard, bounds: NDArray[np.int64]
) -> NDArray[np.int32] | None:
    """Return the shapes of arrays of a free shape, shape (samples, rank), with the result of `value_bounds`; None for
    other values. Raises FormatError if a shape is not one of the column's type, or not of the size of its value."""
    if kind.kind != "array" or not kind.is_free:
        return None
    rank, lengths = len(kind.shape), np.array(kind.lengths)
    data = storage.read_range(shard.file, shard.shapes, 4 * rank * shard.samples) if shard.samples else b""
    found = np.frombuffer(data, "<i4").reshape(shard.samples, rank)
    sizes = np.prod(found.astype(np.float64), axis=1) * np.dtype(kind.dtype).itemsize  # exact up to MAX_COUNT
    if (found < 0).any() or ((found != lengths) & (lengths > 0)).any() or (sizes != np.diff(bounds)).any():
        raise FormatError(f"{storage.url_of(shard.file)}: its shapes are not those of its values; {_ADVICE}")
    return found


def value_of(kind: ColumnType, data: bytes | memoryview, shape: Sequence[int] | None = None) -> Any:
    """Return one value from its bytes: an array of the column's dtype that shares their memory, and of this shape if
    the type's is free; a str, or bytes. Raises UnicodeDecodeError if a text is not UTF-8."""
    if kind.kind == "array":
        lengths = kind.lengths if shape is None else tuple(map(int, shape))
        return np.frombuffer(data, np.dtype(kind.dtype).newbyteorder("<")).reshape(lengths)
    return str(data, "utf-8") if kind.kind == "text" else bytes(data)


def read_values(storage: Storage, kind: ColumnType, shard: ColumnShard) -> NDArray[Any] | list[Any]:
    """Return all values of a shard: an array of shape (samples, *shape), or a list of values of a free size. Raises
    FormatError if the file is not the one that the column lists."""
    data = memoryview(storage.read(shard.file, shard.bytes))
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        raise FormatError(f"{storage.url_of(shard.file)}: not the file that the column lists; {_ADVICE}")
    bounds = value_bounds(storage, kind, shard)
    if not kind.is_free:
        return np.frombuffer(data[bounds[0] : bounds[-1]], np.dtype(kind.dtype).newbyteorder("<")).reshape(
            shard.samples, *kind.lengths
        )
    shapes = value_shapes(storage, kind, shard, bounds)
    try:
        return [
            value_of(kind, data[bounds[n] : bounds[n + 1]], None if shapes is None else shapes[n])
            for n in range(shard.samples)
        ]
    except UnicodeDecodeError as error:
        raise FormatError(f"{storage.url_of(shard.file)}: a text is not UTF-8; {_ADVICE}") from error


def arrow_file(kind: ColumnType, values: Sequence[Any] | NDArray[Any]) -> bytes:
    """Return the content of a file with values of a type, in their order."""
    batch = _batch(kind, values)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def placed(kind: ColumnType, data: bytes, of: str, name: str, split: str) -> ColumnShard:
    """Return the entry, in the `column.json` of this name, of a file with this content for the shard with the
    `shard_id` `of`. Raises FormatError if it is not a file of values of the type."""
    sha256, content = hashlib.sha256(data).hexdigest(), pa.py_buffer(data)
    file = values_file(name, split, sha256)
    try:
        with pa.ipc.open_file(pa.BufferReader(content)) as reader:
            if reader.num_record_batches != 1 or reader.schema != _batch(kind, []).schema:
                raise FormatError(f"{file}: not one batch of {kind} values; {_ADVICE}")
            batch = reader.get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{file}: not an Arrow file; {_ADVICE}") from error
    column = batch.column(0).buffers()

    def place(buffer: pa.Buffer | None) -> int:
        return buffer.address - content.address if buffer is not None and buffer.size else 0

    return ColumnShard(
        of=of,
        file=file,
        bytes=len(data),
        sha256=sha256,
        samples=batch.num_rows,
        values=place(column[-1]),
        offsets=place(column[1]) if kind.is_free else 0,
        shapes=place(batch.column(1).buffers()[-1]) if batch.num_columns > 1 else 0,
    )


def publish_values(storage: Storage, shard: ColumnShard, data: bytes) -> str:
    """Write a file with values, unless it exists; return its CRC32C."""
    spool, crc32c = storage.spool_path(shard.file), crc32c_of_bytes(data)
    with disk_errors(spool):
        spool.write_bytes(data)
    storage.publish(spool, shard.file, crc32c)
    return crc32c


def _batch(kind: ColumnType, values: Any) -> pa.RecordBatch:
    if kind.kind == "text":
        columns = [_large(pa.large_string(), [value.encode() for value in values])]
    elif kind.kind == "bytes":
        columns = [_large(pa.large_binary(), values)]
    elif kind.is_free:
        arrays = [np.ascontiguousarray(value, np.dtype(kind.dtype).newbyteorder("<")) for value in values]
        shapes = np.array([array.shape for array in arrays], np.int32).ravel()
        columns = [
            _large(pa.large_binary(), [array.tobytes() for array in arrays]),
            pa.FixedSizeListArray.from_arrays(from_numpy(shapes), len(kind.shape)),
        ]
    else:
        flat = np.ascontiguousarray(values, np.dtype(kind.dtype).newbyteorder("<")).reshape(-1)
        column = from_numpy(flat.view(np.uint8) if flat.dtype == np.bool_ else flat)
        for length in reversed(kind.lengths):
            column = pa.FixedSizeListArray.from_arrays(column, length)
        columns = [column]
    names = ["value", "shape"][: len(columns)]
    schema = pa.schema(
        [pa.field(name, column.type, nullable=False) for name, column in zip(names, columns, strict=True)],
        metadata={"type": str(kind)},
    )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _large(kind: pa.DataType, values: Sequence[bytes]) -> pa.Array:
    """Return bytes of any total size as an Arrow array."""
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=ends[1:])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])
