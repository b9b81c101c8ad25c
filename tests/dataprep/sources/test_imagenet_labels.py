"""Labels of the split val from the devkit and from the bounding boxes say the same."""

import gzip

import pytest

from dataprep.errors import SourceError
from dataprep.sources.imagenet_labels import BBOX, DEVKIT, read_val_labels, val_name
from dataprep.storage import open_storage
from tests.support.hostile_labels import META, TRUTH
from tests.support.raw_mat import compressed, mat, synsets
from tests.support.raw_tar import member, tar

ROWS = [(2.0, "n01440764", 0.0), (1.0, "n01443537", 0.0), (3.0, "n00001740", 2.0)]


def devkit(truth):
    meta = mat(compressed(synsets(ROWS)))
    return gzip.compress(tar(member(META, meta), member(TRUTH, truth), member(b"readme.txt", b"read me")))


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
    (tmp_path / DEVKIT).write_bytes(devkit(b"1\n2\n2\n"))
    labels = read_val_labels(open_storage(str(tmp_path)))
    assert labels.archive == DEVKIT
    assert labels.classes == ("n01440764", "n01443537")
    assert labels.wnids == {
        "ILSVRC2012_val_00000001": "n01443537",
        "ILSVRC2012_val_00000002": "n01440764",
        "ILSVRC2012_val_00000003": "n01440764",
    }


def test_labels_of_val_are_read_from_the_bounding_boxes(tmp_path):
    (tmp_path / BBOX).write_bytes(boxes(["n01443537"], ["n01440764", "n01440764"]))
    labels = read_val_labels(open_storage(str(tmp_path)))
    assert (labels.archive, labels.classes) == (BBOX, ("n01440764", "n01443537"))
    assert labels.wnids == {"ILSVRC2012_val_00000001": "n01443537", "ILSVRC2012_val_00000002": "n01440764"}


def test_the_devkit_is_preferred_and_without_both_there_are_no_labels(tmp_path):
    storage = open_storage(str(tmp_path))
    assert read_val_labels(storage) is None
    (tmp_path / BBOX).write_bytes(boxes(["n01443537"]))
    (tmp_path / DEVKIT).write_bytes(devkit(b"2\n"))
    assert read_val_labels(storage).archive == DEVKIT


def test_objects_of_two_classes_are_refused_with_the_way_out(tmp_path):
    (tmp_path / BBOX).write_bytes(boxes(["n01443537", "n01440764"]))
    words = (
        r"bbox_val_v3\.tgz: member 'val/ILSVRC2012_val_00000001\.xml' at byte 1,024: its objects are of class "
        r"'n01440764', 'n01443537', expected one WNID; use ILSVRC2012_devkit_t12\.tar\.gz"
    )
    with pytest.raises(SourceError, match=words):
        read_val_labels(open_storage(str(tmp_path)))
