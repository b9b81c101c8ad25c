"""Datasets whose failed rows can be tried again: what lacks something is refused, and says what was expected."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.fetched.existing import (
    Choice,
    FetchedDataset,
    Layout,
    Place,
    RowPlaces,
    built_layout,
    may_pass,
    open_fetched,
    rows_to_try,
)
from dataprep.fetched.shard import ShardNames, ShardSchema
from dataprep.sources.laion import measure_tables, read_shard_rows
from dataprep.storage import open_storage
from tests.support.fetched import ALL, DEFAULT, FAULTS, adopted


def test_a_place_without_a_dataset_is_refused(tmp_path):
    with pytest.raises(
        UsageError,
        match=r"no dataset there \(no dataset\.json\); check the URL, make shards of pictures",
    ):
        open_fetched(str(tmp_path))


def test_a_dataset_built_from_archives_is_refused(finished):
    with pytest.raises(UsageError, match="imagenet was not fetched from the web; expected a dataset of laion"):
        open_fetched(str(finished("imagenet-webdataset")))


def test_adopted_output_of_img2dataset_is_refused_with_the_commands_that_help(web, tmp_path):
    url = adopted(web, tmp_path / "cc 3m")
    with pytest.raises(
        UsageError,
        match=r"was fetched by img2dataset; .* dataprep inspect '.*cc 3m' lists its failed rows with `rejected`",
    ):
        open_fetched(url)


def test_a_dataset_is_identified_by_the_digest_of_its_manifest(finished):
    storage = open_storage(str(finished("imagenet-webdataset")))
    data = storage.read("dataset.json")
    dataset = FetchedDataset(storage, data, None, None)  # type: ignore[arg-type]
    assert dataset.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_rows_come_back_from_the_parquet_files_as_the_table_had_them(fetched, fmt):
    root = fetched(fmt)
    layout = built_layout(read_manifest(open_storage(str(root))))
    assert (len(layout.parquet_files), layout.key_digits, layout.shard_rows) == (4, 1, 10)
    originals = open_storage(str(root.parent))
    tables = measure_tables(originals, ["laion.parquet"], rows_per_shard=10)
    for number, name in enumerate(layout.parquet_files):
        rows = [layout.row_of(fields) for fields in pq.read_table(root / name).to_pylist()]
        assert rows == read_shard_rows(originals, tables, number)


def test_new_shards_have_the_next_names(fetched):
    names = built_layout(read_manifest(open_storage(str(fetched("tfrecord"))))).names
    assert names.samples_file(4) == "laion-train.tfrecord-00004"
    assert (names.parquet_file(4), names.stats_file(4)) == ("train/00004.parquet", "train/00004_stats.json")


def test_the_description_grows_with_the_split(fetched):
    root = fetched("tfrecord")
    manifest = read_manifest(open_storage(str(root)))
    split = manifest.splits[0]
    larger = replace(split, shards=(*split.shards, split.shards[0]), num_bytes=split.num_bytes + 7)
    described = built_layout(manifest).described(larger)
    assert {name: files.before for name, files in described.items()} == {
        name: (root / name).read_bytes() for name in ("dataset_info.json", "features.json")
    }
    (entry,) = json.loads(described["dataset_info.json"].after)["splits"]
    assert entry["shardLengths"] == [str(shard["samples"]) for shard in larger.shards]
    assert entry["numBytes"] == str(larger.num_bytes)
    assert described["features.json"].after == described["features.json"].before
    plain = read_manifest(open_storage(str(fetched("webdataset"))))
    assert built_layout(plain).described(plain.splits[0]) == {}


def chosen(url, choice):
    dataset = open_fetched(str(url))
    return list(rows_to_try(dataset.storage, dataset.layout, choice))


def test_only_rows_with_the_chosen_reasons_are_retried(begun):
    places = chosen(begun, Choice(reasons=("http 404", "http 429")))
    assert [(place.shard, place.row) for place in places] == [(0, 5), (1, 3), (3, 0)]
    assert len(chosen(begun, ALL)) == len(FAULTS)
    with pytest.raises(UsageError, match="`all` takes every reason"):
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
