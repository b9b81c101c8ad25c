"""Which rows failed last, and which of them a choice takes: the last shard that has a row's key tells."""

from __future__ import annotations

import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UsageError
from dataprep.fetched.existing import open_fetched
from dataprep.fetched.layout import Layout
from dataprep.fetched.names import ShardNames
from dataprep.fetched.newest import Choice, Place, RowPlaces, may_pass, rows_to_try
from dataprep.fetched.shard import ShardSchema
from dataprep.storage import open_storage
from tests.support.fetched import ALL, DEFAULT, FAULTS


def chosen(url, choice):
    dataset = open_fetched(str(url))
    return list(rows_to_try(dataset.storage, dataset.layout, choice))


def test_only_rows_with_the_chosen_reasons_are_retried(begun):
    places = chosen(begun, Choice(reasons=("http 404", "http 429")))
    assert [(place.shard, place.row) for place in places] == [(0, 5), (1, 3), (3, 0)]
    assert len(chosen(begun, ALL)) == len(FAULTS)
    with pytest.raises(UsageError, match="--all takes every reason"):
        Choice(reasons=("timeout",), everything=True)


@pytest.mark.parametrize(
    ("reason", "passes"),
    [
        ("timeout", True),
        ("http 503", True),
        ("http 429", True),
        ("robots unavailable", True),
        ("http 404", False),
        ("robots", False),
    ],
)
def test_transient_reasons_are_retryable(reason, passes):
    assert may_pass(reason) is passes


def layout_of(parquet_files):
    """A layout of which only what is asked here is told: two digits of a row in a key."""
    return Layout(
        parquet_files=parquet_files,
        key_digits=2,
        names=ShardNames(samples="{}.tar", sidecar="{}", digits=2),
        shard_rows=100,
        schema=ShardSchema(image_name="jpg", carried=(), duplicates=False),
        row_of=lambda _: pytest.fail("no row is made"),
        described=lambda _: {},
    )


attempts = st.lists(st.booleans(), min_size=4, max_size=4)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(first=st.lists(attempts, min_size=1, max_size=3), retries=st.lists(st.integers(0, 2**12 - 1), max_size=4))
def test_the_last_shard_that_has_a_row_tells_how_it_ended(first, retries):
    """Bits of a retry's number say which of the rows that failed are tried, and which of those fail again."""
    shards = [
        [(f"{shard:02d}{row:02d}", failed) for row, failed in enumerate(rows)] for shard, rows in enumerate(first)
    ]
    for bits in retries:
        newest = {key: failed for rows in shards for key, failed in rows}
        failing = [key for key, failed in newest.items() if failed]
        tried = [(key, bool(bits >> at + 6 & 1)) for at, key in enumerate(failing) if bits >> at % 6 & 1]
        if tried:
            shards.append(tried)
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for number, rows in enumerate(shards):
            keys, ends = [key for key, _ in rows], ["failed_to_download" if failed else "success" for _, failed in rows]
            messages = ["timeout" if failed else None for _, failed in rows]
            table = pa.table([keys, ends, pa.array(messages, pa.string())], ["key", "status", "error_message"])
            names.append(f"{number:02d}.parquet")
            pq.write_table(table, f"{folder}/{names[-1]}")
        found = list(rows_to_try(open_storage(folder), layout_of(names), DEFAULT))
    expected = {}
    for number, rows in enumerate(shards):
        for row, (key, failed) in enumerate(rows):
            expected[key] = Place(number, row, "timeout") if failed else None
    assert found == sorted(place for place in expected.values() if place)


def test_places_are_cut_into_new_shards():
    places = [Place(shard, row, "timeout") for shard in range(2) for row in range(4)]
    cut = RowPlaces(3)
    tables = list(cut.tables(iter(places)))
    assert cut.shard_rows == [3, 3, 2]
    assert [tuple(row.values()) for table in tables for row in table.to_pylist()] == [place[:2] for place in places]
    assert {table.schema for table in tables} == {RowPlaces.schema()}
