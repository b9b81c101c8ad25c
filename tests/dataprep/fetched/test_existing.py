"""Datasets whose failed rows can be tried again: what lacks something is refused, and says what was expected."""

import json
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.fetched.existing import Choice, FetchedDataset, Place, may_pass, open_fetched, rows_to_try
from dataprep.fetched.recipe import WEB
from dataprep.fetched.retry import row_tables, rows_schema
from dataprep.fetched.shard import ShardNames
from dataprep.sources.laion import measure_tables, read_shard_rows
from dataprep.storage import open_storage
from tests.support.fetched import ALL, DEFAULT, FAULTS, adopted


def dataset_at(root):
    storage = open_storage(str(root))
    return FetchedDataset(storage, read_manifest(storage))


def test_a_place_without_a_dataset_is_refused(tmp_path):
    with pytest.raises(
        UsageError, match=r"no dataset there \(no dataset\.json\); check the URL, make shards of pictures"
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


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_rows_come_back_from_the_parquet_files_as_the_table_had_them(fetched, fmt):
    root = fetched(fmt)
    dataset = dataset_at(root)
    assert (dataset.num_shards, dataset.key_digits) == (4, 1)
    originals = open_storage(str(root.parent))
    tables = measure_tables(originals, ["laion.parquet"], rows_per_shard=10)
    for number in range(4):
        table = pq.read_table(root / dataset.names.parquet_file(number))
        rows = [dataset.row_of(fields) for fields in table.to_pylist()]
        assert rows == read_shard_rows(originals, tables, number)


def test_the_description_grows_with_the_split(fetched):
    root = fetched("tfrecord")
    dataset = dataset_at(root)
    split = dataset.manifest.splits[0]
    added = {**split.shards[0], "file": dataset.names.samples_file(4)}
    larger = replace(split, shards=(*split.shards, added), num_bytes=split.num_bytes + 7)
    before = WEB.metadata_files(dataset.manifest)
    after = WEB.metadata_files(replace(dataset.manifest, splits=(larger,)))
    assert before == {name: (root / name).read_bytes() for name in ("dataset_info.json", "features.json")}
    (entry,) = json.loads(after["dataset_info.json"])["splits"]
    assert entry["shardLengths"] == [str(shard["samples"]) for shard in larger.shards]
    assert entry["numBytes"] == str(larger.num_bytes)
    assert after["features.json"] == before["features.json"]
    plain = dataset_at(fetched("webdataset"))
    assert WEB.metadata_files(plain.manifest) == {}


def chosen(url, choice):
    return list(rows_to_try(open_fetched(str(url)), choice))


def test_only_rows_with_the_chosen_reasons_are_retried(begun):
    places = chosen(begun, Choice(reasons=("http 404", "http 429")))
    assert [(place.shard, place.row) for place in places] == [(0, 5), (1, 3), (3, 0)]
    assert len(chosen(begun, ALL)) == len(FAULTS)
    with pytest.raises(UsageError, match="`all` and `reason` exclude each other"):
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


attempts = st.lists(st.booleans(), min_size=4, max_size=4)


@settings(derandomize=True, max_examples=25)
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
        for number, rows in enumerate(shards):
            keys, ends = [key for key, _ in rows], ["failed_to_download" if failed else "success" for _, failed in rows]
            messages = ["timeout" if failed else None for _, failed in rows]
            table = pa.table([keys, ends, pa.array(messages, pa.string())], ["key", "status", "error_message"])
            pq.write_table(table, f"{folder}/{number:02d}.parquet")
        # what is asked of a dataset here: its shards, and two digits of a row in a key
        dataset = SimpleNamespace(
            storage=open_storage(folder),
            parquet_file=ShardNames(samples="{}.tar", sidecar="{}", digits=2).parquet_file,
            num_shards=len(shards),
            key_digits=2,
        )
        found = list(rows_to_try(dataset, DEFAULT))
    expected = {}
    for number, rows in enumerate(shards):
        for row, (key, failed) in enumerate(rows):
            expected[key] = Place(number, row, "timeout") if failed else None
    assert found == sorted(place for place in expected.values() if place)


def test_places_are_cut_into_new_shards():
    places = [Place(shard, row, "timeout") for shard in range(2) for row in range(4)]
    shard_rows = []
    tables = list(row_tables(iter(places), 3, shard_rows))
    assert shard_rows == [3, 3, 2]
    assert [tuple(row.values()) for table in tables for row in table.to_pylist()] == [place[:2] for place in places]
    assert {table.schema for table in tables} == {rows_schema()}
