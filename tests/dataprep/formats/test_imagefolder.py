"""Where the files of an image folder lie, and the links by which they are repeated."""

import io
from pathlib import PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataprep.errors import FormatError
from dataprep.formats.imagefolder import REPEATED, image_file, numbering_fault, repeat_links
from tests.support.interop import read_with_torchvision
from tests.support.samples import examples, keys


@pytest.mark.parametrize(
    ("split", "key", "class_name", "suffix", "expected"),
    [
        ("train", "train2017/000000000009", "", ".jpg", "train/train2017/000000000009.jpg"),
        ("train", "n01440764/n01440764_10026", "n01440764", ".JPEG", "train/n01440764/n01440764_10026.JPEG"),
        ("val", "ILSVRC2012_val_00000001", "n01751748", ".JPEG", "val/n01751748/ILSVRC2012_val_00000001.JPEG"),
        ("train", "a/b/c", "", ".jpg", "train/a/b/c.jpg"),
        ("train", "c", "", ".jpg", "train/images/c.jpg"),
        (REPEATED, "train2017/000000000009", "", ".jpg", "images/train2017/000000000009.jpg"),
    ],
)
def test_an_image_is_stored_under_its_split_class_and_key(split, key, class_name, suffix, expected):
    assert image_file(split, key, class_name, suffix) == expected


@pytest.mark.parametrize(
    ("key", "class_name", "suffix", "fault"),
    [
        ("../c", "", ".jpg", "file '../c' with suffix '.jpg', expected a key of [A-Za-z0-9_/=-] and a suffix such as"),
        ("/c", "n1", ".jpg", "file '/c' with suffix '.jpg', expected a key of"),
        ("c", "n1", "", "file 'c' with suffix '', expected a key of"),
        ("c", "n1", ".jpg/../x", "file 'c' with suffix '.jpg/../x', expected a key of"),
        ("c", "..", ".jpg", "class name '..', expected one that can name a folder: no slash, no control character,"),
        ("c", "a/b", ".jpg", "class name 'a/b', expected one that can name a folder"),
    ],
)
def test_names_that_could_lead_elsewhere_are_refused(key, class_name, suffix, fault):
    with pytest.raises(FormatError) as caught:
        image_file("train", key, class_name, suffix)
    assert str(caught.value).startswith(fault)
    assert str(caught.value).endswith(" in the source") or str(caught.value).endswith("that made this sample")


@examples
@given(st.one_of(keys, st.text()), st.one_of(st.just(""), st.text()), st.one_of(st.just(".jpg"), st.text(max_size=5)))
def test_a_name_is_refused_or_stays_in_the_splits_folder(key, class_name, suffix):
    try:
        path = PurePosixPath(image_file("train", key, class_name, suffix))
    except FormatError:
        return
    assert path.parts[0] == "train"
    assert len(path.parts) >= 3
    assert not set(path.parts) & {"", ".", "..", "/"}
    assert path.name == key.rpartition("/")[2] + suffix


@examples
@given(st.lists(keys, unique_by=str.lower, max_size=6))
def test_without_classes_the_path_is_the_key(keys_of_a_split):
    in_folders = [key for key in keys_of_a_split if "/" in key]
    paths = [image_file("train", key, "", ".jpg") for key in in_folders]
    assert [path.removeprefix("train/").removesuffix(".jpg") for path in paths] == in_folders


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((), ""),
        ((2, 1, 3), ""),
        ((2, 1, 0), ""),
        ((0, 0, 3), "2 of 3 classes have no image and so no folder (cat, dog): torchvision's"),
        ((1, 0, 3), "1 of 3 classes have no image and so no folder (dog)"),
    ],
)
def test_classes_without_images_shift_the_numbers_of_folders(counts, text):
    fault = numbering_fault(("cat", "dog", "fox"), counts)
    assert fault.startswith(text) if text else fault == ""


@pytest.mark.parametrize(
    ("classes", "counts", "text"),
    [
        (("dandelion", "daisy", "tulips"), (1, 1, 1), "alphabetical order (dandelion is 0 here, and 1 there)"),
        (("dandelion", "daisy", "tulips"), (1, 0, 1), "1 of 3 classes have no image"),
        (("dandelion", "daisy", "tulips"), (1, 0, 0), ""),
        (("0", "1", "2", "10"), (1, 1, 1, 1), "alphabetical order (2 is 2 here, and 3 there)"),
        (("B", "a"), (1, 1), ""),
        (("a", "B"), (1, 1), "alphabetical order (a is 0 here, and 1 there)"),
    ],
)
def test_torchvision_numbers_folders_as_the_line_says(tmp_path, classes, counts, text):
    for name in (name for name, count in zip(classes, counts, strict=True) if count):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "x.jpg")
    theirs = {key.partition("/")[0]: label for key, label, _ in read_with_torchvision(tmp_path, has_classes=True)}
    fault = numbering_fault(classes, counts)
    assert bool(fault) == any(classes[label] != name for name, label in theirs.items())
    assert text in fault


def test_repeats_are_the_links_of_the_original_recipe():
    assert repeat_links(["train2017", "unlabeled2017"], 2) == [
        ("train/train2017_0", "../images/train2017"),
        ("train/train2017_1", "../images/train2017"),
        ("train/unlabeled2017_0", "../images/unlabeled2017"),
        ("train/unlabeled2017_1", "../images/unlabeled2017"),
    ]
    assert repeat_links(["val2017"], 1, split="val") == [("val/val2017_0", "../images/val2017")]


def test_torchvision_sees_every_image_five_times_in_ten_folders(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, "JPEG")
    stored = ["train2017/000000000009", "train2017/000000000025", "unlabeled2017/000000000008"]
    for key in stored:
        path = tmp_path / image_file(REPEATED, key, "", ".jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
    (tmp_path / "train").mkdir()
    for link, target in repeat_links(["train2017", "unlabeled2017"], 5):
        (tmp_path / link).symlink_to(target)
    found = read_with_torchvision(tmp_path / "train", has_classes=True)
    expected = sorted(key.replace("/", f"_{repeat}/") for key in stored for repeat in range(5))
    assert sorted(key for key, _, _ in found) == expected
    assert {label for _, label, _ in found} == set(range(10))
