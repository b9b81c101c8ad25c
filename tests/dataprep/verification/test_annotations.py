"""A caption or a box that was changed is found in every format, also where all digests were made to agree."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
from pathlib import Path

import pytest

from dataprep.dataset.manifest import MANIFEST, manifest_bytes, read_manifest
from dataprep.storage import open_storage
from tests.support.builds import FORMATS
from tests.support.coco import build_small, write_small
from tests.support.finished import verify_here
from tests.support.own_data import annotated, build_own

FAULTS = 100


@pytest.fixture(scope="module", params=FORMATS)
def whole(request, tmp_path_factory):
    """A whole dataset with annotations."""
    folder = tmp_path_factory.mktemp(request.param)
    build_own(annotated(folder / "source", 12), folder / "out", request.param)
    assert verify_here(folder / "out", deep=True).verdict == "whole"
    return folder / "out"


def annotated_file(root: Path) -> Path:
    files = [*root.glob("train/*.tar"), *root.glob("*.tfrecord-*"), *root.glob("train/metadata.jsonl")]
    return sorted(files)[0]


def test_values_that_were_changed_are_found(whole, tmp_path):
    """Only the value changes, and no length: what finds it is not the syntax."""
    rng = random.Random(7)
    file = annotated_file(whole)
    data = file.read_bytes()
    places = [match.start(1) for match in re.finditer(rb"(?:thing|\bp|cat on a m)(?: )?([0-9a])", data)]
    assert len(places) > 10
    root = tmp_path / "out"
    shutil.copytree(whole, root)
    for _ in range(FAULTS):
        at = rng.choice(places)
        changed = bytearray(data)
        changed[at] = rng.choice([byte for byte in b"0123456789" if byte != data[at]])
        (root / file.relative_to(whole)).write_bytes(changed)
        report = verify_here(root)
        assert report.verdict == "differs"
        assert set(report.counts) <= {"digest", "record", "format"}
        assert {"record", "format"} & set(report.counts)


def test_values_that_agree_with_every_digest_differ_from_the_index(whole, tmp_path):
    """Someone builds the same pictures with another caption, and puts file and digests into the dataset."""
    other = tmp_path / "other"
    source = annotated(tmp_path / "source", 12)
    metadata = source / "metadata.jsonl"
    metadata.write_text(metadata.read_text().replace("a cat on a mat", "a dog on a mat"))
    manifest = read_manifest(open_storage(str(whole)))
    forged = build_own(source, other, manifest.format)
    for name in ("index/train.parquet", "index/train-events.parquet"):
        shutil.copyfile(whole / name, other / name)
    (split,) = forged.splits
    object.__setattr__(split, "index", manifest.splits[0].index)
    object.__setattr__(split, "events", manifest.splits[0].events)
    (other / MANIFEST).write_bytes(manifest_bytes(forged))
    report = verify_here(other)
    assert report.verdict == "differs"
    assert report.counts["record"] == 3


def test_annotations_that_are_not_there(whole, tmp_path):
    root = tmp_path / "out"
    shutil.copytree(whole, root)
    file = root / annotated_file(whole).relative_to(whole)
    data = file.read_bytes()
    file.write_bytes(data[:-20])
    assert {"size", "format"} & set(verify_here(root).counts)
    file.write_bytes(data + b'{"x":1}\n')
    assert verify_here(root).verdict == "differs"
    file.unlink()
    assert verify_here(root).counts["missing"] == 1


def test_manifests_that_lie_about_features(whole, tmp_path):
    root = tmp_path / "out"
    shutil.copytree(whole, root)
    manifest = read_manifest(open_storage(str(whole)))
    for features in ({}, {"caption": manifest.features["caption"]}):
        object.__setattr__(manifest, "features", features)
        (root / MANIFEST).write_bytes(manifest_bytes(manifest))
        assert verify_here(root).verdict == "differs"


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ('"name": "pets"', '"name": "imagenet"', "name 'imagenet'"),
        ('"name": "pets"', '"name": "../x"', "name"),
        ('"dataset": "folder"', '"dataset": "imagenet"', "which 'imagenet' does not have"),
        ('"dataset": "folder"', '"dataset": "nothing"', "expected one of"),
        ('"val_fraction": 0.0', '"val_fraction": "x"', "options.own cannot be read"),
        ('"val_fraction": 0.0', '"val_fraction": 7.5', "options.own cannot be read"),
        ('"kind": "text"', '"kind": "tensor"', "features"),
        ('"caption": {', '"label": {', "features"),
    ],
)
def test_manifests_that_are_damaged(whole, tmp_path, was, now, text):
    root = tmp_path / "out"
    shutil.copytree(whole, root)
    manifest = (root / MANIFEST).read_text()
    assert was in manifest
    (root / MANIFEST).write_text(manifest.replace(was, now))
    report = verify_here(root)
    assert report.verdict == "differs"
    assert text in report.findings[0].detail


# COCO: boxes, masks, keypoints and panoptic images


@pytest.fixture(scope="module", params=FORMATS)
def coco(request, tmp_path_factory):
    """A whole dataset with all annotations of COCO."""
    folder = tmp_path_factory.mktemp(f"coco-{request.param}")
    build_small(write_small(folder / "source"), folder / "out", request.param)
    assert verify_here(folder / "out", deep=True).verdict == "whole"
    return folder / "out"


def places_of_values(data: bytes) -> list[int]:
    """Positions of bytes of captions, masks, boxes, keypoints and panoptic images, in text or binary."""
    texts = (
        rb"caption (\d)",
        rb"1\.5,2,11\.(75)",
        rb"\[14,(2),14",
        rb"\[0,(2),14",
        rb"iVBORw0KGgo(.{30})",
        rb"\x89PNG(.{30})",
    )
    numbers = (re.escape(struct.pack("<d", value)) for value in (10.25, 41.125, -3.5, 40.0, 5.5, 6.5))
    patterns = [
        *texts,
        rb"10\.(25)",
        rb"41\.(125)",
        rb"-(3)\.5",
        rb"(40)\.0",
        rb"6\.(5),1",
        *(b"(%s)" % n for n in numbers),
    ]
    found = [match.span(1) for pattern in patterns for match in re.finditer(pattern, data, re.DOTALL)]
    return sorted({place for start, stop in found for place in range(start, stop)})


def test_values_of_coco_that_were_changed_are_found(coco, tmp_path):
    rng = random.Random(11)
    (file,) = [*coco.glob("val/*.tar"), *coco.glob("*-val.tfrecord-*"), *coco.glob("val/metadata.jsonl")]
    data, root = file.read_bytes(), tmp_path / "out"
    places = places_of_values(data)
    assert len(places) > 60
    shutil.copytree(coco, root)
    for place in rng.sample(places, 40):
        changed = bytearray(data)
        changed[place] = rng.choice([byte for byte in b"0123456789AB" if byte != data[place]])
        (root / file.relative_to(coco)).write_bytes(changed)
        report = verify_here(root)
        assert report.verdict == "differs"
        assert {"record", "format"} & set(report.counts)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda manifest: manifest["options"].update(annotations=["captions"]), "features"),
        (lambda manifest: manifest["options"].update(annotations=["boxes"]), "options.annotations cannot be read"),
        (lambda manifest: manifest["options"].update(annotations=7), "options.annotations cannot be read"),
        (lambda manifest: manifest["options"].pop("annotations"), "features"),
        (lambda manifest: manifest["features"].pop("captions"), "features ['captions'], which 'coco' does not have"),
        (lambda manifest: manifest["features"]["image_id"].update(kind="text"), "features ['image_id']"),
        (lambda manifest: manifest["options"].update(own={"name": "coco"}), "coco"),
    ],
)
def test_manifests_whose_features_are_not_those_of_coco(coco, tmp_path, change, text):
    root = tmp_path / "out"
    shutil.copytree(coco, root)
    manifest = json.loads((root / MANIFEST).read_text())
    change(manifest)
    (root / MANIFEST).write_text(json.dumps(manifest))
    report = verify_here(root)
    assert report.verdict == "differs"
    assert text in report.findings[0].detail
