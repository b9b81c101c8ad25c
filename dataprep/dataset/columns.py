"""Conversion of Python values to Arrow columns, and calls of Arrow's functions, without imports that take long.

`pyarrow.array` imports pandas, if installed, to see whether its argument is a Series; this costs each worker 0.3 s of
CPU. `Table.take`, `Array.cast` and others import `pyarrow.compute`, which documents its 300 functions and takes half as
long as NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from dataprep.arrays import NDArray, np, pa

# NumPy's names of the types that Arrow names differently.
_NUMPY_NAMES = {"float": "float32", "double": "float64"}


def call(function: str, *arguments: Any, options: Any = None) -> Any:
    """Call a function of `pyarrow.compute` by its name, such as `take`, with arrays and tables; options are an object
    such as `pyarrow.compute.CastOptions`."""
    from pyarrow._compute import call_function

    return call_function(function, arguments, options)


def cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> Any:
    """Return a column as another type. Raises pyarrow.ArrowInvalid if a value does not fit."""
    from pyarrow._compute import CastOptions

    return call("cast", column, options=CastOptions.safe(kind))


def table_of(columns: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Return a table of columns of numbers, strings, or dictionary-encoded strings. None becomes null, but is not
    allowed in a dictionary-encoded column."""
    arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def numbers(values: Sequence[float | None], kind: pa.DataType) -> pa.Array:
    """Return integers or floats as an Arrow array, None as null. Raises OverflowError for an integer out of range."""
    dtype = np.dtype(_NUMPY_NAMES.get(str(kind), str(kind)))
    stored = np.fromiter((0 if value is None else value for value in values), dtype, len(values))
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(stored)])


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Return an Arrow array that shares the memory of a NumPy array of numbers, which must not change afterwards."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def to_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of numbers without nulls as a NumPy array, without a copy if it is a single chunk."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dtype = np.dtype(_NUMPY_NAMES.get(str(column.type), str(column.type)))
    pieces = [np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize) for chunk in chunks]
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype), *pieces])


def numbers_or_zero(column: pa.Array | pa.ChunkedArray, kind: type[np.generic]) -> NDArray[Any]:
    """Return a column of numbers as a NumPy array of this type, 0 for null; `fill_null` would import pandas."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not len(values):
        return np.empty(0, kind)
    data, stop = values.buffers()[1], values.offset + len(values)
    dtype = np.dtype(_NUMPY_NAMES.get(str(values.type), str(values.type)))
    found = np.frombuffer(data, dtype, stop)[values.offset :].astype(kind)
    found[nulls(values)] = 0
    return found


def nulls(values: pa.Array) -> NDArray[np.bool_]:
    """Return which values are null, shape (values,); `is_null` would import pandas."""
    valid, stop = values.buffers()[0], values.offset + len(values)
    if valid is None:
        return np.zeros(len(values), np.bool_)
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=stop, bitorder="little")
    return np.equal(bits[values.offset :], 0)


def strings(values: Sequence[str | None], *, large: bool = False) -> pa.Array:
    """Return strings, at most 2 GiB together unless they are `large`, as an Arrow array, None as null."""
    encoded = [b"" if value is None else value.encode() for value in values]
    ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64 if large else np.int32, len(encoded) + 1)
    buffers = [_validity(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string() if large else pa.string(), len(encoded), buffers)


def binaries(values: Sequence[bytes]) -> pa.Array:
    """Return bytes, at most 2 GiB together, as an Arrow array."""
    ends = np.fromiter(accumulate(map(len, values), initial=0), np.int32, len(values) + 1)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def repeated(value: pa.Array, count: int) -> pa.Array:
    """Return a column of `count` times the only value of an array."""
    return call("take", value, from_numpy(np.zeros(count, np.int32)))


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    """Return Arrow's validity bitmap, a bit for each value, set if it is not null; None if there are no nulls."""
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
        indices = numbers([codes[value] for value in values], kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, strings(list(codes)))
    if kind in (pa.string(), pa.large_string()):
        return strings(values, large=kind == pa.large_string())
    return numbers(values, kind)
