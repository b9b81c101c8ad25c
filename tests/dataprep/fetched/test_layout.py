"""The layout of a dataset that was built here: its rows come back as the table had them, and its description grows."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.fetched.layout import built_layout
from dataprep.sources.laion import measure_tables, read_shard_rows
from dataprep.storage import open_storage


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
