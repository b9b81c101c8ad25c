"""Data that other tools wrote, adopted and loaded: the same images with the same labels."""

import hashlib
import shutil
from pathlib import Path

import pytest

from dataprep.errors import FormatError
from dataprep.storage import open_storage
from loaders import open_loader
from tests.loaders.conftest import FORMATS
from tests.support.adoption import image_of, tar_of
from tests.support.builds import dataprep

OURS = ("dataset.json", "index")


def contents(url, **settings):
    """Label and digest of every image, as an evaluation delivers them."""
    found = []
    with open_loader(str(url), "train", batch_size=16, image_size=48, shuffle=False, **settings) as loader:
        for batch in loader:
            for image, label, real in zip(batch.images, batch.labels.tolist(), batch.mask, strict=True):
                if real:
                    found.append((label, hashlib.sha256(image.tobytes()).hexdigest()))
    return sorted(found)


def foreign(source: Path, folder: Path) -> Path:
    """A copy without anything of ours."""
    shutil.copytree(source, folder, symlinks=True)
    (folder / "dataset.json").unlink()
    shutil.rmtree(folder / "index")
    return folder


def adopt(url, *more):
    run = dataprep("adopt", url, *more)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("fmt", FORMATS)
def test_adopted_data_on_disk_load_as_the_original_dataset(dataset, tmp_path, fmt):
    data = foreign(dataset(fmt), tmp_path / "data")
    adopt(data)
    assert contents(data) == contents(dataset(fmt))
    with open_loader(str(data), batch_size=16, image_size=48) as loader:
        assert sum(int(batch.mask.sum()) for batch in loader) == 16 * len(loader)
        assert loader.order.samples_per_block == 1  # nobody said that they are shuffled


@pytest.mark.parametrize("fmt", [pytest.param(fmt, marks=[pytest.mark.long] * (fmt != "tfrecord")) for fmt in FORMATS])
def test_adopted_data_in_a_bucket_with_an_index_elsewhere_load_as_the_original_dataset(
    dataset, bucket_url, tmp_path, fmt
):
    data = foreign(dataset(fmt), tmp_path / "data")
    storage = open_storage(bucket_url)
    for path in data.rglob("*"):
        if path.is_file():
            storage.create(path.relative_to(data).as_posix(), path.read_bytes())
    adopt(bucket_url, "--index", tmp_path / "index")
    assert contents(tmp_path / "index", processes=1) == contents(dataset(fmt))


def test_an_adopted_image_folder_of_linked_classes_loads_as_the_original(dataset, tmp_path):
    real = foreign(dataset("imagefolder"), tmp_path / "elsewhere")
    (tmp_path / "linked/train").mkdir(parents=True)
    for folder in (real / "train").iterdir():
        (tmp_path / "linked/train" / folder.name).symlink_to(folder)
    adopt(tmp_path / "linked")
    assert contents(tmp_path / "linked") == contents(dataset("imagefolder"))


def test_a_sample_that_lacks_a_field_is_named_with_its_shard_and_key(tmp_path):
    members = [(f"{number}.jpg", image_of(number)) for number in range(8)]
    captions = [(f"{number}.txt", b"a cup") for number in range(8) if number != 5]
    (tmp_path / "shards").mkdir()
    tar_of(tmp_path / "shards/cups-0.tar", sorted(members + captions))
    adopt(tmp_path / "shards", "--labels", "none")
    settings = {"batch_size": 8, "image_size": 32, "fields": ("txt",), "shuffle": False}
    with (
        open_loader(str(tmp_path / "shards"), **settings) as loader,
        pytest.raises(FormatError, match=r"shards/cups-0\.tar: 5: field 'txt' does not exist"),
    ):
        next(iter(loader))
