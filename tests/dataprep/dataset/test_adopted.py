"""Adopted data lie where their manifest says, and their owner's links are followed; a build's lie beside it."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep.adoption import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from dataprep.dataset import adopted as adopted_module
from dataprep.dataset.adopted import is_adopted, open_data, open_linked
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import FormatError, UsageError
from dataprep.inspection.contact_sheet import open_sheet
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage
from loaders import open_loader
from loaders.dataset import open_dataset
from tests.support.builds import dataprep
from tests.support.hostile_case import jpeg


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
    with pytest.raises(FormatError, match="names no data_url; adopt the data again with `overwrite`"):
        open_data(storage, adopted(data_url=7), named=False)


@pytest.mark.parametrize("options", [None, [], {"adopted": "yes"}, {"adopted": None}])
def test_a_hostile_manifest_is_not_adopted(finished, options):
    manifest = read_manifest(open_storage(str(finished("imagenet-webdataset"))))
    assert not is_adopted(replace(manifest, options=options))


@pytest.fixture
def adopted(tmp_path, monkeypatch):
    """Data and their index, adopted on another machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for number in range(4):
        path = tmp_path / "data" / "train" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg())
    adopt_here(tmp_path)
    forget(tmp_path)
    return tmp_path


def adopt_here(folder):
    request = AdoptRequest(url=str(folder / "data"), index_url=str(folder / "index"))
    return adopt(request, AdoptProgress(quiet=True))


def forget(folder):
    shutil.rmtree(folder / "state", ignore_errors=True)
    adopted_module._named.clear()


def test_data_that_only_the_manifest_names_are_not_read(adopted):
    message = rf"index: its manifest says that the data are in {adopted}/data, .* run .dataprep adopt {adopted}/data"
    with pytest.raises(UsageError, match=message):
        open_dataset(str(adopted / "index"), "train")
    storage = open_storage(str(adopted / "index"))
    manifest = read_manifest(storage)
    with pytest.raises(UsageError, match=message):
        open_sheet(storage, manifest, manifest.splits[0])


def test_data_that_the_user_adopts_are_read_from_then_on(adopted):
    assert adopt_here(adopted).already
    adopted_module._named.clear()  # another process
    assert open_dataset(str(adopted / "index"), "train").split.samples == 4


def test_data_that_the_environment_names_are_read(adopted, monkeypatch):
    monkeypatch.setenv("DATAPREP_DATA_URL", f"{adopted}/other")
    with pytest.raises(UsageError, match="did not name"):
        open_dataset(str(adopted / "index"), "train")
    monkeypatch.setenv("DATAPREP_DATA_URL", f"{adopted}/data/")
    assert open_dataset(str(adopted / "index"), "train").split.samples == 4


def test_without_a_place_to_remember_trust_the_adopting_process_can_still_read(adopted, monkeypatch):
    (adopted / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(adopted / "file"))
    adopt_here(adopted)
    assert open_dataset(str(adopted / "index"), "train").split.samples == 4


@pytest.fixture(params=["folder", "file"])
def archive(request, tmp_path, monkeypatch):
    """A stranger's unpacked archive: an adopted folder with its manifest, in which a link leads to private images."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    adopt_in_place(tmp_path)
    train = tmp_path / "data" / "train"
    if request.param == "folder":
        train.rename(tmp_path / "private")
        train.symlink_to(tmp_path / "private")
        link, target = train, tmp_path / "private"
    else:
        link, target = train / "a/0.jpg", tmp_path / "private.jpg"
        link.rename(target)
        link.symlink_to(target)
    forget(tmp_path)
    return tmp_path / "data", link, target


def adopt_in_place(folder):
    for number in range(4):
        path = folder / "data" / "train" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg())
    return adopt(AdoptRequest(url=str(folder / "data")), AdoptProgress(quiet=True))


def read_images(url, **settings):
    with open_loader(str(url), split="train", batch_size=4, image_size=32, **settings) as loader:
        return next(iter(loader)).images


@pytest.mark.parametrize("settings", [{"threads": 1}, {"processes": 1}])
def test_links_out_of_a_folder_that_the_user_did_not_adopt_are_not_followed(archive, settings):
    data, link, target = archive
    message = rf"{link} is a link out of {data}, to {target}; .*run .dataprep adopt {data}. once"
    with pytest.raises(UsageError, match=message):
        read_images(data, **settings)


def test_links_out_of_a_folder_that_the_user_adopts_are_followed_from_then_on(archive):
    data, *_ = archive
    assert dataprep("adopt", data).returncode == 0  # another process
    assert len(read_images(data)) == len(read_images(data, processes=1)) == 4


def test_links_out_of_a_folder_that_the_environment_names_are_followed(archive, monkeypatch):
    data, *_ = archive
    monkeypatch.setenv("DATAPREP_DATA_URL", str(data))
    assert len(read_images(data)) == 4
