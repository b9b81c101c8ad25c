"""ImageNet-21k from a tar of tars and from folders: the same keys, labels and bytes, and the counts of its releases."""

import gzip
import random

import pytest

from dataprep.errors import SourceError
from dataprep.sources import dataset_named, imagenet
from dataprep.sources.imagenet import Release
from dataprep.storage import open_storage
from tests.support.raw_tar import member, tar

IMAGENET_21K = dataset_named("imagenet-21k")
# In the order of the tar, which is not that of the class list.
IMAGES = {
    wnid: [(f"{wnid}_{number}", random.Random(f"{wnid}{number}").randbytes(300 + number)) for number in (10026, 9, 18)]
    for wnid in ("n04399382", "n00004475", "n15102894")
}
CLASSES = tuple(sorted(IMAGES))
FOUND = [(f"{wnid}/{name}", CLASSES.index(wnid), data) for wnid, images in IMAGES.items() for name, data in images]
COMPLETE = Release(len(FOUND), len(CLASSES))


def class_tar(wnid):
    return tar(*(member(f"{name}.JPEG".encode(), data) for name, data in IMAGES[wnid]))


def put_tar(storage, name, folder=""):
    members = [member(folder.encode(), kind=b"5")] if folder else []
    storage.create(name, tar(*members, *(member(f"{folder}{wnid}.tar".encode(), class_tar(wnid)) for wnid in IMAGES)))


def put_class_tars(storage, folder):
    for wnid in IMAGES:
        storage.create(f"{folder}{wnid}.tar", class_tar(wnid))


def put_class_folders(storage, folder):
    for wnid, images in IMAGES.items():
        for name, data in images:
            storage.create(f"{folder}{wnid}/{name}.JPEG", data)


LAYOUTS = {
    "winter21_whole.tar": lambda storage: put_tar(storage, "winter21_whole.tar", "winter21_whole/"),
    "winter21_whole.tar.gz that is not compressed": lambda storage: put_tar(storage, "winter21_whole.tar.gz"),
    "fall11_whole.tar": lambda storage: put_tar(storage, "fall11_whole.tar"),
    "winter21_whole/<wnid>.tar": lambda storage: put_class_tars(storage, "winter21_whole/"),
    "train/<wnid>/": lambda storage: put_class_folders(storage, "train/"),
    "<wnid>.tar": lambda storage: put_class_tars(storage, ""),
    "<wnid>/": lambda storage: put_class_folders(storage, ""),
}


def found(storage, *, allow_partial=True):
    enumeration = IMAGENET_21K.enumerate(storage, "train", allow_partial=allow_partial)
    return enumeration, [
        (ref.key, ref.label, storage.read_range(ref.source, ref.offset, ref.num_bytes)) for ref in enumeration.refs
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_same_images(storage, layout):
    LAYOUTS[layout](storage)
    enumeration, images = found(storage)
    assert sorted(images) == sorted(FOUND)
    assert enumeration.classes == CLASSES == IMAGENET_21K.classes(storage, allow_partial=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "winter21_whole",
            r"9 images of 3 classes, expected 13,153,500 images of 19,167 classes \(winter21_whole\): d",
        ),
        ("fall11_whole", r"9 images of 3 classes, expected 14,197,122 images of 21,841 classes \(fall11_whole\): d"),
    ],
)
def test_counts_are_those_of_the_release_that_the_name_says(tmp_path, monkeypatch, name, words):
    storage = open_storage(str(tmp_path))
    put_tar(storage, f"{name}.tar")
    with pytest.raises(SourceError, match=words):
        found(storage, allow_partial=False)
    monkeypatch.setitem(imagenet.RELEASES, name, COMPLETE)
    assert len(found(storage, allow_partial=False)[1]) == COMPLETE.images


def test_class_tars_in_a_folder_of_any_name_may_be_of_either_release(tmp_path, monkeypatch):
    storage = open_storage(str(tmp_path))
    put_class_tars(storage, "")
    with pytest.raises(SourceError, match=r"19,167 classes \(winter21_whole\) or 14,197,122 images of 21,841 classes"):
        found(storage, allow_partial=False)
    monkeypatch.setitem(imagenet.RELEASES, "fall11_whole", COMPLETE)
    assert len(found(storage, allow_partial=False)[1]) == COMPLETE.images


def test_class_tars_in_a_folder_called_after_a_release_are_of_it(tmp_path, monkeypatch):
    storage = open_storage(str(tmp_path / "winter21_whole"))
    put_class_tars(storage, "")
    monkeypatch.setitem(imagenet.RELEASES, "fall11_whole", COMPLETE)
    with pytest.raises(SourceError, match=r"expected 13,153,500 images of 19,167 classes \(winter21_whole\): download"):
        found(storage, allow_partial=False)


def test_a_compressed_archive_is_refused_with_the_command_that_helps(tmp_path):
    (tmp_path / "winter21_whole.tar.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(SourceError, match=r"compressed, so .*: gunzip .*/winter21_whole\.tar\.gz$"):
        found(open_storage(str(tmp_path)))


def test_a_folder_without_any_of_it_says_what_was_expected(tmp_path):
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats/1.jpg").write_bytes(b"x")
    words = r"imagenet-21k train: not found: expected winter21_whole\.tar, .*dataprep build folder `source`"
    with pytest.raises(SourceError, match=words):
        found(open_storage(str(tmp_path)))
