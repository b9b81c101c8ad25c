"""`dataprep select`: what it prints, its exit codes, and what other commands do with a view."""

import json

import pytest

from dataprep import select as dataprep_select
from loaders.config import LoaderConfig
from tests.support.builds import dataprep, succeeds
from tests.support.own_data import class_folders
from train.batches.data import open_data


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("select")
    source = class_folders(root / "pets")
    succeeds("build", "folder", "--source", source, "--output", root / "out", "--format", "tfrecord")
    return root / "out"


def samples_of(url):
    """Return the samples of a dataset or view by split, as `inspect` counts them."""
    splits = json.loads(succeeds("inspect", url, "--json").stdout)["splits"]
    return {split["name"]: split["samples"] for split in splits}


def test_a_view_is_told_in_a_line_and_its_address(shards):
    whole = sum(samples_of(shards).values())
    said = succeeds("select", shards, "--name", "half", "--sample", "0.5").stdout.splitlines()
    assert said[-1] == f"{shards}@half"
    samples = samples_of(f"{shards}@half")
    kept = sum(samples.values())
    assert said[0] == f"half keeps {kept} of {whole} samples; left out: {whole - kept} not drawn"
    found = json.loads(succeeds("select", shards, "--name", "half", "--sample", "0.5", "--json").stdout)
    assert (found["url"], found["samples"], found["unknown"]) == (f"{shards}@half", samples, [])
    assert sum(reasons["sample"] for reasons in found["left_out"].values()) == whole - kept


def test_a_list_that_names_no_sample_is_an_exit_code_unless_it_is_allowed(shards, tmp_path):
    (tmp_path / "list.txt").write_text("nobody\n")
    words = ["select", shards, "--name", "listed", "--except", tmp_path / "list.txt"]
    refused = dataprep(*words)
    assert (refused.returncode, "no sample for 1 line of --except: nobody" in refused.stderr) == (1, True)
    assert json.loads(dataprep(*words, "--json").stdout)["unknown"] == ["nobody"]
    succeeds(*words, "--allow-missing")


def test_a_view_is_made_again_as_it_was_asked_for(shards):
    succeeds("select", shards, "--name", "again", "--where", "width > 10")
    assert "again keeps" in succeeds("select", shards, "--name", "again", "--refresh").stdout
    assert "no view never to refresh" in dataprep("select", shards, "--name", "never", "--refresh").stderr
    refused = dataprep("select", shards, "--name", "again", "--refresh", "--sample", "0.5")
    assert (refused.returncode, "--refresh" in refused.stderr) == (2, True)
    assert "nothing is chosen" in dataprep("select", shards, "--name", "again").stderr


def test_a_view_is_measured_and_trained_on(shards):
    """`open_data` is what every training program finds its data with."""
    view = dataprep_select(shards, name="trained", sample=0.5, overwrite=True)
    words = ["--batches", "1", "--rounds", "1", "--batch-size", "4", "--image-size", "32", "--workers", "1"]
    assert json.loads(succeeds("bench", view.url, *words, "--json").stdout)["schema_version"]
    data = open_data(view.url)
    assert (data.url, data.images) == (view.url, view.samples)
    assert sum(data.unlabelled.values()) == 0
    with data.training_loader(LoaderConfig(batch_size=2, image_size=32)) as loader:
        assert loader.order.num_samples == view.samples["train"]


def test_a_view_converts_into_a_dataset_of_its_samples(shards, tmp_path):
    succeeds("select", shards, "--name", "converted", "--sample", "0.5", "--overwrite")
    succeeds("convert", f"{shards}@converted", "--output", tmp_path / "out", "--format", "webdataset")
    assert samples_of(tmp_path / "out") == samples_of(f"{shards}@converted")
    assert json.loads((tmp_path / "out/dataset.json").read_text())["converted_from"] == "out@converted"
    succeeds("verify", tmp_path / "out")
