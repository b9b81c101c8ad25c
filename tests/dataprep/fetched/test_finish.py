"""The end of a build from tables of URLs: what the manifest sums up, and what keeps it from being written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import FileEntry, SplitManifest
from dataprep.errors import BuildError
from dataprep.fetched.finish import nothing_came, top_reasons
from dataprep.storage import open_storage
from tests.support.fetched import FAULTS, ROWS

ENTRY: FileEntry = {"file": "x", "bytes": 0, "sha256": ""}


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_receipts_are_summed_up_in_the_manifest(fetched, fmt):
    root = fetched(fmt)
    manifest = read_manifest(open_storage(str(root)))
    (split,) = manifest.splits
    assert (split.samples, [shard["samples"] for shard in split.shards]) == (ROWS - len(FAULTS), [8, 7, 9, 3])
    assert split.statuses["failed_to_download"] == len(FAULTS)
    assert split.reasons == {"http 404": 2, "http 429": 1, "http 500": 1, "http 503": 3, "success": ROWS - len(FAULTS)}
    assert list(split.reasons) == sorted(split.reasons)
    assert manifest.options["allow_networks"] == ["127.0.0.0/8"]
    assert [(source["split"], source["name"], source["rows"]) for source in manifest.sources] == [
        ("train", "laion.parquet", ROWS)
    ]
    assert (manifest.shuffled, manifest.checked) == (False, "decode")
    files = [entry["file"] for entry in manifest.files]
    assert files == sorted(files)
    assert len(files) == 2 * len(split.shards) + (2 if fmt == "tfrecord" else 0)
    assert all(
        (root / name).stat().st_size == entry["bytes"] for name, entry in zip(files, manifest.files, strict=True)
    )


def test_tfds_is_told_the_samples_of_each_shard(fetched):
    root = fetched("tfrecord")
    (split,) = json.loads((root / "dataset_info.json").read_text())["splits"]
    assert (split["name"], split["shardLengths"]) == ("train", ["8", "7", "9", "3"])
    assert int(split["numBytes"]) == sum(path.stat().st_size for path in root.glob("laion-train.tfrecord-*"))


def test_the_most_frequent_failures_are_told():
    reasons = {"success": 9, "timeout": 3, "http 404": 1_200, "dns": 3, "a": 2, "b": 2, "c": 1, "d": 1}
    assert top_reasons(reasons) == "http 404 1,200, timeout 3, dns 3, a 2, b 2"
    assert top_reasons({"success": 9}) == ""


def test_a_build_without_an_image_says_how_its_rows_ended():
    split = SplitManifest(
        name="train", samples=0, num_bytes=0, shards=(), class_counts=(), repeats={"count": 1, "stored": 1},
        repaired={}, rejected={}, index=ENTRY, events=ENTRY,
        statuses={"failed_to_download": 1_002}, reasons={"timeout": 1_000, "dns": 2},
    )  # fmt: skip
    error = nothing_came("gs://bucket/laion", split)
    assert isinstance(error, BuildError)
    assert str(error).startswith(
        "gs://bucket/laion: none of 1,002 rows became an image (timeout 1,000, dns 2), and nothing is kept; check "
        "the table, the filters and the network, and run the same command again"
    )
    refused = nothing_came("out", replace(split, reasons={"refused address": 2, "dns": 1}))
    assert str(refused) == (
        "out: none of 1,002 rows became an image (refused address 2, dns 1), and nothing is kept; refused addresses "
        "are not public: if they are those of a network of your own, name it with --allow-network CIDR, else check the "
        "table, and run the command again"
    )
