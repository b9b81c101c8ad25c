"""Dataset classes of users: what they yield is checked, and every fault is one line."""

import sys
import textwrap
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

import dataprep.sources
from dataprep.dataset.features import Feature
from dataprep.errors import DataprepError, SourceError, UsageError
from dataprep.sources import Image, ImageDataset, SplitFacts, custom, images_in
from dataprep.sources.custom import custom_dataset, is_custom, place_of
from dataprep.storage import open_storage
from tests.support.own_data import picture, write_files
from tests.support.raw_tar import tar_of


class Pets(ImageDataset):
    name = "pets"
    facts: ClassVar = {"train": SplitFacts(samples=None)}
    features: ClassVar = {"caption": Feature("text")}
    images: ClassVar = ()

    def enumerate(self, root, split):
        yield from self.images


def listed(tmp_path, *images, **attributes):
    """What a class with these attributes lists, as references."""
    definition = type("Pets", (Pets,), {"images": images, **attributes})()
    sys.modules[__name__].INSTANCE = definition
    dataset = custom_dataset(f"{__name__}:INSTANCE")
    root = open_storage(str(tmp_path))
    return dataset.opened(root).enumerate(root, "train", allow_partial=False)


def image(file="a.jpg", **values):
    return Image(**{"file": file, "num_bytes": 3, "annotations": {"caption": "x"}} | values)


def test_public_names_exist_and_are_sorted():
    names = dataprep.sources.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(dataprep.sources, name) for name in names)
    assert {"Feature", "Image", "ImageDataset", "SplitFacts", "images_in"} <= set(names)


def test_labels_become_positions_in_the_sorted_classes(tmp_path):
    found = listed(tmp_path, image("b/1.jpg", label="dog"), image("a/1.jpg", label="cat", key="first"))
    assert found.classes == ("cat", "dog")
    assert [(ref.key, ref.label, ref.annotations) for ref in found.refs] == [
        ("b/1", 1, b'{"caption":"x"}'),
        ("first", 0, b'{"caption":"x"}'),
    ]
    assert [(file.name, file.num_bytes) for file in found.sources] == [("*", 6)]
    assert listed(tmp_path, image(label="cat"), classes=["dog", "cat"]).classes == ("cat", "dog")


def test_images_of_folders_and_archives_are_listed(tmp_path):
    members = [("a/1.jpg", picture(1)), ("notes.txt", b"x"), ("a/.x.jpg", b"x")]
    write_files(tmp_path, {"train/1.jpg": picture(1), "train/x.txt": "x", "b.tar": tar_of(members)})
    root = open_storage(str(tmp_path))
    assert [(found.file, found.key) for found in images_in(root, "train")] == [("train/1.jpg", "train/1")]
    (packed,) = images_in(root, "b.tar")
    assert root.read_range(packed.file, packed.offset, packed.num_bytes) == picture(1)
    found = listed(tmp_path, packed, features={})
    assert ([ref.key for ref in found.refs], found.sources[0].name) == (["a/1"], "b.tar")


