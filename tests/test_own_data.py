"""A user's own pictures: webdataset, Hugging Face datasets, TFDS and torchvision read images and annotations back. A
view and a column, which they do not know, change nothing for them."""

from __future__ import annotations

import hashlib
import json

import pytest

from dataprep import map, select
from dataprep.commands.inspect import class_caption
from dataprep.inspection.inspect import inspect_dataset
from tests.support.builds import FORMATS, dataprep
from tests.support.finished import details, kinds, verify_here
from tests.support.interop import (
    describe_with_tfds,
    read_annotations_with_hf_datasets,
    read_annotations_with_webdataset,
    read_features_with_tfds,
    read_with_hf_datasets,
    read_with_tfds,
    read_with_torchvision,
    read_with_webdataset,
)
from tests.support.own_data import build_own, picture, stored_values, write_files
from tests.support.raw_tar import tar_of

CLASSES = ("cats", "dogs", "fish")
BUILT_IN = {"class_name", "height", "label", "orientation", "width"}


@pytest.fixture(scope="module")
def roots(originals, tmp_path_factory):
    """A build of the same pictures in each format."""
    made = {}
    for fmt in FORMATS:
        made[fmt] = tmp_path_factory.mktemp(fmt) / "out"
        build_own(originals["pets"], made[fmt], fmt)
        select(made[fmt], name="half", sample=0.5)
        map(made[fmt], {"sharpness": "sharpness"}, workers=1)
    return made


@pytest.fixture(scope="module")
def rows(originals):
    """By key, the rows of the metadata of train, as a dataset stores them."""
    lines = (originals["pets"] / "train/metadata.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return {row["file_name"].removesuffix(".jpg"): stored_values(row) for row in found}


def shards_of(roots):
    return [str(path) for path in sorted(roots["webdataset"].glob("train/*.tar"))]


def as_bytes(value):
    """Texts as TFDS has them."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict):
        return {name: as_bytes(inner) for name, inner in value.items()}
    return [as_bytes(item) for item in value] if isinstance(value, list) else value


def test_webdataset_reads_images_and_annotations(roots, rows):
    found = {sample.pop("key"): sample for sample in read_annotations_with_webdataset(shards_of(roots))}
    for key, sample in found.items():
        assert {name: value for name, value in sample.items() if name not in BUILT_IN} == rows[key]
        assert CLASSES[sample["label"]] == sample["class_name"] == key.partition("/")[0]
    pattern = shards_of(roots)[0].replace("00000-of", "{00000..00001}-of")
    assert found.keys() == rows.keys() == {key for key, _, _ in read_with_webdataset(pattern)}


def test_hugging_face_datasets_reads_shards(roots, rows):
    found = {
        row["__key__"]: row["json"] | {"caption": row["txt"]}
        for row in read_annotations_with_hf_datasets("webdataset", shards_of(roots))
    }
    assert found.keys() == rows.keys()
    for key, sample in found.items():
        assert {name: value for name, value in sample.items() if name not in BUILT_IN} == rows[key]
    assert sorted(read_with_hf_datasets(shards_of(roots))) == sorted(read_with_webdataset(shards_of(roots)))


def test_hugging_face_datasets_reads_an_image_folder(roots, rows):
    folder = roots["imagefolder"] / "train"
    found = read_annotations_with_hf_datasets("imagefolder", str(roots["imagefolder"]))
    assert len(found) == len(rows)
    for row in found:
        path = row.pop("path")
        key = "/".join(path.removesuffix(".jpg").split("/")[-2:])
        assert row.pop("label") == key.partition("/")[0]
        assert row.pop("sha256") == hashlib.sha256((folder / f"{key}.jpg").read_bytes()).hexdigest()
        assert row == rows[key]


def test_tfds_reads_images_and_annotations(roots, rows):
    found = {example["key"].decode(): example for example in read_features_with_tfds(roots["tfrecord"])}
    assert found.keys() == rows.keys()
    for key, example in found.items():
        assert {name: example[name] for name in rows[key]} == as_bytes(rows[key])
        assert CLASSES[example["label"]] == key.partition("/")[0]
    described = describe_with_tfds(roots["tfrecord"])
    assert (described["name"], list(described["class_names"])) == ("pets", list(CLASSES))
    assert sum(described["samples"]["train"]) == len(rows)


def test_torchvision_reads_the_images(roots):
    expected = sorted(read_with_tfds(roots["tfrecord"]))
    assert sorted(read_with_torchvision(roots["imagefolder"] / "train", has_classes=True)) == expected
    assert sorted(read_with_webdataset(shards_of(roots))) == expected


def test_convert_verify_and_inspect_name_an_order_that_is_not_torchvisions(tmp_path):
    """Class names by label, as TFDS and --class-names have them, need not be sorted."""
    members = [("0.jpg", picture(0)), ("0.cls", b"0"), ("1.jpg", picture(1)), ("1.cls", b"1")]
    write_files(tmp_path, {"tars/train.tar": tar_of(members), "names.txt": b"dandelion\ndaisy\n"})
    assert dataprep("adopt", tmp_path / "tars", "--class-names", tmp_path / "names.txt").returncode == 0
    out, what = tmp_path / "out", "the classes are not in alphabetical order (dandelion is 0 here, and 1 there)"
    made = dataprep("convert", tmp_path / "tars", "--output", out, "--format", "imagefolder", "--workers", "1")
    assert made.returncode == 0, made.stderr
    assert f"warning: train: {what}" in made.stderr
    found = {key: label for key, label, _ in read_with_torchvision(out / "train", has_classes=True)}
    assert found == {"dandelion/0": 1, "daisy/1": 0}
    report = verify_here(str(out))
    assert (report.verdict, kinds(report)) == ("complete", {"labels"})
    assert what in details(report)
    (split,) = inspect_dataset(str(out)).splits
    assert what in class_caption(split)


def test_an_image_folder_is_a_source_again(roots, rows, tmp_path):
    again = build_own(roots["imagefolder"], tmp_path / "out")
    assert again.classes == CLASSES
    assert [split.name for split in again.splits] == ["train", "val"]
    shards = [str(path) for path in sorted((tmp_path / "out").glob("train/*.tar"))]
    assert sorted(read_with_webdataset(shards)) == sorted(read_with_webdataset(shards_of(roots)))
    found = {sample.pop("key"): sample for sample in read_annotations_with_webdataset(shards)}
    assert {key: {name: sample[name] for name in rows[key]} for key, sample in found.items()} == rows


def test_one_command_makes_shards_of_pictures_with_text_files(tmp_path):
    """Pairs like img1.jpg and img1.txt, as tools leave them that download or caption pictures."""
    captions = {f"img{number}": f"picture {number} of {'ä' * number}" for number in range(1, 9)}
    pictures = {name: picture(number) for number, name in enumerate(captions)}
    files = {f"{name}.jpg": data for name, data in pictures.items()}
    write_files(tmp_path / "pairs", files | {f"{name}.txt": f"{text}\n" for name, text in captions.items()})
    built = dataprep(
        *("build", "folder", "--source", tmp_path / "pairs", "--output", tmp_path / "shards"),
        *("--format", "webdataset", "--text-files", "caption", "--workers", "1"),
    )
    assert built.returncode == 0, built.stderr
    shards = [str(path) for path in sorted((tmp_path / "shards").glob("train/*.tar"))]
    found = {sample["key"]: sample["caption"] for sample in read_annotations_with_webdataset(shards)}
    assert found == captions
    digests = {key: digest for key, _, digest in read_with_webdataset(shards)}
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in pictures.items()}
