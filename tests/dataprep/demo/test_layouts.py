"""Layouts: the archives of a demo have the names, order and label files of the real ones."""

import io
import tarfile
import zipfile

from dataprep.demo.layouts import CocoLayout, ImageNetLayout
from dataprep.demo.make import write_demo
from dataprep.sources import dataset_named
from dataprep.sources.imagenet import published_classes
from dataprep.storage import open_storage
from tests.support.on_use import on_use

scipy_io = on_use("scipy.io")


def test_demo_coco_has_the_layout_of_coco(tmp_path):
    write_demo("coco", tmp_path, images=24, odd=False)
    with zipfile.ZipFile(tmp_path / "train2017.zip") as archive:
        first, *others = archive.infolist()
        assert first.filename == "train2017/"
        assert {info.compress_type for info in others} == {zipfile.ZIP_STORED}
        assert [len(info.filename) for info in others] == [len("train2017/000000000009.jpg")] * len(others)
        assert archive.testzip() is None
    assert CocoLayout(241_690).val_images == 12_084
    assert CocoLayout(241_690)._labelled == 118_287


def test_demo_imagenet_has_the_layout_of_imagenet(tmp_path):
    report = write_demo("imagenet", tmp_path, images=60, odd=False)
    assert len(report.classes) == 3
    assert set(report.classes) < set(published_classes())
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar") as outer:
        assert [member.name for member in outer] == [f"{wnid}.tar" for wnid in report.classes]
        with tarfile.open(fileobj=outer.extractfile(f"{report.classes[1]}.tar")) as inner:
            assert [member.name.partition("_")[0] for member in inner] == [report.classes[1]] * 20
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar") as val:
        assert val.getnames() == [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, report.images["val"] + 1)]
    with tarfile.open(tmp_path / "ILSVRC2012_devkit_t12.tar.gz") as devkit:
        meta = scipy_io.loadmat(devkit.extractfile("ILSVRC2012_devkit_t12/data/meta.mat"), squeeze_me=True)["synsets"]
    wnids = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in meta if row["num_children"] == 0}
    assert tuple(sorted(wnids.values())) == report.classes
    assert [int(row["num_children"]) for row in meta if row["ILSVRC2012_ID"] == 1001] == [3]


def test_both_label_files_say_the_same(tmp_path):
    report = write_demo("imagenet", tmp_path, images=200, odd=False)
    storage, imagenet = open_storage(str(tmp_path)), dataset_named("imagenet")
    by_devkit = list(imagenet.enumerate(storage, "val", allow_partial=True).refs)
    (tmp_path / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    assert list(imagenet.enumerate(storage, "val", allow_partial=True).refs) == by_devkit
    labels = [ref.label for ref in by_devkit]
    assert sorted(labels) == list(range(len(report.classes)))
    assert labels != sorted(labels)


def test_ids_are_not_in_the_order_of_wnids():
    layout = ImageNetLayout(400, seed=0)
    assert len(layout.classes) == 20
    meta = scipy_io.loadmat(io.BytesIO(meta_of(layout)), squeeze_me=True)["synsets"]
    wnids = [str(row["WNID"]) for row in meta][:20]
    assert sorted(wnids) == list(layout.classes)
    assert wnids != sorted(wnids)


def meta_of(layout):
    with tarfile.open(fileobj=io.BytesIO(layout._devkit())) as devkit:
        return devkit.extractfile("ILSVRC2012_devkit_t12/data/meta.mat").read()
