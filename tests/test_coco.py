"""COCO with annotations: webdataset, Hugging Face datasets, TFDS and torchvision read what pycocotools has of the
original files, field by field."""

from __future__ import annotations

import json
import zipfile

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from tests.support.builds import FORMATS
from tests.support.coco import as_pycocotools, build_coco, differences, pycocotools_view, unpacked
from tests.support.interop import read_annotations_with_webdataset, read_with_coco_detection, read_with_webdataset

BUILT_IN = {"height", "orientation", "width"}


@pytest.fixture(scope="module")
def roots(originals, tmp_path_factory):
    """A build of the same originals in each format."""
    made = {}
    for fmt in FORMATS:
        made[fmt] = tmp_path_factory.mktemp(fmt) / "out"
        build_coco(originals["coco-annotated"], made[fmt], fmt)
    return made


@pytest.fixture(scope="module")
def annotations(originals, tmp_path_factory):
    """The folder of the unpacked original annotation files."""
    return unpacked(originals["coco-annotated"], tmp_path_factory.mktemp("annotations"))


@pytest.fixture(scope="module")
def pictures(originals):
    """The panoptic images of train in the original archive, by name."""
    with zipfile.ZipFile(originals["coco-annotated"] / "panoptic_annotations_trainval2017.zip") as outer:
        with outer.open("annotations/panoptic_train2017.zip") as stream, zipfile.ZipFile(stream) as inner:
            return {name.partition("/")[2]: inner.read(name) for name in inner.namelist()}


def shards_of(roots):
    return [str(path) for path in sorted(roots["webdataset"].glob("train/*.tar"))]


def test_the_originals_have_all_that_coco_has(annotations):
    """What is compared below is compared with something."""
    _, by_file = pycocotools_view(annotations, "instances", "train")
    objects = [found for each in by_file.values() for found in each]
    assert {len(found) for found in by_file.values()} >= {0, 1, 2, 3}
    assert {type(found["segmentation"]) for found in objects} == {list, dict}
    assert {len(found["segmentation"]) for found in objects if not found["iscrowd"]} == {1, 2}
    _, people = pycocotools_view(annotations, "keypoints", "train")
    assert any(found["num_keypoints"] for each in people.values() for found in each)


def test_webdataset_reads_what_pycocotools_has(roots, annotations, pictures):
    found = read_annotations_with_webdataset(shards_of(roots))
    assert len(found) == read_manifest(open_storage(str(roots["webdataset"]))).splits[0].samples > 30
    assert differences(annotations, "train", found) == []
    for sample in found:
        assert sample["key"] == f"train2017/{sample['image_id']:012d}"
        assert sample["panoptic.png"] == pictures[sample["panoptic_filename"]]


@pytest.mark.parametrize(("kind", "file"), [("instances", "instances"), ("keypoints", "person_keypoints")])
def test_torchvision_reads_images_and_targets(roots, annotations, kind, file):
    """CocoDetection takes the images from our folder and the targets from the original file."""
    folder = roots["imagefolder"] / "train"
    lines = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    found = read_with_coco_detection(folder / "train2017", annotations / f"{file}_train2017.json")
    ours = {line["filename"]: as_pycocotools(kind, line) for line in lines}
    assert {file_name: targets for file_name, _, targets in found} == ours
    digests = {key: digest for key, _, digest in read_with_webdataset(shards_of(roots))}
    assert {f"train2017/{file_name.removesuffix('.jpg')}": digest for file_name, digest, _ in found} == digests
