"""Adopted data are where their manifest says, their owner's links are followed, and changes of them are noticed."""

import io
import pickle
import shlex
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep.adoption import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from dataprep.dataset import adopted as adopted_module
from dataprep.dataset.adopted import changes_of, is_adopted, open_data, open_linked
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import AccessError, FormatError, UsageError
from dataprep.inspection.contact_sheet import open_sheet
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage
from loaders import open_loader
from loaders.config import LoaderConfig
from loaders.dataset import open_dataset
from tests.support.adoption import upload
from tests.support.builds import dataprep
from tests.support.hostile_case import jpeg
from train.batches.data import open_data as open_training_data


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
    add(tmp_path / "data", *range(4))
    adopt_here(tmp_path)
    forget(tmp_path)
    return tmp_path


def add(folder, *numbers):
    """Write images of two classes."""
    for number in numbers:
        path = folder / "train" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg())
    return folder


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
    adopt(AdoptRequest(url=str(add(tmp_path / "data", *range(4)))), AdoptProgress(quiet=True))
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


# Changes


@pytest.fixture
def folder(tmp_path):
    return add(tmp_path / "data", *range(4))


def adopt_aside(folder):
    return adopt(AdoptRequest(url=str(folder), index_url=f"{folder}-index"), AdoptProgress(quiet=True))


def test_an_added_and_a_removed_image_are_noticed(folder):
    assert not adopt_aside(folder).already
    assert adopt_aside(folder).changes == ""
    add(folder, 4)
    assert adopt_aside(folder).changes == "train: 5 images, 4 when they were adopted"
    (folder / "train/a/0.jpg").unlink()
    (folder / "train/b/1.jpg").unlink()
    assert adopt_aside(folder).changes == "train: 3 images, 4 when they were adopted"


def test_a_training_run_indexes_changed_data_anew(folder, capsys):
    for images in (4, 5):
        data = open_training_data(str(folder), index_dir=f"{folder}-index")
        assert data.training_loader(LoaderConfig(batch_size=1, image_size=32)).dataset.split.samples == images
        add(folder, 4)
    assert "indexing it again" in capsys.readouterr().err


@pytest.fixture(params=["with the data", "elsewhere", "in a bucket"])
def placed(request, folder, tmp_path):
    """Adopted images: the URL of the dataset, and a function that puts a file into the data."""
    if request.param == "in a bucket":
        url = upload(folder, request.getfixturevalue("bucket_url"))
        data, index = open_storage(url), url
    else:
        data, index = open_storage(str(folder)), str(folder if request.param == "with the data" else tmp_path / "index")
    adopt(AdoptRequest(url=data.url, index_url=index), AdoptProgress(quiet=True))

    def put(name, content):
        data.delete(name)
        data.create(name, content)

    return index, put


def load(url):
    with open_loader(url, split="train", batch_size=1, image_size=32):
        pass


def train(url):
    open_training_data(url)


@pytest.mark.parametrize("open_it", [load, train])
def test_an_added_image_is_noticed_wherever_data_and_index_are(placed, open_it):
    url, put = placed
    open_it(url)
    put("train/b/4.jpg", jpeg())
    message = rf"{url}: the data have changed .*\(train: 5 images, 4 when .*; read them again with `overwrite`: ."
    with pytest.raises(UsageError, match=message):
        open_it(url)


@pytest.mark.parametrize("open_it", [load, train])
def test_a_replaced_image_is_noticed_wherever_data_and_index_are(placed, open_it):
    url, put = placed
    put("train/b/1.jpg", jpeg() + b"0")
    with pytest.raises(UsageError, match=r"\(train: images of [\d,]+ bytes, [\d,]+ when they were adopted\)"):
        open_it(url)


def test_a_replaced_image_is_noticed_beside_one_that_was_left_out_for_its_name(folder):
    (folder / "train/a/left\\out.jpg").write_bytes(jpeg())
    assert adopt_aside(folder).changes == ""
    assert adopt_aside(folder).changes == ""
    (folder / "train/b/1.jpg").write_bytes(jpeg() + b"0")
    assert adopt_aside(folder).changes.startswith("train: images of ")


def test_what_the_error_advises_makes_the_data_whole_again(placed):
    url, put = placed
    put("train/b/4.jpg", jpeg())
    with pytest.raises(UsageError) as caught:
        load(url)
    advised = shlex.split(str(caught.value).partition('"')[2].partition('"')[0])
    assert dataprep(*advised[1:]).returncode == 0
    load(url)


def test_hidden_files_and_files_in_no_class_are_no_change(placed):
    url, put = placed
    for name in ("train/a/._0.jpg", "train/x.jpg", "train/a/notes.txt", "README"):
        put(name, b"1")
    load(url)


def test_data_of_more_files_than_the_limit_are_not_compared_by_a_loader(placed, monkeypatch):
    url, put = placed
    put("train/b/4.jpg", jpeg())
    for limit in ("MAX_LISTED_ON_DISK", "MAX_LISTED_IN_BUCKET"):
        monkeypatch.setattr(f"loaders.dataset.{limit}", 4)
    load(url)


@pytest.fixture
def tars(tmp_path):
    for number in range(2):
        write_tar(tmp_path / f"data/{number}.tar")
    adopt(AdoptRequest(url=str(tmp_path / "data")), AdoptProgress(quiet=True))
    return tmp_path / "data"


def write_tar(path, images=2):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number in range(images):
            member = tarfile.TarInfo(f"{path.stem}-{number}.jpg")
            member.size = len(jpeg())
            tar.addfile(member, io.BytesIO(jpeg()))


def test_added_removed_and_replaced_shards_are_noticed(tars):
    load(str(tars))
    write_tar(tars / "2.tar")
    with pytest.raises(UsageError, match=r"\(shards added: 1, such as '2.tar'\)"):
        load(str(tars))
    (tars / "2.tar").rename(tars / "1.tar")
    load(str(tars))
    write_tar(tars / "1.tar", images=30)
    with pytest.raises(UsageError, match=r"\(train: 1 of 2 shards removed or replaced, such as '1.tar'\)"):
        load(str(tars))
    (tars / "1.tar").unlink()
    with pytest.raises(UsageError, match=r"\(train: 1 of 2 shards removed or replaced, such as '1.tar'\)"):
        load(str(tars))


def test_shards_that_a_retry_adds_are_no_change(tars):
    write_tar(tars / "2.tar")
    (tars / "_change").mkdir()
    (tars / "_change/plan.json").write_text("{}")
    load(str(tars))


def test_shards_of_no_split_are_no_change(tmp_path):
    for name in ("x-train-0.tar", "x-other-0.tar"):
        write_tar(tmp_path / "data" / name)
    request = AdoptRequest(url=str(tmp_path / "data"), splits=(("train", "*-train-*"),))
    adopt(request, AdoptProgress(quiet=True))
    load(str(tmp_path / "data"))
    write_tar(tmp_path / "data/x-train-1.tar")
    with pytest.raises(UsageError, match=r"\(shards added: 1, such as 'x-train-1.tar'\)"):
        load(str(tmp_path / "data"))


class Unlisted(LocalStorage):
    """A place whose objects may be read and not listed, as a bucket can be."""

    def list(self, prefix=""):
        raise AccessError("no permission to list")


def test_data_that_may_not_be_listed_are_not_compared(tars):
    assert changes_of(Unlisted(tars), read_manifest(open_storage(str(tars)))) == ""
