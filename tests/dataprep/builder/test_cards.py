"""The cards of a dataset: pure functions of its manifest, valid Croissant, which users may edit."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import yaml

from dataprep.builder.cards import cards_of, hub_licence, own_cards, readme, replace_cards, write_cards
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.paths import CROISSANT, README, WDS_INFO
from dataprep.storage import open_storage
from tests.support.converting import content
from tests.support.own_data import SPLITS, annotated, annotated_rows, build_own, class_folders
from tests.support.shared import made_once, shared_folder


@pytest.fixture(scope="module", params=["webdataset", "tfrecord", "imagefolder"])
def pets(request, tmp_path_factory):
    """A dataset with classes in two splits."""

    def make(path):
        build_own(class_folders(path.with_name(f"{path.name}-source")), path, request.param, licence="CC BY 4.0")

    return made_once(shared_folder(tmp_path_factory) / f"cards-{request.param}", make)


def head_of(manifest):
    return yaml.safe_load(readme(manifest).split("---\n")[1])


def manifest_of(url):
    return read_manifest(open_storage(str(url)))


def test_the_head_says_licence_tasks_size_and_files(pets):
    manifest = manifest_of(pets)
    head = head_of(manifest)
    assert head["license"] == "cc-by-4.0"
    assert head["task_categories"] == ["image-classification"]
    assert head["size_categories"] == ["n<1K"]
    patterns = {"webdataset": "train/*.tar", "imagefolder": "train/**", "tfrecord": "pets-train.tfrecord-*"}
    (config,) = head["configs"]
    assert config["data_files"][0] == {"split": "train", "path": [patterns[manifest.format]]}


@pytest.mark.parametrize(
    ("licence", "name"),
    [("", "unknown"), ("CC-BY-4.0", "cc-by-4.0"), ("Apache 2.0", "apache-2.0"), ("for research only", "other")],
)
def test_licences_have_the_names_of_the_hub(licence, name):
    assert hub_licence(licence) == name


def test_another_licence_is_named(pets):
    head = head_of(replace(manifest_of(pets), licence='"for" research\nonly'))
    assert (head["license"], head["license_name"]) == ("other", '"for" research\N{REPLACEMENT CHARACTER}only')
    assert head_of(replace(manifest_of(pets), licence="unknown, not stated"))["license"] == "unknown"


def test_what_a_stranger_wrote_is_text_and_no_markup(pets):
    hostile = replace(manifest_of(pets), name="a|b\n---\n# <script>", origin="[x](javascript:1)")
    text = readme(hostile)
    assert "<script>" not in text.replace("\\<script\\>", "").split("---\n", 2)[2]
    assert "](" not in text.replace("\\]\\(", "")
    assert head_of(hostile)["license"] == "cc-by-4.0"


def test_datasets_loads_the_folder_by_its_card(pets, tmp_path):
    """TFRecords are refused: the index beside them is not taken for the data."""
    manifest = manifest_of(pets)
    write_cards(open_storage(str(pets)), manifest)
    import datasets

    if manifest.format == "tfrecord":
        with pytest.raises(datasets.exceptions.DataFilesNotFoundError):
            datasets.load_dataset(str(pets), cache_dir=str(tmp_path))
        return
    found = datasets.load_dataset(str(pets), cache_dir=str(tmp_path))
    assert {name: len(split) for name, split in found.items()} == {"train": 14, "val": 6}
    found = datasets.load_dataset(manifest.format, data_dir=str(pets), cache_dir=str(tmp_path))
    assert {name: len(split) for name, split in found.items()} == {"train": 14, "validation": 6}


def test_cards_are_written_once_and_what_users_edit_stays(pets, tmp_path):
    manifest, storage = manifest_of(pets), open_storage(str(tmp_path))
    cards = [README, CROISSANT, WDS_INFO][: 3 if manifest.format == "webdataset" else 2]
    assert write_cards(storage, manifest) == cards
    assert not (tmp_path / "_build").exists()
    assert write_cards(storage, manifest) == []
    assert list(own_cards(storage, manifest)) == cards
    (tmp_path / README).write_text("mine")
    assert write_cards(storage, manifest) == []
    own = own_cards(storage, manifest)
    assert list(own) == cards[1:]
    later = replace(manifest, revision=2)
    assert replace_cards(storage, later, own) == [CROISSANT]
    assert ((tmp_path / README).read_text(), [*own_cards(storage, later)]) == ("mine", cards[1:])
    assert replace_cards(storage, later) == [README]
    assert cards_of(later)[README] == (tmp_path / README).read_bytes()


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
