"""Values come back in their order, or sorted, from memory or from the disk."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.dataset import spill, spilled_items
from dataprep.dataset.spilled_items import Codec, SpilledItems

TEXTS: Codec[str] = Codec(lambda text: text.encode(), lambda data: data.decode(), "the list of texts")


@pytest.fixture(params=["in memory", "on disk"])
def size(request, monkeypatch):
    if request.param == "on disk":
        monkeypatch.setattr(spilled_items, "_BATCH_ITEMS", 5)
        monkeypatch.setattr(spill, "MEMORY_BYTES", 50)
        monkeypatch.setattr(spill, "PART_BYTES", 100)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text("abé", max_size=4), max_size=40))
def test_values_are_those_of_a_list(size, texts):
    items = SpilledItems(TEXTS, texts)
    assert len(items) == len(texts)
    assert list(items) == list(items) == texts
    by_length = items.in_order(lambda text: bytes([len(text)]))
    assert list(by_length) == sorted(texts, key=len)
    by_length.append("x")
    assert list(by_length) == [*sorted(texts, key=len), "x"]
    assert list(items) == texts


def test_large_values_do_not_wait_in_memory(monkeypatch):
    monkeypatch.setattr(spilled_items, "_BATCH_BYTES", 10)
    items = SpilledItems(TEXTS, ["x" * 6] * 5)
    assert len(items._added) == 1
    assert list(items) == ["x" * 6] * 5
