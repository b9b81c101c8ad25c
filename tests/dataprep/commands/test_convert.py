"""`dataprep convert` as users call it."""

from __future__ import annotations

import json

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from tests.support.adoption import adopt_here
from tests.support.builds import dataprep, digests
from tests.support.converting import content
from tests.support.own_data import annotated, build_own, class_folders
from tests.support.shared import made_once, shared_folder


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """A dataset with features."""

    def make(path):
        build_own(annotated(path.with_name("convert-source")), path, licence="CC0-1.0", origin="my garden")

    return made_once(shared_folder(tmp_path_factory) / "convert-pets", make)


def test_a_dataset_is_converted_with_its_licence_and_origin(pets, tmp_path):
    arguments = ["convert", pets, "--output", tmp_path / "out", "--format", "imagefolder", "--workers", 1, "--json"]
    run = dataprep(*arguments)
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert (document["name"], document["licence"], document["origin"]) == ("pets", "CC0-1.0", "my garden")
    assert document["converted_from"] == pets.name
    assert content(tmp_path / "out") == content(pets)
    before = digests(tmp_path / "out")
    again = dataprep(*arguments)
    assert (json.loads(again.stdout)["shards_built"], digests(tmp_path / "out")) == (0, before)
    assert dataprep("verify", tmp_path / "out", "--deep").returncode == 0


def test_a_dry_run_shows_the_plan_and_writes_nothing(pets, tmp_path):
    more = ("--name", "smaller", "--resize", 8, "--num-shards", 3, "--dry-run")
    run = dataprep("convert", pets, "--output", tmp_path / "out", "--format", "tfrecord", *more)
    assert run.returncode == 0, run.stderr
    assert "smaller as tfrecord" in run.stdout
    assert "9 samples in 3 shards" in run.stdout
    assert not (tmp_path / "out").exists()


def test_adopted_data_need_no_other_step(tmp_path):
    data = class_folders(tmp_path / "My Pets")
    adopt_here(data, tmp_path / "index")
    run = dataprep("convert", tmp_path / "index", "--output", tmp_path / "out", "--format", "tfrecord")
    assert run.returncode == 0, run.stderr
    manifest = read_manifest(open_storage(str(tmp_path / "out")))
    assert (manifest.name, manifest.classes) == ("my-pets", ("cats", "dogs"))
    assert [split.samples for split in manifest.splits] == [14, 6]
    assert manifest.splits[0].repaired == {"png": 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{nothing}", "--output", "{out}", "--format", "tfrecord"], "no dataset there (no dataset.json); index what"),
        (["{pets}", "--output", "{pets}", "--format", "tfrecord"], "URL and --output are the same"),
        (["{pets}", "--output", "{pets}/out", "--format", "tfrecord"], "lie inside one another"),
        (["{pets}", "--output", "{out}", "--format", "tfrecord", "--split", "test"], "--split test"),
        (["{pets}", "--output", "{out}", "--format", "tfrecord", "--field", "caption"], "are all kept (caption, "),
        (["{pets}", "--output", "{out}", "--format", "tfrecord", "--default", "a"], "expected NAME=VALUE"),
        (["{pets}", "--output", "{out}", "--format", "tfrecord", "--name", "imagenet"], "choose another with --name"),
        (["{pets}", "--output", "{out}", "--format", "tfrecord", "--repeat", "physical"], "is not repeated"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_one_line(pets, tmp_path, arguments, words):
    places = {"nothing": tmp_path / "nothing", "out": tmp_path / "out", "pets": pets}
    run = dataprep("convert", *(argument.format(**places) for argument in arguments))
    assert run.returncode == 2
    assert words in run.stderr
    assert len(run.stderr.strip().splitlines()[-1]) < 1000
    assert not (tmp_path / "out").exists()
