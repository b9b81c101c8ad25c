"""Layouts: the archives of a demo have the names, order and label files of the real ones."""

import hashlib
import io
import json
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
    report = write_demo("imagenet", tmp_path, images=100, odd=False)
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


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_annotations_come_on_request_and_images_stay_as_they_are(tmp_path):
    plain = write_demo("coco", tmp_path / "plain", images=24, odd=False)
    annotated = write_demo("coco-annotated", tmp_path / "annotated", images=24, odd=False)
    write_demo("coco-annotated", tmp_path / "again", images=24, odd=False)
    assert set(annotated.files) - set(plain.files) == {
        "annotations_trainval2017.zip",
        "panoptic_annotations_trainval2017.zip",
    }
    found = digests(tmp_path / "annotated")
    assert {name: found[name] for name in plain.files} == {
        name: digest for name, digest in digests(tmp_path / "plain").items() if name in plain.files
    }
    assert digests(tmp_path / "again") == found
    other = write_demo("coco-annotated", tmp_path / "other", images=24, odd=False, seed=1)
    assert other.files == annotated.files
    assert digests(tmp_path / "other")["annotations_trainval2017.zip"] != found["annotations_trainval2017.zip"]


def test_files_have_the_layout_of_coco(tmp_path):
    write_demo("coco-annotated", tmp_path, images=40, odd=False)
    with zipfile.ZipFile(tmp_path / "annotations_trainval2017.zip") as archive:
        names = [
            f"{kind}_{split}2017"
            for split in ("train", "val")
            for kind in ("captions", "instances", "person_keypoints")
        ]
        assert sorted(archive.namelist()) == sorted(f"annotations/{name}.json" for name in names)
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_DEFLATED}
        documents = {name: json.loads(archive.read(f"annotations/{name}.json")) for name in names}
    with zipfile.ZipFile(tmp_path / "train2017.zip") as archive:
        images = sorted(name.partition("/")[2] for name in archive.namelist() if name.endswith(".jpg"))
    for name in names[:3]:
        assert sorted(image["file_name"] for image in documents[name]["images"]) == images
    instances = documents["instances_train2017"]["annotations"]
    assert len({found["id"] for found in instances}) == len(instances)
    assert [found["image_id"] for found in instances] != sorted(found["image_id"] for found in instances)
    for found in instances:
        assert isinstance(found["segmentation"], dict) == bool(found["iscrowd"])
    people = {found["id"]: found for found in documents["person_keypoints_train2017"]["annotations"]}
    assert people.keys() == {found["id"] for found in instances if found["category_id"] == 1}
    assert all(len(found["keypoints"]) == 51 for found in people.values())
    captions = documents["captions_train2017"]["annotations"]
    assert (
        min(sum(found["image_id"] == image["id"] for found in captions) for image in documents[names[0]]["images"]) >= 5
    )


def test_panoptic_images_show_their_segments(tmp_path):
    import numpy as np
    from PIL import Image

    write_demo("coco-annotated", tmp_path, images=24, odd=False)
    with zipfile.ZipFile(tmp_path / "panoptic_annotations_trainval2017.zip") as archive:
        document = json.loads(archive.read("annotations/panoptic_val2017.json"))
        with archive.open("annotations/panoptic_val2017.zip") as stream, zipfile.ZipFile(stream) as pictures:
            for found in document["annotations"]:
                with pictures.open(f"panoptic_val2017/{found['file_name']}") as file:
                    pixels = np.asarray(Image.open(file)).astype(np.uint32)
                ids = pixels[..., 0] + 256 * pixels[..., 1] + 65536 * pixels[..., 2]
                numbers, areas = np.unique(ids, return_counts=True)
                assert dict(zip(numbers.tolist(), areas.tolist(), strict=True)) == {
                    segment["id"]: segment["area"] for segment in found["segments_info"]
                }
