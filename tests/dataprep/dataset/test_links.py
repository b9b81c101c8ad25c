"""Adopted data lie where their manifest says, and their owner's links are followed; a build's lie beside it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep.dataset.links import is_adopted, open_data, open_linked
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import FormatError, UsageError
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with a link to a file outside of it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/x").write_bytes(b"1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/folder").symlink_to(tmp_path / "outside")
    return tmp_path / "data"


def test_links_of_adopted_data_are_followed_in_other_processes_too(elsewhere: Path):
    linked = open_linked(str(elsewhere))
    assert linked.read("folder/x") == b"1"
    again = pickle.loads(pickle.dumps(linked))
    assert again.read("folder/x") == b"1"
    with pytest.raises(UsageError, match="is a link out of"):
        open_storage(str(elsewhere)).read("folder/x")


def test_a_link_out_of_a_folder_that_nobody_named_is_refused_in_other_processes_too(elsewhere: Path):
    (elsewhere / "file").symlink_to("../outside/x")
    (elsewhere / "inside").mkdir()
    (elsewhere / "inside/y").write_bytes(b"2")
    (elsewhere / "round").symlink_to("inside")
    (elsewhere / "round-file").symlink_to("round/y")
    confined = LocalStorage(elsewhere, advice="adopt it")
    for storage in (confined, pickle.loads(pickle.dumps(confined))):
        assert storage.read_range("round/y", 0, 1) == storage.read("round-file") == b"2"
        for name, link, target in (("folder/x", "folder", "outside"), ("file", "file", "outside/x")):
            message = f"{elsewhere}/{link} is a link out of {elsewhere}, to .*/{target}; adopt it"
            with pytest.raises(UsageError, match=message):
                storage.read(name)
            with pytest.raises(UsageError, match=message):
                storage.read_range(name, 0, 1)


def test_a_bucket_has_no_links(gcs):
    assert not open_linked("gs://some-bucket/data").is_local


def test_built_data_are_read_beside_their_manifest(finished):
    storage = open_storage(str(finished("imagenet-webdataset")))
    manifest = read_manifest(storage)
    assert not is_adopted(manifest)
    assert open_data(storage, manifest, named=False) is storage


def test_adopted_data_are_read_where_the_manifest_says(finished, elsewhere):
    storage = open_storage(str(finished("imagenet-webdataset")))
    manifest = read_manifest(storage)

    def adopted(**options: object):
        return replace(manifest, options={**manifest.options, "adopted": options})

    assert is_adopted(adopted())
    assert open_data(storage, adopted(data_url=str(elsewhere)), named=True).url == str(elsewhere)
    assert open_data(storage, adopted(), named=True).url == storage.url
    with pytest.raises(FormatError, match="names no data_url; adopt the data again with --overwrite"):
        open_data(storage, adopted(data_url=7), named=False)


@pytest.mark.parametrize("options", [None, [], {"adopted": "yes"}, {"adopted": None}])
def test_a_hostile_manifest_is_not_adopted(finished, options):
    manifest = read_manifest(open_storage(str(finished("imagenet-webdataset"))))
    assert not is_adopted(replace(manifest, options=options))
