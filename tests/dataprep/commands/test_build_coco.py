"""`dataprep build coco`: which annotations are taken, what is refused, and what a loader then reads."""

import json
import shutil

import numpy as np
import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from loaders import open_loader, transform_boxes
from tests.support.builds import dataprep, digests, refuses
from tests.support.coco import small_documents, write_small
from tests.support.finished import verify_here


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Three images of val with all annotations."""
    return write_small(tmp_path_factory.mktemp("small"))


def build(source, output, *more, fmt="webdataset"):
    return dataprep(
        *("build", "coco", "--source", source, "--output", output, "--format", fmt, "--split", "val"),
        *("--workers", 1, "--allow-partial", *more),
    )


def test_all_annotations_that_are_there_are_taken(source, tmp_path):
    run = build(source, tmp_path / "out", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["name"] == "coco"
    manifest = read_manifest(open_storage(str(tmp_path / "out")))
    assert manifest.options["annotations"] == ["captions", "instances", "keypoints", "panoptic"]
    assert {"captions", "objects", "person_keypoints", "panoptic_objects", "image_id"} < set(manifest.features)
    sources = [entry["name"] for entry in manifest.sources]
    assert (sources[0], len(sources)) == ("val2017.zip", 5)
    assert "annotations/instances_val2017.json" in sources
    before = digests(tmp_path / "out")
    again = json.loads(build(source, tmp_path / "out", "--json").stdout)
    assert (again["shards_built"], digests(tmp_path / "out")) == (0, before)
    assert verify_here(tmp_path / "out", deep=True).verdict == "complete"
    fields = ("captions", "objects")
    with open_loader(tmp_path / "out", "val", batch_size=3, fields=fields, views=True, image_size=16) as loader:
        batch = next(iter(loader))
    row = [key.endswith("8") for key in batch.keys].index(True)
    assert [len(found["id"]) for found in batch.fields["captions"]].count(5) == 2
    objects = batch.fields["objects"][row]
    moved = transform_boxes(objects["bbox"], batch.views[row], annotated_size=(16, 24))
    assert moved.boxes.shape == (1, 4)
    assert np.all(moved.boxes <= 16)


def test_an_option_says_which_annotations_are_taken(source, tmp_path):
    run = build(source, tmp_path / "out", "--annotations", "captions", "--dry-run")
    assert run.returncode == 0, run.stderr
    assert "captions (records of id, text)" in run.stdout + run.stderr
    assert "objects" not in run.stdout + run.stderr
    run = build(source, tmp_path / "none", "--annotations", "none")
    assert run.returncode == 0, run.stderr
    assert read_manifest(open_storage(str(tmp_path / "none"))).features == {}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--annotations", "none", "--annotations", "captions"], "--annotations none excludes other kinds"),
        (["--annotations", "boxes"], "'boxes' is not one of"),
        (["--apply-exif"], "--apply-exif turns images but not their boxes"),
        (["--split", "eval"], "--split 'eval', expected one of train, val, test, unlabeled"),
        (["--split", "train"], "no captions of train2017: expected annotations_trainval2017.zip"),
    ],
)
def test_options_that_cannot_be_are_refused(source, tmp_path, more, words):
    run = build(source, tmp_path / "out", *more)
    assert run.returncode == 2
    assert words in run.stderr
    assert len(run.stderr.strip().splitlines()) <= 4


def test_a_source_without_annotations_says_so(source, tmp_path):
    (tmp_path / "source").mkdir()
    shutil.copy(source / "val2017.zip", tmp_path / "source")
    run = build(tmp_path / "source", tmp_path / "out")
    assert run.returncode == 2
    assert "no annotations of val2017: expected annotations_trainval2017.zip" in run.stderr
    assert "--annotations none" in run.stderr


def test_counts_other_than_the_published_are_refused(source, tmp_path):
    run = refuses(
        *("build", "coco", "--source", source, "--output", tmp_path / "out", "--format", "webdataset"),
        *("--split", "val", "--workers", 1),
    )
    assert "10 captions, expected 25,014; 3 instances, expected 36,781" in run.stderr
    assert "1 categories of panoptic, expected 133" in run.stderr


def test_annotations_of_images_that_do_not_exist_are_counted(tmp_path):
    documents = small_documents()
    documents["captions"]["images"].append(documents["captions"]["images"][0] | {"id": 99, "file_name": "99.jpg"})
    run = build(write_small(tmp_path / "source", documents), tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert "val: left out the annotations of 1 images that do not exist" in run.stderr


def test_images_and_annotations_that_do_not_belong_together_are_counted(tmp_path):
    """An image without objects looks like one that has none, and an annotation without its image is lost."""
    documents = small_documents()
    for document in documents.values():
        document["images"] = [image for image in document["images"] if image["id"] != 9]
    documents["instances"]["annotations"][0]["image_id"] = 99
    run = build(write_small(tmp_path / "source", documents), tmp_path / "out", "--annotations", "instances")
    assert run.returncode == 0, run.stderr
    assert "warning: val: left out 1 instances of images that the annotation files do not list" in run.stderr
    assert "warning: val: 1 image without annotations, because the annotation files do not list them, " in run.stderr
    assert "such as '000000000009.jpg'" in run.stderr


def test_splits_with_other_categories_are_refused(tmp_path):
    """A label is a position among the categories, so one label would mean two things."""
    source = write_small(tmp_path / "source")
    documents = small_documents()
    documents["instances"]["categories"][0]["id"] = 91
    documents["instances"]["annotations"][1]["category_id"] = 91
    write_small(source, documents, "train")
    run = build(source, tmp_path / "out", "--split", "train")
    assert run.returncode == 2
    assert "instances of train and val have different categories" in run.stderr
