"""Labels of the split val from the devkit and from the bounding boxes say the same."""

import gzip
from importlib import resources

import pytest

from dataprep.errors import SourceError
from dataprep.sources.imagenet_labels import BBOX, DEVKIT, published_ids, read_val_labels, val_name
from dataprep.storage import open_storage
from tests.support.hostile_labels import TRUTH
from tests.support.raw_tar import member, tar


def devkit(truth):
    return gzip.compress(tar(member(b"readme.txt", b"read me"), member(TRUTH, truth)))


def boxes(*wnids_of_images):
    files = [
        member(
            f"val/{val_name(number)}.xml".encode(),
            b"<annotation>"
            + b"".join(f"<object><name> {wnid}\n</name><name2>x</name2></object>".encode() for wnid in wnids)
            + b"</annotation>",
        )
        for number, wnids in enumerate(wnids_of_images, start=1)
    ]
    return gzip.compress(tar(member(b"val/", kind=b"5"), *files))


def test_labels_of_val_are_read_from_the_devkit(tmp_path):
    (tmp_path / DEVKIT).write_bytes(devkit(b"450\n449\n449\n"))
    labels = read_val_labels(open_storage(str(tmp_path)))
    assert labels.archive == DEVKIT
    assert labels.classes == ("n01440764", "n01443537")
    assert labels.wnids == {
        "ILSVRC2012_val_00000001": "n01443537",
        "ILSVRC2012_val_00000002": "n01440764",
        "ILSVRC2012_val_00000003": "n01440764",
    }


def test_ids_are_those_of_the_published_ground_truth():
    """The first lines of the ground truth, and the WNIDs that TensorFlow Datasets publishes for these images."""
    ids = published_ids()
    assert sorted(ids.values()) == list(range(1, 1001))
    assert list(ids) == sorted(ids)
    labels = resources.files("tensorflow_datasets").joinpath("datasets/imagenet2012/validation_labels.txt").read_text()
    truth = [490, 361, 171, 822, 297, 482, 13, 704, 599, 164, 649, 11, 73, 286, 554, 6, 648, 399, 749, 545, 13, 204]
    assert [ids[wnid] for wnid in labels.split()[: len(truth)]] == truth


def test_labels_of_val_are_read_from_the_bounding_boxes(tmp_path):
    (tmp_path / BBOX).write_bytes(boxes(["n01443537"], ["n01440764", "n01440764"]))
    labels = read_val_labels(open_storage(str(tmp_path)))
    assert (labels.archive, labels.classes) == (BBOX, ("n01440764", "n01443537"))
    assert labels.wnids == {"ILSVRC2012_val_00000001": "n01443537", "ILSVRC2012_val_00000002": "n01440764"}


def test_the_devkit_is_preferred_and_without_both_there_are_no_labels(tmp_path):
    storage = open_storage(str(tmp_path))
    assert read_val_labels(storage) is None
    (tmp_path / BBOX).write_bytes(boxes(["n01443537"]))
    (tmp_path / DEVKIT).write_bytes(devkit(b"449\n"))
    assert read_val_labels(storage).archive == DEVKIT


def test_objects_of_two_classes_are_refused_with_the_way_out(tmp_path):
    (tmp_path / BBOX).write_bytes(boxes(["n01443537", "n01440764"]))
    words = (
        r"bbox_val_v3\.tgz: member 'val/ILSVRC2012_val_00000001\.xml' at byte 1,024: its objects are of class "
        r"'n01440764', 'n01443537', expected one WNID; use ILSVRC2012_devkit_t12\.tar\.gz"
    )
    with pytest.raises(SourceError, match=words):
        read_val_labels(open_storage(str(tmp_path)))
