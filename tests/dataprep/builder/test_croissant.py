"""croissant.json is valid, and its records are those of the dataset."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from dataprep.builder.cards import write_cards
from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from tests.support.converting import content
from tests.support.own_data import SPLITS, annotated, annotated_rows, build_own, class_folders

READ = """
import hashlib, io, json, os, sys, warnings
warnings.simplefilter("ignore")
import mlcroissant

dataset = mlcroissant.Dataset(jsonld=sys.argv[1])
found = {}
for records in dataset.metadata.record_sets:
    rows = []
    for record in dataset.records(records.id):
        row = {name.rpartition("/")[2]: value for name, value in record.items()}
        if "image" in row:
            row["image"] = list(row["image"].size)
        rows.append({name: value.decode() if isinstance(value, bytes) else value for name, value in row.items()})
    found[records.id] = rows
def plain(value):
    return value.decode() if isinstance(value, bytes) else value.tolist()


print(json.dumps({"errors": list(dataset.metadata.issues.errors), "records": found}, default=plain), flush=True)
os._exit(0)  # on a busy machine a thread of a reader may still run, which aborts an interpreter that ends
"""


def read(url, cache):
    """What mlcroissant reads, in a process of its own: it keeps a cache by the names of files."""
    run = subprocess.run(
        [sys.executable, "-c", READ, f"{url}/croissant.json"],
        capture_output=True,
        text=True,
        env={**os.environ, "CROISSANT_CACHE": str(cache)},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_images_have_their_labels(tmp_path, fmt):
    url = tmp_path / "shards"
    manifest = build_own(class_folders(tmp_path / "source"), url, fmt)
    write_cards(open_storage(str(url)), manifest)
    found = read(url, tmp_path / "cache")
    assert found["errors"] == []
    for split in ("train", "val"):
        rows = found["records"][f"{split}-images"]
        assert all(row["image"] == [24, 16] for row in rows)
        labels = Counter(("cats", "dogs")[row["label"]] if fmt == "webdataset" else row["label"] for row in rows)
        assert labels == {"cats": SPLITS[split], "dogs": SPLITS[split]}
        assert all(row["file"].split("/")[-2] == ("cats", "dogs")[row["label"]] for row in rows if "key" in row)


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord", "imagefolder"])
def test_mlcroissant_reads_index_images_and_annotations(tmp_path, fmt):
    url = tmp_path / "shards"
    build_own(annotated(tmp_path / "source"), url, fmt)
    storage = open_storage(str(url))
    write_cards(storage, read_manifest(storage))
    found = read(url, tmp_path / "cache")
    assert found["errors"] == []
    records = found["records"]
    keys = {key for key, _, _ in content(url)["splits"]["train"][1]}
    assert {row["key"] for row in records["train-index"]} == keys
    assert {(row["height"], row["width"]) for row in records["train-index"]} == {(16, 24)}
    if fmt == "tfrecord":
        assert list(records) == ["train-index"]
        return
    assert [row["image"] for row in records["train-images"]] == [[24, 16]] * 9
    captions = sorted(row["caption"] for row in annotated_rows())
    if fmt == "webdataset":
        values = [json.loads(row["json"]) for row in records["train-annotations"]]
        values = [{**value, "caption": row["txt"]} for value, row in zip(values, records["train.txt"], strict=True)]
        assert {row["file"].removesuffix(".jpg") for row in records["train-images"]} == keys
    else:
        values = records["train-annotations"]
        assert {row["year"] for row in values} == {row["year"] for row in annotated_rows()}
    assert sorted(row["caption"] for row in values) == captions
