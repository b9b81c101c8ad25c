"""Annotations of demo images: the files of COCO, the same for the same arguments, and nothing else changes."""

from __future__ import annotations

import hashlib
import json
import zipfile

from dataprep.demo.make import write_demo


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
