"""The events of a split, written and read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.events import events_file, events_schema, events_table, open_events, read_events
from dataprep.dataset.records import Event
from dataprep.dataset.row_groups import publish_row_groups
from dataprep.errors import FormatError
from dataprep.storage import open_storage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
EVENTS = [Event("n01440764/a", "repaired", "cmyk", "CMYK as RGB"), Event("n01440764/b", "rejected", "truncated", "cut")]


def test_events_are_read_back(tmp_path):
    storage = open_storage(str(tmp_path))
    entry = publish_row_groups(storage, events_file("train"), iter([events_table(EVENTS)]), events_schema())
    assert entry["file"] == "index/train-events.parquet"
    assert read_events(storage, "train") == EVENTS
    (batch,) = open_events(storage, "train").batches(["reason"])
    assert batch.to_pydict() == {"reason": ["cmyk", "truncated"]}


@given(st.lists(st.builds(Event, key=TEXT, kind=TEXT, reason=TEXT, detail=TEXT), max_size=5))
def test_events_become_columns_in_their_order(events):
    table = events_table(events)
    assert table.schema.equals(events_schema())
    assert [Event(**row) for row in table.to_pylist()] == events


def test_file_of_other_columns_is_refused_as_events(tmp_path):
    storage = open_storage(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        read_events(storage, "train")
    publish_row_groups(
        storage,
        events_file("train"),
        iter([events_table(EVENTS).drop_columns("detail")]),
        events_table([]).drop_columns("detail").schema,
    )
    with pytest.raises(FormatError, match=r"events\.parquet: columns .*; expected key, kind, reason, detail; build it"):
        read_events(storage, "train")
