"""Rows come back from the disk, in their own order or in another, as if they had stayed in memory."""

import hashlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.dataset import spill
from dataprep.dataset.columns import to_numpy
from dataprep.dataset.records import SampleRef
from dataprep.dataset.spill import SpilledReferences

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
    table = spill.SpilledTable(SCHEMA, "the list of rows")
    for start in range(0, len(rows), batch_rows):
        table.add(batch_of(rows[start : start + batch_rows]))
    return table


def rows_of(tables):
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


ROWS = st.lists(st.tuples(st.text("abé", max_size=4), st.integers(0, 2**64 - 1) | st.just(2**63)), max_size=80).map(
    lambda rows: [(*row, position) for position, row in enumerate(rows)]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_rows_come_back_in_any_order(size, rows):
    table = spilled_rows(rows)
    assert table.num_rows == len(rows)
    assert rows_of(table.batches()) == rows_of([table.table()]) == rows
    by_number = spill.in_order_of_words(table, lambda _, batch: to_numpy(batch.column(1)))
    assert rows_of(by_number) == sorted(rows, key=lambda row: row[1])
    assert rows_of(spill.in_order_of_text(table, "text")) == sorted(rows, key=lambda row: row[0].encode())


def test_words_are_asked_for_by_position(size):
    rows = [(str(position), position, position) for position in range(100)]
    words = np.random.Philox(key=1).random_raw(100)
    shuffled = spill.in_order_of_words(spilled_rows(rows), lambda first, batch: words[first : first + batch.num_rows])
    assert rows_of(shuffled) == [rows[position] for position in np.argsort(words, kind="stable")]


def test_columns_keep_their_names_and_types(size):
    rows = [(str(position), position, position) for position in range(100)]
    for table in spill.in_order_of_words(spilled_rows(rows), lambda first, batch: to_numpy(batch.column(1))):
        assert table.schema.equals(SCHEMA)


def test_nothing_of_it_imports_pandas():
    """An import of pandas would take each process 0.3 s."""
    code = """
import sys
from dataprep.dataset import spill
from dataprep.dataset.records import SampleRef
from dataprep.dataset.spill import enumeration_sha256, spilled
from dataprep.builder.archives import order_split
from dataprep.builder.plan import BuildOptions
from dataprep.sources.keys import refuse_duplicates
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


REFS = st.lists(
    st.builds(
        SampleRef,
        st.text("ab/=_", max_size=8),
        st.sampled_from(["a.tar", "é.tar"]),
        st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.integers(-1, 2**31 - 1),
        st.sampled_from([b"", b"{}", '{"a":"é\\t"}'.encode()]),
        st.none() | st.integers(0, 2**32 - 1),
        st.integers(0, 2**62),
    ),
    max_size=50,
)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(spill, "REFERENCE_ROWS", 7)
    monkeypatch.setattr(spill, "MEMORY_BYTES", 500)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REFS)
def test_references_come_back_in_their_order_any_number_of_times(small_batches, refs):
    found = spill.spilled(refs)
    assert len(found) == len(refs)
    assert list(found) == list(found) == refs
    assert spill.spilled(found) is found
    found.add(SampleRef("last", "x", 0, 0))
    assert len(found) == len(refs) + 1
    assert [ref.key for ref in found][-1] == "last"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REFS)
def test_enumeration_hash_is_that_of_a_line_a_reference(small_batches, refs):
    digest = hashlib.sha256()
    for ref in refs:
        digest.update(f"{ref.key}\t{ref.source}\t{ref.offset}\t{ref.num_bytes}\t{ref.label}".encode())
        digest.update(b"\t%b\n" % ref.annotations if ref.annotations else b"\n")
    assert spill.enumeration_sha256(refs) == spill.enumeration_sha256(spill.spilled(refs)) == digest.hexdigest()


def test_enumeration_hash_sees_every_field_and_the_order():
    ref = SampleRef("k", "s", 1, 2, 3)
    others = [ref._replace(**change) for change in ({"key": "x"}, {"source": "x"}, {"offset": 0}, {"label": 4})]
    hashes = {spill.enumeration_sha256(refs) for refs in ([ref], *([other] for other in others), [ref, others[0]])}
    hashes.add(spill.enumeration_sha256([others[0], ref]))
    assert len(hashes) == 7


def test_large_annotations_do_not_wait_in_memory(monkeypatch):
    monkeypatch.setattr(spill, "_ANNOTATION_BYTES", 100)
    found = SpilledReferences()
    for number in range(4):
        found.add(SampleRef(str(number), "x", 0, 0, 0, b"x" * 60))
    assert [batch.num_rows for batch in found.batches()] == [2, 2]


def test_labels_are_replaced_by_their_ranks(small_batches):
    found = spill.spilled([SampleRef(str(number), "x", 0, 0, number % 3) for number in range(20)]).relabelled([2, 0, 1])
    assert [ref.label for ref in found] == [(2, 0, 1)[number % 3] for number in range(20)]
    assert [ref.key for ref in found] == [str(number) for number in range(20)]


def test_stored_rows_have_the_columns_of_rows_in_memory():
    rows = spill.rows_of_refs([SampleRef("a", "x", 1, 2), SampleRef("b", "x", 3, 4)])
    stored = rows.drop_columns(["annotations"]).set_column(1, "source", rows.column("source").dictionary_encode())
    assert spill.spill_rows(stored).equals(rows)
    with pytest.raises(ValueError, match="values of label are missing"):
        spill.spill_rows(stored.set_column(4, "label", pa.nulls(2, pa.int32())))
    with pytest.raises(KeyError):
        spill.spill_rows(stored.drop_columns(["key"]))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.integers(1, 40))
def test_a_sample_is_spread_over_all_and_reads_few_batches(small_batches, count, most):
    found = spill.spilled([SampleRef(str(number), "x", number, 0) for number in range(count)]).sample(most)
    places = sorted(ref.offset for ref in found)
    assert len(set(places)) == len(places) <= 2 * most
    assert len(places) >= min(count, most) / 2
    gaps = [after - before for before, after in zip([0, *places], [*places, count], strict=True)]
    assert max(gaps) <= 4 * max(7, count / min(most, 16)) + 1


def test_a_sample_of_few_is_all_of_them():
    refs = [SampleRef(str(number), "x", number, 0) for number in range(9)]
    assert sorted(spill.spilled(refs).sample(64), key=lambda ref: ref.offset) == refs


TEXTS: spill.Codec[str] = spill.Codec(lambda text: text.encode(), lambda data: data.decode(), "the list of texts")


@pytest.fixture(params=["in memory", "on disk"])
def item_size(request, monkeypatch):
    if request.param == "on disk":
        monkeypatch.setattr(spill, "_BATCH_ITEMS", 5)
        monkeypatch.setattr(spill, "MEMORY_BYTES", 50)
        monkeypatch.setattr(spill, "PART_BYTES", 100)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text("abé", max_size=4), max_size=40))
def test_values_are_those_of_a_list(item_size, texts):
    items = spill.SpilledItems(TEXTS, texts)
    assert len(items) == len(texts)
    assert list(items) == list(items) == texts
    by_length = items.in_order(lambda text: bytes([len(text)]))
    assert list(by_length) == sorted(texts, key=len)
    by_length.append("x")
    assert list(by_length) == [*sorted(texts, key=len), "x"]
    assert list(items) == texts


def test_large_values_do_not_wait_in_memory(monkeypatch):
    monkeypatch.setattr(spill, "_ITEMS_BYTES", 10)
    items = spill.SpilledItems(TEXTS, ["x" * 6] * 5)
    assert len(items._added) == 1
    assert list(items) == ["x" * 6] * 5
