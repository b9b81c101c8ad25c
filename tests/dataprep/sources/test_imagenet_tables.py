"""ImageNet in parquet files of the Hub: keys, labels and bytes as from the tars, and names that are not of ImageNet."""

import pytest

from dataprep.errors import SourceError
from dataprep.sources import dataset_named
from dataprep.sources.base import Reading
from dataprep.sources.imagenet import published_classes
from dataprep.sources.unpacked import unpacked_name
from dataprep.storage import open_originals, open_storage
from dataprep.storage.checksums import crc32c_of
from tests.support.own_data import picture, write_files
from tests.support.tables import write_hub

IMAGENET = dataset_named("imagenet")
CLASSES = ("n01440764", "n01443537", "n15075141")
NAMES = published_classes()
TRAIN = {f"{wnid}_{number}": wnid for wnid in reversed(CLASSES) for number in (10026, 9)}
VAL = {f"ILSVRC2012_val_{number:08d}": CLASSES[number % 3] for number in (293, 7, 1)}


def rows(images, *, suffix=True, labels=CLASSES):
    return [
        {
            "image": {"bytes": picture(n), "path": f"{stem}_{wnid}.JPEG" if suffix else f"{stem}.JPEG"},
            "label": labels.index(wnid) if labels else None,
            "caption": None,
        }
        for n, (stem, wnid) in enumerate(images.items())
    ]


def write(root, *, labels=CLASSES, suffix=True):
    train, val = rows(TRAIN, labels=labels, suffix=suffix), rows(VAL, labels=labels, suffix=suffix)
    write_hub(root / "data/train-00000-of-00002.parquet", train[:4], labels or CLASSES)
    write_hub(root / "data/train-00001-of-00002.parquet", train[4:], labels or CLASSES)
    write_hub(root / "data/validation-00000-of-00001.parquet", val, labels or CLASSES)
    write_hub(root / "data/test-00000-of-00001.parquet", [{**val[0], "label": -1}], labels or CLASSES)
    return write_files(root, {"README.md": "---\n"})


def opened(root, unpack_to=None):
    output = None if unpack_to is None else open_storage(str(unpack_to))
    return IMAGENET.opened(open_originals(str(root)), Reading(unpack_to=output, splits=("train", "val")))


def listed(root, split, **more):
    return opened(root).enumerate(open_originals(str(root)), split, allow_partial=True, **more)


@pytest.mark.parametrize("labels", [CLASSES, NAMES, ()])
def test_keys_and_labels_are_those_of_the_tars(tmp_path, labels):
    root = write(tmp_path, labels=labels)
    train, val = listed(root, "train"), listed(root, "val")
    assert train.classes == val.classes == CLASSES
    assert {ref.key: CLASSES[ref.label] for ref in train.refs} == {f"{w}/{stem}": w for stem, w in TRAIN.items()}
    assert {ref.key: CLASSES[ref.label] for ref in val.refs} == VAL
    assert [file.name for file in train.sources] == [f"data/train-0000{n}-of-00002.parquet" for n in range(2)]


def test_images_are_unpacked(tmp_path):
    root, output = write(tmp_path / "hub"), open_storage(str(tmp_path / "out"))
    dataset = opened(root, tmp_path / "out")
    assert dataset.notes[0].startswith("images are in parquet files: about ")
    train = dataset.enumerate(open_originals(str(root)), "train", allow_partial=True)
    files = {file.name: unpacked_name(file) for file in train.sources}
    images = [output.read_range(files[ref.source], ref.offset, ref.num_bytes) for ref in train.refs]
    assert images == [picture(n) for n in range(len(TRAIN))]
    assert train.is_checked
    assert [ref.crc32c for ref in train.refs] == [crc32c_of(image) for image in images]
    assert len(list((tmp_path / "out/_build").glob("unpacked-*"))) == 2  # val was not asked for


def test_names_without_the_class_take_it_from_the_label(tmp_path):
    root = write(tmp_path, suffix=False, labels=NAMES)
    dataset = opened(root)
    assert {ref.key for ref in listed(root, "train").refs} == {f"{wnid}/{stem}" for stem, wnid in TRAIN.items()}
    with pytest.raises(
        SourceError, match=r"image.path is 'ILSVRC2012_val_00000293.JPEG'; expected the names of the Hub"
    ):
        listed(root, "val")  # with --allow-partial no label is known
    with pytest.raises(SourceError, match="imagenet val: 3 images, expected 50,000"):
        dataset.enumerate(open_originals(str(root)), "val", allow_partial=False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"path": None}, "row 1: image.path is ''; expected the names of the Hub's ILSVRC/imagenet-1k, such as n0144"),
        ({"path": "cat.jpg"}, "row 1: image.path is 'cat.jpg'"),
        ({"path": "n01440764_1_n01443537.JPEG"}, "row 1: image.path is 'n01440764_1_n01443537.JPEG'"),
    ],
)
def test_images_that_are_not_of_imagenet(tmp_path, change, text):
    first, *others = rows(TRAIN)
    write_hub(tmp_path / "train.parquet", [{**first, "image": first["image"] | change}, *others])
    with pytest.raises(SourceError, match=text):
        listed(tmp_path, "train")


def test_a_label_of_another_class(tmp_path):
    changed = rows(TRAIN)
    changed[1]["label"] = 0
    write_hub(tmp_path / "train.parquet", changed)
    with pytest.raises(
        SourceError, match=r"row 2: label 0 of class n15075141, expected 2, its position among the sorted"
    ):
        listed(tmp_path, "train")
    with pytest.raises(SourceError, match=r"row 1: label 2 of class n15075141, expected 999"):
        opened(tmp_path).enumerate(open_originals(str(tmp_path)), "train", allow_partial=False)


def test_a_split_that_is_not_there_and_other_layouts(tmp_path):
    write_hub(tmp_path / "train.parquet", rows(TRAIN))
    with pytest.raises(SourceError, match="imagenet val: not found: expected parquet files with val in their names"):
        listed(tmp_path, "val")
    folder = write_files(tmp_path / "folder", {"train/n01440764/n01440764_1.JPEG": picture(1), "x/y.parquet": b"x"})
    assert opened(folder) is IMAGENET
