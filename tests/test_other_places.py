"""The same data on a disk and at other places: what a loader delivers, and what a build makes of them, is the same."""

import itertools
import os
import subprocess

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.recipe import build_shard
from dataprep.errors import AccessError, SourceError, UsageError
from dataprep.storage.remote import LIST_COMMAND
from loaders import open_loader
from tests.support.build_here import Quiet
from tests.support.builds import digests
from tests.support.file_server import file_server
from tests.support.hub_server import hub_server
from tests.support.loading import load
from tests.support.own_data import build_own, class_folders, request
from tests.support.s3_server import s3_server

SMALL = {"batch_size": 4, "image_size": 16, "deadline_s": 60.0}
"""The servers are threads of this process, which other tests may slow down for longer than the usual deadline."""


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    return class_folders(tmp_path / "pictures")


@pytest.fixture
def s3(monkeypatch):
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def resumed(url):
    """Load five batches, in two runs."""
    with open_loader(url, **SMALL) as loader:
        first = [batch.keys for batch in itertools.islice(loader, 2)]
        state = loader.state_dict()
    with open_loader(url, **SMALL) as loader:
        loader.load_state_dict(state)
        return first + [batch.keys for batch in itertools.islice(loader, 3)]


def test_pictures_in_s3_load_as_from_a_disk_and_resume(pictures, s3):
    url = s3.upload(pictures, "photos", "mine/")
    assert url == "s3://photos/mine"
    assert load(url, 5, **SMALL) == load(pictures, 5, **SMALL)
    assert resumed(url) == resumed(pictures)


def test_a_build_of_pictures_in_s3_is_that_of_a_disk(pictures, s3, tmp_path):
    (pictures / "train/cats/notes.docx").unlink()
    url = s3.upload(pictures, "originals")
    build_own(url, tmp_path / "s3")
    build_own(pictures, tmp_path / "disk")
    assert digests(tmp_path / "s3") == digests(tmp_path / "disk")
    assert load(s3.upload(tmp_path / "s3", "shards"), 5, **SMALL) == load(tmp_path / "disk", 5, **SMALL)


def test_an_original_in_s3_that_is_replaced_during_a_build_is_refused(pictures, s3, tmp_path):
    asked = request(s3.upload(pictures, "moving"), tmp_path / "out", pass_over=("docx",))

    def replaced_meanwhile(job, indexes):
        name = "train/cats/cat 0.jpeg"
        s3.put("moving", {name: (pictures / name).read_bytes()[::-1]})
        return (build_shard(job, index) for index in indexes)

    with pytest.raises(
        SourceError, match=r"s3://moving/train/cats/cat 0.jpeg: written again, replaced or touched since"
    ):
        run_build(asked, replaced_meanwhile, Quiet())
    assert not (tmp_path / "out/dataset.json").exists()


def test_a_dataset_and_plain_data_of_a_web_server_load_as_from_a_disk(pictures, tmp_path):
    build_own(pictures, tmp_path / "shards", pass_over=("docx",))
    subprocess.run(["bash", "-c", LIST_COMMAND], cwd=pictures, check=True)
    with file_server(tmp_path) as url:
        assert load(f"{url}/shards", 5, **SMALL) == load(tmp_path / "shards", 5, **SMALL)
        assert load(f"{url}/pictures", 5, **SMALL) == load(pictures, 5, **SMALL)


def test_pictures_of_the_hub_load_as_from_a_disk_and_their_commit_is_kept(pictures, monkeypatch):
    from huggingface_hub import constants

    with hub_server() as server:
        repository = server.add("some/pets", pictures)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        address = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert load("hf://datasets/some/pets", 5, **SMALL) == load(pictures, 5, **SMALL)
        assert resumed("hf://datasets/some/pets") == resumed(pictures)
        with open_loader("hf://datasets/some/pets", **SMALL) as loader:
            assert loader.dataset.storage.url == f"hf://datasets/some/pets@{repository.branches['main']}"


def test_nothing_is_kept_of_a_listing_that_fails(pictures, s3, tmp_path):
    s3.upload(pictures, "secret")
    with pytest.raises(AccessError, match="s3://absent does not exist"):
        open_loader("s3://absent", **SMALL)
    with pytest.raises(UsageError, match="no files found"):
        open_loader("s3://secret/typo", **SMALL)
    assert not (tmp_path / "cache").exists()
