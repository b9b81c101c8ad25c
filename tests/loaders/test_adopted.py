"""Data that other tools wrote, adopted and loaded: the same images with the same labels."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from dataprep.errors import FormatError
from loaders import Packs, Views, mixture, open_loader, open_packs, open_views
from tests.loaders.conftest import FORMATS
from tests.support.adoption import adopt_here, image_of, tar_of, upload
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
    adopt(upload(data, bucket_url), "--index", tmp_path / "index")
    assert contents(tmp_path / "index", processes=1) == contents(dataset(fmt))


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


@pytest.fixture
def sizes(tmp_path):
    """The same pictures three times: without sizes, with those of larger and with those of smaller pictures."""
    for folder, scale in {"none": 0.0, "larger": 2.0, "smaller": 0.5}.items():
        members = []
        for number in range(8):
            sides = {"height": int(scale * (16 + number % 5)), "width": int(scale * (24 + number % 7))} if scale else {}
            members += [(f"{number}.jpg", image_of(number)), (f"{number}.json", json.dumps(sides).encode())]
        (tmp_path / folder).mkdir()
        tar_of(tmp_path / folder / "train-0.tar", members)
        adopt_here(tmp_path / folder, labels="none")
    return tmp_path


@pytest.mark.parametrize("claimed", ["larger", "smaller"])
def test_pixels_do_not_depend_on_the_size_that_a_record_claims(sizes, claimed):
    """A crop of the claimed size was cut out of the top left corner, or was an error."""
    assert contents(sizes / claimed) == contents(sizes / "none")
    mixed = [mixture([(sizes / folder, 1)], labels="own") for folder in ("none", claimed)]
    settings = {"batch_size": 8, "image_size": 16}
    with open_loader(mixed[0], **settings) as one, open_loader(mixed[1], **settings) as other:
        assert next(iter(one)).images.tolist() == next(iter(other)).images.tolist()
    settings = {"batch_size": 8, "views": Views(count=2, size=16)}
    with open_views(sizes / "none", **settings) as one, open_views(sizes / claimed, **settings) as other:
        assert next(iter(one)).images[0].tolist() == next(iter(other)).images[0].tolist()


@pytest.mark.parametrize("claimed", ["larger", "smaller"])
def test_a_pack_that_was_planned_from_a_wrong_size_is_an_error_in_its_image(sizes, claimed):
    settings = {"batch_size": 8, "packs": Packs(tokens=16, images=4, patch=8)}
    with open_packs(sizes / claimed, **settings) as loader, pytest.raises(FormatError, match=r"high and .* its record"):
        next(iter(loader))
    with open_packs(sizes / claimed, **settings, on_error="skip") as loader:
        batch = next(iter(loader))
        assert not batch.mask.any()
        assert loader.stats()["skipped"]["FormatError"] >= 8


def test_pictures_without_a_header_are_skipped_where_a_task_has_no_others(tmp_path):
    """An image folder has no sizes; that no image of a task has one ended in an IndexError of NumPy's draws."""
    (tmp_path / "cups").mkdir()
    for number in range(4):
        (tmp_path / f"cups/{number}.jpg").write_bytes(b"no picture" if number % 2 else image_of(number))
    adopt_here(tmp_path, tmp_path.with_name("index"))
    settings = {"batch_size": 4, "image_size": 16, "threads": 4, "on_error": "skip"}
    with open_loader(tmp_path.with_name("index"), **settings) as loader:
        batch = next(iter(loader))
    assert {key: bool(real) for key, real in zip(batch.keys, batch.mask, strict=True)} == {
        f"cups/{number}": number % 2 == 0 for number in range(4)
    }
