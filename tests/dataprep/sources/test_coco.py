"""coco-dup5 from zips, folders and both; the same references from disk and bucket."""

import random

import pytest

from dataprep.dataset.records import NO_LABEL, SourceFile
from dataprep.errors import SourceError, UsageError
from dataprep.sources import dataset_named
from dataprep.sources.coco import PARTS
from dataprep.storage import open_storage
from tests.support.raw_zip import Entry, zip_file

COCO = dataset_named("coco-dup5")
IMAGES = {
    name: [(f"{i:012d}", random.Random(f"{name}{i}").randbytes(50 + i)) for i in (9, 30, 25)]
    for name in ("train2017", "unlabeled2017", "val2017")
}


def put_zip(storage, name):
    entries = [Entry(name=f"{name}/".encode())]
    entries += [Entry(name=f"{name}/{number}.jpg".encode(), data=data) for number, data in IMAGES[name]]
    data = zip_file(entries)
    storage.create(f"{name}.zip", data)
    return len(data)


def put_folder(storage, name):
    for number, data in IMAGES[name]:
        storage.create(f"{name}/{number}.jpg", data)


def found(storage, split="train"):
    """Key and image of every reference, in order."""
    enumeration = COCO.enumerate(storage, split, allow_partial=True)
    assert {ref.label for ref in enumeration.refs} == {NO_LABEL}
    return [(ref.key, storage.read_range(ref.source, ref.offset, ref.num_bytes)) for ref in enumeration.refs]


def expected(*names, in_order=True):
    images = {name: IMAGES[name] if in_order else sorted(IMAGES[name]) for name in names}
    return [(f"{name}/{number}", data) for name in names for number, data in images[name]]


def test_images_keep_the_order_of_their_zip(storage):
    sizes = {name: put_zip(storage, name) for name in IMAGES}
    assert found(storage) == expected("train2017", "unlabeled2017")
    assert found(storage, "val") == expected("val2017")
    assert COCO.enumerate(storage, "train", allow_partial=True).sources == [
        SourceFile(f"{name}.zip", sizes[name], version=storage.stat(f"{name}.zip").version)
        for name in ("train2017", "unlabeled2017")
    ]


def test_images_of_folders_are_sorted(storage):
    for name in IMAGES:
        put_folder(storage, name)
    assert found(storage) == expected("train2017", "unlabeled2017", in_order=False)
    sources = COCO.enumerate(storage, "train", allow_partial=True).sources
    assert [source.name for source in sources] == ["train2017", "unlabeled2017"]
    assert sources[0].num_bytes == sum(len(data) for _, data in IMAGES["train2017"])


def test_a_zip_is_preferred_to_its_unpacked_folder(tmp_path):
    storage = open_storage(str(tmp_path))
    put_zip(storage, "train2017")
    put_folder(storage, "train2017")
    put_folder(storage, "unlabeled2017")
    assert found(storage) == expected("train2017") + expected("unlabeled2017", in_order=False)


def test_missing_archives_and_wrong_counts_are_reported_together(tmp_path):
    storage = open_storage(str(tmp_path))
    put_zip(storage, "train2017")
    with pytest.raises(SourceError) as caught:
        COCO.enumerate(storage, "train", allow_partial=False)
    assert str(caught.value) == (
        f"{tmp_path}: coco-dup5 train: 3 images in train2017.zip, expected 118,287; neither unlabeled2017.zip nor "
        "unlabeled2017/ exists: check `source`, download what is missing, or build what exists with `allow_partial`"
    )
    with pytest.raises(
        SourceError, match=r"neither val2017\.zip nor val2017/ exists: check `source`, download what is missing$"
    ):
        COCO.enumerate(storage, "val", allow_partial=True)


def test_the_published_counts_are_accepted(tmp_path, monkeypatch):
    storage = open_storage(str(tmp_path))
    put_zip(storage, "val2017")
    with pytest.raises(SourceError, match="expected 5,000"):
        COCO.enumerate(storage, "val", allow_partial=False)
    (tmp_path / "val2017.zip").unlink()
    entries = [Entry(name=b"val2017/%012d.jpg" % i) for i in range(5000)]
    storage.create("val2017.zip", zip_file(entries))
    assert len(COCO.enumerate(storage, "val", allow_partial=False).refs) == 5000


def test_coco_has_its_published_splits_counts_and_repeats():
    assert COCO.splits == ("train", "val")
    assert COCO.default_splits == ("train",)
    assert [COCO.repeats(split) for split in COCO.splits] == [5, 1]
    assert COCO.split_facts("train").samples == sum(PARTS["train"].values()) == 241_690
    assert COCO.classes(open_storage("/nowhere"), allow_partial=False) == ()
    with pytest.raises(UsageError, match="`split` test: coco-dup5 has train and val"):
        COCO.enumerate(open_storage("/nowhere"), "test", allow_partial=True)
