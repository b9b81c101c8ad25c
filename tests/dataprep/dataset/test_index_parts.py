"""Which files an index has: a function of the shards' samples; and what a manifest may say about them."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset import index_parts
from dataprep.dataset.index_parts import grown_entry, index_files, index_names, index_ranges, joined_entry
from dataprep.dataset.manifest import MANIFEST, digest_faults, read_manifest, schema_version
from dataprep.errors import FormatError
from dataprep.storage import open_storage
from tests.support.parted_index import in_parts, parts_of

ROWS = 80
"""The train split of the small ImageNet has more rows than this, in three shards; val has fewer."""


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 400))
def test_parts_hold_every_shard_once_and_none_is_empty(samples, rows):
    with parts_of(rows):
        ranges = index_ranges(samples)
    assert [shard for part in ranges for shard in part] == list(range(len(samples)))
    assert len(ranges) == 1 or all(ranges)
    assert (len(ranges) == 1) == (sum(samples) <= rows or len(samples) < 2)
    sizes = [len(part) for part in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_datasets_of_up_to_sixteen_million_rows_have_one_file():
    assert index_ranges([1 << 20] * 16) == [range(16)]
    assert len(index_ranges([1 << 20] * 17)) == 17
    assert len(index_ranges([10_000] * 41_408)) == 395
    assert index_ranges([]) == [range(0)]
    assert index_ranges([index_parts.MAX_ROWS_IN_ONE * 2]) == [range(1)]


def test_names_of_parts_tell_how_many_there_are():
    assert index_names("train", 1) == ["index/train.parquet"]
    assert index_names("train", 3)[2] == "index/train-00002-of-00003.parquet"


@pytest.fixture
def parted(finished, tmp_path):
    return in_parts(finished("imagenet-webdataset"), tmp_path / "parted", ROWS)


def test_manifest_lists_the_parts(parted, tmp_path):
    storage = open_storage(str(tmp_path / "parted"))
    train, val = read_manifest(storage).splits
    assert train.index["file"] == "index/train-*-of-00002.parquet"
    assert [part["shards"] for part in train.index["parts"]] == [1, 2]
    assert [entry["file"] for entry in index_files(train)] == index_names("train", 2)
    assert [entry["file"] for entry in index_files(val)] == ["index/val.parquet"]
    assert train.index["bytes"] == sum(storage.stat(entry["file"]).num_bytes for entry in index_files(train))
    assert parted.schema_version == "2.0" and schema_version([val]) == "1.1"


def change_parts(tmp_path, change):
    """Read a manifest after a change of the entry of its index."""
    path = tmp_path / "parted" / MANIFEST
    document = json.loads(path.read_bytes())
    change(document["splits"][0]["index"])
    path.write_text(json.dumps(document))
    return read_manifest(open_storage(str(tmp_path / "parted")))


def with_part(index, number, **fields):
    index["parts"][number].update(fields)
    index.update({name: value for name, value in joined_entry("train", index["parts"]).items() if name != "parts"})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda index: index.update(file="index/train.parquet"), "index.file: expected index/train-*-of-00002.parquet"),
        (lambda index: index.update(bytes=1), "index.bytes: expected"),
        (lambda index: index.update(sha256="0" * 64), "index.sha256: expected"),
        (lambda index: with_part(index, 1, file="../x"), "parts[1].file: expected index/train-00001-of-00002.parq"),
        (lambda index: with_part(index, 1, shards=1), "parts: 2 shards, expected those of the split, 3"),
        (lambda index: (with_part(index, 1, shards=3), with_part(index, 0, shards=0)), "and one or more in each"),
        (lambda index: with_part(index, 0, shards=-1), "parts[0].shards: expected int >= 0, got -1"),
        (lambda index: index.update(parts=[]), "index.parts: expected 2 to 99,999, got 0"),
        (lambda index: index.update(parts=index["parts"][:1]), "index.parts: expected 2 to 99,999, got 1"),
    ],
)  # fmt: skip
def test_a_hostile_list_of_parts_is_refused(parted, tmp_path, change, text):
    with pytest.raises(FormatError) as found:
        change_parts(tmp_path, change)
    assert text in str(found.value)


def test_digests_of_parts_are_digests(parted):
    (first, *others), (train, val) = parted.splits[0].index["parts"], parted.splits
    index = joined_entry("train", [{**first, "sha256": "x"}, *others])
    faults = list(digest_faults(replace(parted, splits=(replace(train, index=index), val))))
    assert faults == ["split train: index: sha256 is 'x', expected 64 hexadecimal digits"]


def test_a_longer_index_replaces_the_last_part(parted):
    train, val = parted.splits
    last = {"file": train.index["parts"][1]["file"], "bytes": 7, "sha256": "1" * 64}
    grown = grown_entry(train, last, 3)
    assert [part["shards"] for part in grown["parts"]] == [1, 5]
    assert grown["file"] == train.index["file"] and grown["sha256"] != train.index["sha256"]
    assert grown_entry(val, last, 3) == last
    assert json.loads(json.dumps(asdict(replace(train, index=grown))))["index"] == grown
