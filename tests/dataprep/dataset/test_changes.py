"""Data that changed after they were adopted: noticed, refused, indexed anew by a training run."""

import io
import shlex
import tarfile

import pytest

from dataprep.adoption import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from dataprep.dataset.adopted import changes_of
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import AccessError, UsageError
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage
from loaders import open_loader
from loaders.config import LoaderConfig
from tests.support.adoption import upload
from tests.support.builds import dataprep
from tests.support.hostile_case import jpeg
from train.batches.data import open_data


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        add(tmp_path / "data", number)
    return tmp_path / "data"


def add(folder, number):
    path = folder / "train" / "ab"[number % 2] / f"{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg())


def adopt_here(folder):
    return adopt(AdoptRequest(url=str(folder), index_url=f"{folder}-index"), AdoptProgress(quiet=True))


def test_an_added_and_a_removed_image_are_noticed(folder):
    assert not adopt_here(folder).already
    assert adopt_here(folder).changes == ""
    add(folder, 4)
    assert adopt_here(folder).changes == "train: 5 images, 4 when they were adopted"
    (folder / "train/a/0.jpg").unlink()
    (folder / "train/b/1.jpg").unlink()
    assert adopt_here(folder).changes == "train: 3 images, 4 when they were adopted"


def test_a_training_run_indexes_changed_data_anew(folder, capsys):
    for images in (4, 5):
        data = open_data(str(folder), index_dir=f"{folder}-index")
        assert data.training_loader(LoaderConfig(batch_size=1, image_size=32)).dataset.split.samples == images
        add(folder, 4)
    assert "indexing it again" in capsys.readouterr().err


@pytest.fixture(params=["with the data", "elsewhere", "in a bucket"])
def adopted(request, folder, tmp_path):
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
    open_data(url)


@pytest.mark.parametrize("open_it", [load, train])
def test_an_added_image_is_noticed_wherever_data_and_index_are(adopted, open_it):
    url, put = adopted
    open_it(url)
    put("train/b/4.jpg", jpeg())
    message = rf"{url}: the data have changed .*\(train: 5 images, 4 when .*; read them again with `overwrite`: ."
    with pytest.raises(UsageError, match=message):
        open_it(url)


@pytest.mark.parametrize("open_it", [load, train])
def test_a_replaced_image_is_noticed_wherever_data_and_index_are(adopted, open_it):
    url, put = adopted
    put("train/b/1.jpg", jpeg() + b"0")
    with pytest.raises(UsageError, match=r"\(train: images of [\d,]+ bytes, [\d,]+ when they were adopted\)"):
        open_it(url)


def test_a_replaced_image_is_noticed_beside_one_that_was_left_out_for_its_name(folder):
    (folder / "train/a/left\\out.jpg").write_bytes(jpeg())
    assert adopt_here(folder).changes == ""
    assert adopt_here(folder).changes == ""
    (folder / "train/b/1.jpg").write_bytes(jpeg() + b"0")
    assert adopt_here(folder).changes.startswith("train: images of ")


def test_what_the_error_advises_makes_the_data_whole_again(adopted):
    url, put = adopted
    put("train/b/4.jpg", jpeg())
    with pytest.raises(UsageError) as caught:
        load(url)
    advised = shlex.split(str(caught.value).partition('"')[2].partition('"')[0])
    assert dataprep(*advised[1:]).returncode == 0
    load(url)


def test_hidden_files_and_files_in_no_class_are_no_change(adopted):
    url, put = adopted
    for name in ("train/a/._0.jpg", "train/x.jpg", "train/a/notes.txt", "README"):
        put(name, b"1")
    load(url)


def test_data_of_more_files_than_the_limit_are_not_compared_by_a_loader(adopted, monkeypatch):
    url, put = adopted
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
