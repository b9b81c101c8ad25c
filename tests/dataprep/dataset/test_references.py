"""References are added one by one, and read back in their order, from memory or from the disk."""

import hashlib
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.dataset import references, spill
from dataprep.dataset.records import SampleRef
from dataprep.dataset.references import SpilledReferences, enumeration_sha256, rows_of_refs, spill_rows, spilled

REFS = st.lists(
    st.builds(
        SampleRef,
        st.text("ab/=_", max_size=8),
        st.sampled_from(["a.tar", "é.tar"]),
        st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.integers(-1, 2**31 - 1),
        st.sampled_from([b"", b"{}", '{"a":"é\\t"}'.encode()]),
    ),
    max_size=50,
)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(references, "BATCH_ROWS", 7)
    monkeypatch.setattr(spill, "MEMORY_BYTES", 500)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REFS)
def test_references_come_back_in_their_order_any_number_of_times(small_batches, refs):
    found = spilled(refs)
    assert len(found) == len(refs)
    assert list(found) == list(found) == refs
    assert spilled(found) is found
    found.add(SampleRef("last", "x", 0, 0))
    assert len(found) == len(refs) + 1
    assert [ref.key for ref in found][-1] == "last"


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REFS)
def test_enumeration_hash_is_that_of_a_line_a_reference(small_batches, refs):
    digest = hashlib.sha256()
    for ref in refs:
        digest.update(f"{ref.key}\t{ref.source}\t{ref.offset}\t{ref.num_bytes}\t{ref.label}".encode())
        digest.update(b"\t%b\n" % ref.annotations if ref.annotations else b"\n")
    assert enumeration_sha256(refs) == enumeration_sha256(spilled(refs)) == digest.hexdigest()


def test_enumeration_hash_sees_every_field_and_the_order():
    ref = SampleRef("k", "s", 1, 2, 3)
    others = [replace(ref, **change) for change in ({"key": "x"}, {"source": "x"}, {"offset": 0}, {"label": 4})]
    hashes = {enumeration_sha256(refs) for refs in ([ref], *([other] for other in others), [ref, others[0]])}
    hashes.add(enumeration_sha256([others[0], ref]))
    assert len(hashes) == 7


def test_large_annotations_do_not_wait_in_memory(monkeypatch):
    monkeypatch.setattr(references, "_BATCH_BYTES", 100)
    found = SpilledReferences()
    for number in range(4):
        found.add(SampleRef(str(number), "x", 0, 0, 0, b"x" * 60))
    assert [batch.num_rows for batch in found.batches()] == [2, 2]


def test_labels_are_replaced_by_their_ranks(small_batches):
    found = spilled([SampleRef(str(number), "x", 0, 0, number % 3) for number in range(20)]).relabelled([2, 0, 1])
    assert [ref.label for ref in found] == [(2, 0, 1)[number % 3] for number in range(20)]
    assert [ref.key for ref in found] == [str(number) for number in range(20)]


def test_stored_rows_have_the_columns_of_rows_in_memory():
    rows = rows_of_refs([SampleRef("a", "x", 1, 2), SampleRef("b", "x", 3, 4)])
    stored = rows.drop_columns(["annotations"]).set_column(1, "source", rows.column("source").dictionary_encode())
    assert spill_rows(stored).equals(rows)
    with pytest.raises(ValueError, match="values of label are missing"):
        spill_rows(stored.set_column(4, "label", pa.nulls(2, pa.int32())))
    with pytest.raises(KeyError):
        spill_rows(stored.drop_columns(["key"]))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.integers(1, 40))
def test_a_sample_is_spread_over_all_and_reads_few_batches(small_batches, count, most):
    found = spilled([SampleRef(str(number), "x", number, 0) for number in range(count)]).sample(most)
    places = sorted(ref.offset for ref in found)
    assert len(set(places)) == len(places) <= 2 * most
    assert len(places) >= min(count, most) / 2
    gaps = [after - before for before, after in zip([0, *places], [*places, count], strict=True)]
    assert max(gaps) <= 4 * max(7, count / min(most, 16)) + 1


def test_a_sample_of_few_is_all_of_them():
    refs = [SampleRef(str(number), "x", number, 0) for number in range(9)]
    assert sorted(spilled(refs).sample(64), key=lambda ref: ref.offset) == refs