@pytest.mark.parametrize(
    ("images", "attributes", "words"),
    [
        ([{"file": "a.jpg"}], {}, "image 0 of train: .*expected an Image"),
        ([image(file=7)], {}, "file 7 of type int, expected str"),
        ([image(num_bytes="3")], {}, "num_bytes '3' of type str, expected int"),
        ([image(num_bytes=True)], {}, "num_bytes True of type bool, expected int"),
        ([image(label=3)], {}, "label 3 of type int, expected str or None"),
        ([image(annotations=None)], {}, "annotations None of type NoneType"),
        ([image(annotations={"caption": None})], {}, "'caption' is null, expected text"),
        ([image(annotations={})], {}, "'caption' is absent"),
        ([image(annotations={"caption": "x", "y": 1})], {}, "'y' is not a feature"),
        ([image()], {"features": {}}, "annotations 'caption', expected none"),
        ([image("../a.jpg")], {}, "climbs out"),
        ([image("/etc/passwd")], {}, "absolute"),
        ([image("a//b.jpg")], {}, "expected a path below the source"),
        ([image(key="a b")], {}, "key 'a b', expected letters"),
        ([image(num_bytes=0)], {}, "0 bytes at 0, expected 1 to"),
        ([image(num_bytes=2**40)], {}, "expected 1 to"),
        ([image(offset=-1)], {}, "bytes at -1"),
        ([image("x.tar")], {}, "x.tar does not exist"),
        ([image("a.jpg"), image("a.jpeg")], {}, "two images have the key a"),
        ([image("b.tar"), image("b.tar", offset=3)], {}, "two images have the key b"),
        ([image(label="a/b")], {}, "class name 'a/b', expected one that can name a folder"),
        ([image(label="a"), image("b.jpg")], {}, "image 1 of train: label None, expected one of 1 classes"),
        ([image(label="cta")], {"classes": ["cat"]}, "label 'cta', expected one of 1 classes; did you mean cat"),
        ([], {}, "no image of pets train"),
        ([image()], {"facts": {"train": SplitFacts(samples=2)}}, "1 images, expected 2"),
    ],
)
def test_faults_of_what_a_class_lists_are_one_line(tmp_path, images, attributes, words):
    (tmp_path / "b.tar").write_bytes(tar_of([("1.jpg", picture(1))]))
    with pytest.raises(DataprepError, match=words) as raised:
        listed(tmp_path, *images, **attributes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"name": "My Pets"}, "name 'My Pets': expected lower-case letters"),
        ({"name": 7}, "name 7, expected text"),
        ({"licence": None}, "licence None, expected text"),
        ({"facts": {}}, "facts {}, expected SplitFacts by split"),
        ({"facts": {"train": 9}}, "facts: 'train': 9"),
        ({"facts": {"a b": SplitFacts(samples=None)}}, "expected a name of letters"),
        ({"facts": {"index": SplitFacts(samples=None)}}, "name 'index' of a split is taken by another folder"),
        ({"features": {"caption": "text"}}, "expected Feature by name"),
        ({"features": {"label": Feature("text")}}, "the name 'label' is taken"),
        ({"classes": "cat"}, "expected a list of names"),
        ({"classes": ["cat", "cat"]}, "each once"),
        ({"classes": [1]}, "class 1"),
    ],
)
def test_faults_of_attributes_are_one_line(tmp_path, attributes, words):
    with pytest.raises(UsageError, match=words) as raised:
        listed(tmp_path, image(), **attributes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("absent_pets:Pets", None, "no module absent_pets is installed or in .*: install the package that has it"),
        ("needy_pets:Pets", "import no_such_package\n", "needy_pets needs the package no_such_package"),
        ("broken_pets:Pets", "1/0\n", r"importing broken_pets: ZeroDivisionError: .* \(broken_pets.py line 1\)"),
        (
            "named_pets:Pats",
            "from dataprep.sources import ImageDataset\nclass Pets(ImageDataset): pass\n",
            "the module named_pets has no Pats; did you mean Pets",
        ),
        ("wrong_pets:Pets", "class Pets: pass\n", "expected a subclass of dataprep.sources.ImageDataset"),
        (
            "half_pets:Pets",
            "from dataprep.sources import ImageDataset\nclass Pets(ImageDataset): pass\n",
            r"it has no method enumerate; expected enumerate\(self, root, split\)",
        ),
        (
            "bare_pets:Pets",
            "from dataprep.sources import ImageDataset\nclass Pets(ImageDataset):\n    def enumerate(self): ...\n",
            "it has no attribute name",
        ),
    ],
)
def test_classes_that_cannot_be_used_are_refused_in_one_line(tmp_path, monkeypatch, name, code, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if code is not None:
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(textwrap.dedent(code))
    with pytest.raises(DataprepError, match=words) as raised:
        custom_dataset(name)
    assert "\n" not in str(raised.value)


def test_errors_of_a_class_say_where_they_were_raised(tmp_path):
    def enumerate_badly(self, root, split):
        yield image()
        raise KeyError("caption")

    with pytest.raises(SourceError, match=r"enumerate of train: KeyError: 'caption' \(test_custom.py line \d+\)"):
        listed(tmp_path, enumerate=enumerate_badly)


def test_entry_points_name_classes_of_installed_packages(monkeypatch):
    found = {"pets": EntryPoint("pets", "somebodys.pets:Pets", "dataprep.datasets")}
    monkeypatch.setattr(custom, "installed_classes", lambda: found)
    assert place_of("pets") == place_of("somebodys.pets:Pets") == "somebodys.pets:Pets"
    assert is_custom("pets")
    assert not is_custom("cats")
    with pytest.raises(UsageError, match=r"no module somebodys\.pets is installed"):
        custom_dataset("pets")
    with pytest.raises(UsageError, match="'cats' is not a dataset class"):
        place_of("cats")
