"""Data of other tools, made once a test or once a file."""

from pathlib import Path

import pytest

from tests.support.adoption import CLASSES, image_of, write_tfds, write_webdataset
from tests.support.libraries import in_process


@pytest.fixture
def folder(tmp_path):
    """Names of all sorts, a folder in a folder, links to files and folders outside; torchvision reads all of it."""
    root = tmp_path / "photos"
    names = ["plain.jpg", "Grünfink 1.JPG", "a.b.jpeg", "x.png", "x.jpg", "__y.webp", "sub/deep/z.jpg", "sub-2/z.jpg"]
    number = 0
    for split, classes in (("train", CLASSES), ("val", CLASSES[1:])):
        for class_name in classes:
            for name in names:
                path = root / split / class_name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(image_of(number, {"png": "PNG", "webp": "WEBP"}.get(name.rpartition(".")[2], "JPEG")))
                number += 1
    outside = tmp_path / "elsewhere"
    (outside / "more").mkdir(parents=True)
    (outside / "more" / "linked.jpg").write_bytes(image_of(100))
    (outside / "one.jpg").write_bytes(image_of(101))
    (root / "train" / "cat" / "more").symlink_to(outside / "more")
    (root / "train" / "dog").symlink_to(outside / "more")
    (root / "train" / "cat" / "one.jpg").symlink_to(outside / "one.jpg")
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    return root


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Tars by webdataset itself: keys in folders, with blanks, long ones; .cls, .txt and .json."""
    folder = tmp_path_factory.mktemp("tars")
    keys = ["plain", "with blank", "n01/in_a_folder", "Grünfink", "l" * 180, "=20", "a/b/c", "x", "y", "z"]
    samples = []
    for number, key in enumerate(keys):
        sides = {"height": 16 + number % 5, "width": 24 + number % 7}
        sample = {"__key__": key, "txt": f"caption {number}", "json": sides}
        sample["png" if number == 3 else "jpg"] = image_of(number, "PNG" if number == 3 else "JPEG")
        samples.append(sample if number == 8 else {**sample, "cls": number % 3})
    in_process("torch", write_webdataset, str(folder), samples)
    return folder


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    return Path(in_process("tensorflow", write_tfds, str(tmp_path_factory.mktemp("tfds"))))
