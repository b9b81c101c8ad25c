import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.columns import from_numpy, numbers_or_zero, table_of, to_numpy

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("name", pa.dictionary(pa.int32(), pa.string())),
        ("big", pa.int64()),
        ("crc", pa.uint32()),
        ("side", pa.int32()),
        ("caption", pa.string()),
        ("similarity", pa.float64()),
        ("score", pa.float32()),
    ]
)
ROWS = st.tuples(
    st.text(),
    st.sampled_from(["a.tar", "b.tar", "é"]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.floats(allow_nan=False, width=32),
)


@given(st.lists(ROWS))
def test_the_table_equals_the_one_that_arrow_makes(rows):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(SCHEMA)
    table = table_of(columns, SCHEMA)
    table.validate(full=True)
    assert table.equals(pa.table(columns, schema=SCHEMA))


def test_a_number_out_of_its_columns_range_is_an_error():
    with pytest.raises(OverflowError):
        table_of([[2**31]], pa.schema([("side", pa.int32())]))


def test_pandas_is_not_imported():
    code = (
        "import sys, pyarrow as pa\n"
        "from dataprep.dataset.columns import from_numpy, numbers_or_zero, table_of, to_numpy\n"
        "table = table_of([[None, 'a'], [1, 2]], pa.schema([('key', pa.string()), ('label', pa.float64())]))\n"
        "import io, pyarrow.parquet as pq\n"
        "pq.write_table(table, io.BytesIO())\n"
        "print('pyarrow' in sys.modules, 'pandas' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]


def test_numbers_are_of_the_same_memory():
    numbers = np.arange(10, dtype=np.int32)[2:]
    column = from_numpy(numbers)
    assert column.equals(pa.array(numbers.tolist(), pa.int32()))
    assert to_numpy(column.slice(3)).tolist() == numbers[3:].tolist()
    assert to_numpy(pa.chunked_array([column, column[:1]])).tolist() == [*numbers.tolist(), 2]
    assert to_numpy(pa.chunked_array([], pa.int64())).tolist() == []


@given(st.lists(st.none() | st.integers(0, 2**32 - 1)), st.integers(0, 9))
def test_numbers_of_a_column_are_zero_where_it_has_none(values, start):
    column = pa.array(values, pa.uint32())[start:]
    due = [value or 0 for value in values[start:]]
    for each in (column, pa.chunked_array([column]), pa.chunked_array([column.slice(0, 1), column.slice(1)])):
        found = numbers_or_zero(each, np.int64)
        assert found.dtype == np.int64
        assert found.tolist() == due
