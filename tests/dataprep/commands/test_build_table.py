"""`dataprep build table` as a newcomer uses it."""

from __future__ import annotations

import json

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from tests.support.builds import dataprep
from tests.support.tables import hub, listed
from tests.support.words import replaced


def command(source, output, *more):
    return ["build", "table", "--source", source, "--output", output, "--format", "webdataset", *more]


def test_a_folder_of_the_hub(tmp_path):
    source, output = hub(tmp_path / "Dog Breeds"), tmp_path / "out"
    shown = dataprep(*command(source, output, "--dry-run"))
    assert shown.returncode == 0, shown.stderr
    assert "images are in parquet files: " in shown.stderr
    assert "are unpacked below the output's _build/, and removed when the dataset is whole" in shown.stderr
    assert "train: 10 samples in 1 shard," in shown.stdout
    assert not output.exists()
    run = dataprep(*command(source, output, "--licence", "CC0-1.0", "--json"))
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["name"], found["licence"], found["classes"]) == ("dog-breeds", "CC0-1.0", ["beagle", "husky", "pug"])
    assert [(split["name"], split["samples"]) for split in found["splits"]] == [("train", 10), ("val", 3)]
    assert {source["name"] for source in found["sources"]} == {
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/validation-00000-of-00001.parquet",
    }
    assert not (output / "_build").exists()
    again = dataprep(*command(source, output, "--licence", "CC0-1.0"))
    assert "was whole already; nothing was done" in again.stdout
    assert not (output / "_build").exists()
    assert dataprep("verify", output, "--deep").returncode == 0


def test_one_table_beside_its_images_and_the_output(tmp_path):
    source = listed(tmp_path / "dogs") / "dogs.csv"
    run = dataprep(*command(source, tmp_path / "dogs/out", "--label-from", "breed", "--workers", 1))
    assert run.returncode == 0, run.stderr
    manifest = read_manifest(open_storage(str(tmp_path / "dogs/out")))
    assert (manifest.name, manifest.classes, manifest.splits[0].samples) == ("dogs", ("beagle", "pug"), 4)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--table", "dogs.csv"], "--table dogs.csv: --source is a table itself"),
        (["--image-column", "breed"], "4 of 4 images are not below"),
        (["--label-from", "folder"], "a table has its labels in a column"),
        (["--name", "table"], "'table' is the name of a dataset that dataprep builds"),
        (["--output", "hf://datasets/some/dogs"], "--output hf://datasets/some/dogs: the Hub is only read"),
        (["--split", "training"], "--split training: expected one of train, val, test"),
    ],
)
def test_options_that_are_refused(tmp_path, more, text):
    run = dataprep(*replaced(command(listed(tmp_path / "dogs") / "dogs.csv", tmp_path / "out"), *more))
    assert run.returncode == 2
    assert text in run.stderr
    assert "Traceback" not in run.stderr
