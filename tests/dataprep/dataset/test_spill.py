"""Rows come back from the disk, in their own order or in another, as if they had stayed in memory."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.dataset import spill
from dataprep.dataset.columns import to_numpy
from dataprep.dataset.spill import SpilledTable, in_order_of_text, in_order_of_words

SCHEMA = pa.schema([("text", pa.string()), ("number", pa.uint64()), ("position", pa.int64())])


@pytest.fixture(params=["in memory", "on disk"])
def size(request, monkeypatch):
    if request.param == "on disk":
        monkeypatch.setattr(spill, "MEMORY_BYTES", 200)
        monkeypatch.setattr(spill, "PART_BYTES", 400)
        monkeypatch.setattr(spill, "MAX_PARTS", 8)
        monkeypatch.setattr(spill, "_SAMPLE_ROWS", 20)


def batch_of(rows):
    columns = [[row[index] for row in rows] for index in range(3)]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def spilled_rows(rows, batch_rows=7):
    table = SpilledTable(SCHEMA, "the list of rows")
    for start in range(0, len(rows), batch_rows):
        table.add(batch_of(rows[start : start + batch_rows]))
    return table


def rows_of(tables):
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


ROWS = st.lists(st.tuples(st.text("abé", max_size=4), st.integers(0, 2**64 - 1) | st.just(2**63)), max_size=80).map(
    lambda rows: [(*row, position) for position, row in enumerate(rows)]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_rows_come_back_in_any_order(size, rows):
    table = spilled_rows(rows)
    assert table.num_rows == len(rows)
    assert rows_of(table.batches()) == rows_of([table.table()]) == rows
    by_number = in_order_of_words(table, lambda _, batch: to_numpy(batch.column(1)))
    assert rows_of(by_number) == sorted(rows, key=lambda row: row[1])
    assert rows_of(in_order_of_text(table, "text")) == sorted(rows, key=lambda row: row[0].encode())


def test_words_are_asked_for_by_position(size):
    rows = [(str(position), position, position) for position in range(100)]
    words = np.random.Philox(key=1).random_raw(100)
    shuffled = in_order_of_words(spilled_rows(rows), lambda first, batch: words[first : first + batch.num_rows])
    assert rows_of(shuffled) == [rows[position] for position in np.argsort(words, kind="stable")]


def test_columns_keep_their_names_and_types(size):
    rows = [(str(position), position, position) for position in range(100)]
    for table in in_order_of_words(spilled_rows(rows), lambda first, batch: to_numpy(batch.column(1))):
        assert table.schema.equals(SCHEMA)


def test_nothing_of_it_imports_pandas():
    """An import of pandas would take each process 0.3 s."""
    code = """
import sys
from dataprep.dataset import spill
from dataprep.dataset.records import SampleRef
from dataprep.dataset.references import enumeration_sha256, spilled
from dataprep.builder.order import order_split
from dataprep.builder.plan import BuildOptions
from dataprep.sources.duplicates import refuse_duplicates
spill.MEMORY_BYTES = spill.PART_BYTES = 1000
refs = spilled([SampleRef(str(number), "x", 0, 1) for number in range(100)]).relabelled([0])
refuse_duplicates("x", refs)
options = BuildOptions(dataset="imagenet", format="webdataset", splits=("train",))
list(order_split(refs, options, "train", 1, annotated=False).shards())
list(spill.in_order_of_text(refs.rows(), "key"))
enumeration_sha256(refs)
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
