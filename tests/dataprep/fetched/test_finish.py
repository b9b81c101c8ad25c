"""The end of a build from tables of URLs: what the manifest sums up, and what keeps it from being written."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import FileEntry, SplitManifest
from dataprep.errors import BuildError
from dataprep.fetched.encode import EncodeOptions
from dataprep.fetched.finish import metadata_files, nothing_came, top_reasons
from dataprep.fetched.shard import ShardSchema, built_names
from dataprep.sources.laion import LAION
from dataprep.sources.tables import Column
from dataprep.storage import open_storage
from tests.dataprep.fetched.laion_tables import ROWS as TABLE_ROWS
from tests.dataprep.fetched.laion_tables import collect_rows
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
        "are not public: if they are those of a network of your own, name it with `allow_network` CIDR, else check the "
        "table, and run the command again"
    )


_TFDS = """
import json, sys
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
found = []
for sample in builder.as_dataset(split="train", shuffle_files=False).as_numpy_iterator():
    image = sample.pop("jpg")
    values = {name: v.decode() if isinstance(v, bytes) else v.item() for name, v in sample.items()}
    found.append(values | {"shape": list(image.shape)})
print(json.dumps([builder.info.splits["train"].num_examples, found]))
"""


@pytest.mark.long
def test_tfds_reads_fetched_shards(tmp_path):
    """Two shards whose names hold their numbers alone, and metadata from counts."""
    found = collect_rows(tmp_path, encode=EncodeOptions(image_size=50))
    data, places = found.write("tfrecord")
    for index in range(2):
        (tmp_path / built_names("laion", "tfrecord", "train", 5).samples_file(index)).write_bytes(data)
    counts = {"train": [len(places)] * 2}
    for name, content in metadata_files(LAION, found.schema, counts, {"train": 2 * len(data)}).items():
        (tmp_path / name).write_bytes(content)
    read = subprocess.run([sys.executable, "-W", "ignore", "-c", _TFDS, str(tmp_path)], capture_output=True, text=True)
    assert read.returncode == 0, read.stderr[-2000:]
    count, samples = json.loads(read.stdout.splitlines()[-1])
    assert count == len(samples) == 6
    assert [sample["key"] for sample in samples[:3]] == ["000000000", "000000002", "000000003"]
    assert samples[0]["txt"] == samples[0]["caption"] == TABLE_ROWS[0]["TEXT"]
    assert (samples[0]["SAMPLE_ID"], samples[0]["similarity"], samples[1]["similarity"]) == (10**17, 0.3125, -1.0)
    assert [sample["shape"] for sample in samples[:3]] == [[50, 67, 3], [67, 50, 3], [9, 9, 3]]


@pytest.mark.parametrize(("image_name", "encoding"), [("jpg", "jpeg"), ("png", "png")])
def test_features_are_the_columns_the_caption_and_the_image(image_name, encoding):
    carried = (Column("weight", "float"), Column("number", "int"), Column("note", "string"))
    schema = ShardSchema(image_name=image_name, carried=carried, duplicates=False)
    files = metadata_files(LAION, schema, {"train": [3, 0]}, {"train": 5})
    features = json.loads(files["features.json"])["featuresDict"]["features"]
    assert set(features) == {column.name for column in schema.columns} | {"txt", image_name}
    assert features[image_name]["image"]["encodingFormat"] == encoding
    assert features["weight"]["tensor"]["dtype"] == "float32"
    assert features["number"]["tensor"]["dtype"] == "int64"
    assert features["note"] == features["txt"]
    (split,) = json.loads(files["dataset_info.json"])["splits"]
    assert (split["shardLengths"], split["numBytes"]) == (["3", "0"], "5")
