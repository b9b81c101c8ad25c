"""Python values to Arrow columns without `pyarrow.array`.

That one imports pandas where it is installed, to see whether its argument is a Series: 0.3 s of CPU for every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def table_of(columns: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """A table from the values of each column: integers or None, or strings, plain or as a dictionary."""
    import pyarrow as pa

    arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def integers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Integers of a type, null for None. Raises OverflowError for one that the type does not hold."""
    import numpy as np
    import pyarrow as pa

    valid = None
    if None in values:
        valid = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))
    numbers = np.fromiter((value or 0 for value in values), np.dtype(str(kind)), len(values))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(numbers)])


def strings(values: Sequence[str]) -> pa.Array:
    """Strings, at most 2 GiB together."""
    import numpy as np
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(encoded) + 1)
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        codes = integers([numbers[value] for value in values], kind.index_type)
        return pa.DictionaryArray.from_arrays(codes, strings(list(numbers)))
    return strings(values) if kind == pa.string() else integers(values, kind)
