import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.columns import table_of

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("name", pa.dictionary(pa.int32(), pa.string())),
        ("big", pa.int64()),
        ("crc", pa.uint32()),
        ("side", pa.int32()),
    ]
)
ROWS = st.tuples(
    st.text(),
    st.sampled_from(["a.tar", "b.tar", "é"]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(-(2**31), 2**31 - 1),
)


@given(st.lists(ROWS))
def test_the_table_is_the_one_that_arrow_makes(rows):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(SCHEMA)
    table = table_of(columns, SCHEMA)
    table.validate(full=True)
    assert table.equals(pa.table(columns, schema=SCHEMA))


def test_a_number_that_does_not_fit_is_an_error():
    with pytest.raises(OverflowError):
        table_of([[2**31]], pa.schema([("side", pa.int32())]))


def test_pandas_is_not_imported():
    code = (
        "import sys, pyarrow as pa\n"
        "from dataprep.columns import table_of\n"
        "table_of([['a'], [1]], pa.schema([('key', pa.string()), ('label', pa.int32())]))\n"
        "print('pyarrow' in sys.modules, 'pandas' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]
