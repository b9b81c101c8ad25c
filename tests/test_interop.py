"""webdataset, Hugging Face datasets, TFDS and torchvision read what a build wrote: the same samples, the same
bytes, as the standard library finds them in the originals. A view and a column, which they do not know, change
nothing for them."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from dataprep import convert, map, select
from dataprep.demo.make import write_demo
from tests.support.builds import FORMATS, build_warm
from tests.support.interop import (
    describe_with_tfds,
    read_card_with_hf_datasets,
    read_with_hf_datasets,
    read_with_tfds,
    read_with_torchvision,
    read_with_webdataset,
)

IMAGES = 60


def in_imagenet(folder):
    """(key, label, sha256) of every image of the train tar."""
    with tarfile.open(folder / "ILSVRC2012_img_train.tar") as outer:
        names = sorted(member.name for member in outer)
        for label, name in enumerate(names):
            with tarfile.open(fileobj=io.BytesIO(outer.extractfile(name).read())) as inner:
                for member in inner:
                    key = f"{Path(name).stem}/{Path(member.name).stem}"
                    yield key, label, hashlib.sha256(inner.extractfile(member).read()).hexdigest()


def in_coco(folder):
    for archive in ("train2017.zip", "unlabeled2017.zip"):
        with zipfile.ZipFile(folder / archive) as images:
            for name in images.namelist():
                if name.endswith(".jpg"):
                    yield name.removesuffix(".jpg"), -1, hashlib.sha256(images.read(name)).hexdigest()


@pytest.fixture(scope="module", params=[pytest.param("imagenet", marks=pytest.mark.long), "coco-dup5"])
def dataset(request, tmp_path_factory):
    """What the originals hold, the classes, and by format the root of a build."""
    originals = tmp_path_factory.mktemp("originals")
    write_demo(request.param.removesuffix("-dup5"), originals, images=IMAGES, odd=False)
    roots = {fmt: tmp_path_factory.mktemp(fmt) / "out" for fmt in FORMATS}
    for fmt, root in roots.items():
        manifest = build_warm(request.param, originals, root, fmt, "--num-shards", 4, "--split", "train")
        select(root, name="half", sample=0.5)
        map(root, {"sharpness": "sharpness"}, workers=1)
    expected = sorted(in_imagenet(originals) if request.param == "imagenet" else in_coco(originals))
    return expected, manifest["classes"], roots


def shards_of(root):
    return [str(path) for path in sorted(root.glob("train/*.tar"))]


def test_webdataset_reads_the_samples_of_a_build(dataset):
    expected, _, roots = dataset
    assert sorted(read_with_webdataset(shards_of(roots["webdataset"]))) == expected


def test_webdataset_finds_the_shards_by_a_brace_pattern(dataset):
    expected, _, roots = dataset
    pattern = shards_of(roots["webdataset"])[0].replace("00000-of", "{00000..00003}-of")
    assert sorted(read_with_webdataset(pattern)) == expected


def test_hugging_face_datasets_reads_the_samples_of_a_build(dataset):
    expected, _, roots = dataset
    assert sorted(read_with_hf_datasets(shards_of(roots["webdataset"]))) == expected


def test_hugging_face_datasets_reads_by_the_card(dataset):
    expected, _, roots = dataset
    found = read_card_with_hf_datasets(roots["imagefolder"])["train"]
    assert sorted(row["image"]["sha256"] for row in found) == sorted(digest for _, _, digest in expected)


def test_webdataset_reads_the_samples_of_a_view_that_was_converted(dataset, tmp_path):
    expected, _, roots = dataset
    found = convert(f"{roots['tfrecord']}@half", output=tmp_path / "out", format="webdataset", workers=1)
    read = read_with_webdataset(shards_of(tmp_path / "out"))
    assert 0 < len(read) == found.splits["train"].samples < len(expected)
    assert set(read) < set(expected)


def test_tfds_reads_the_samples_of_a_build(dataset):
    expected, classes, roots = dataset
    assert sorted(read_with_tfds(roots["tfrecord"])) == expected
    assert list(describe_with_tfds(roots["tfrecord"])["class_names"]) == classes


def test_torchvision_reads_the_samples_of_a_build(dataset):
    expected, classes, roots = dataset
    assert sorted(read_with_torchvision(roots["imagefolder"] / "train", has_classes=bool(classes))) == expected
