"""Annotation files of COCO in archives and unpacked, on disk and in a bucket."""

import io
import zipfile

import pytest

from dataprep.errors import SourceError
from dataprep.sources import coco_files
from dataprep.sources.coco_files import PanopticImages, archive_of, find_json
from dataprep.storage import open_storage
from tests.support.own_data import picture

PNG = picture(3, "PNG")


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def content(found) -> bytes:
    with found.open() as stream:
        return stream.read()


def test_a_file_is_found_in_its_archive_or_unpacked(storage):
    assert find_json(storage, "keypoints", "val2017") is None
    storage.create("annotations/person_keypoints_val2017.json", b"{1}")
    found = find_json(storage, "keypoints", "val2017")
    assert (found.url.rpartition("/")[2], content(found)) == ("person_keypoints_val2017.json", b"{1}")
    assert (found.source.name, found.source.num_bytes) == ("annotations/person_keypoints_val2017.json", 3)
    data = zipped({"annotations/captions_val2017.json": b"{2}" * 999_999})
    storage.create("annotations_trainval2017.zip", data)
    assert content(find_json(storage, "keypoints", "val2017")) == b"{1}"  # not in the archive
    found = find_json(storage, "captions", "val2017")
    assert content(found) == b"{2}" * 999_999
    assert found.url.endswith("annotations_trainval2017.zip/annotations/captions_val2017.json")
    assert (found.source.name, found.source.num_bytes) == ("annotations_trainval2017.zip", len(data))
    assert find_json(storage, "captions", "train2017") is None


def test_archives_by_kind():
    assert archive_of("captions", "train2017") == archive_of("keypoints", "val2017") == "annotations_trainval2017.zip"
    assert archive_of("panoptic", "val2017") == "panoptic_annotations_trainval2017.zip"
    assert archive_of("image_info", "test2017") == "image_info_test2017.zip"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_panoptic_images_of_an_archive_in_an_archive(storage, method):
    inner = zipped({"panoptic_val2017/7.png": PNG, "panoptic_val2017/": b""}, method)
    outer = zipped({"annotations/panoptic_val2017.zip": inner}, method)
    storage.create("panoptic_annotations_trainval2017.zip", outer)
    with PanopticImages(storage, "val2017") as images:
        assert images.read("7.png") == PNG
        with pytest.raises(SourceError, match="not found, but the annotations name it"):
            images.read("8.png")


@pytest.mark.parametrize("packed", [True, False])
def test_panoptic_images_that_were_unpacked(storage, packed):
    if packed:
        storage.create("annotations/panoptic_val2017.zip", zipped({"panoptic_val2017/7.png": PNG}))
    else:
        storage.create("annotations/panoptic_val2017/7.png", PNG)
    with PanopticImages(storage, "val2017") as images:
        assert images.read("7.png") == PNG
        with pytest.raises(SourceError, match="not found"):
            images.read("8.png")


@pytest.mark.parametrize("name", ["", ".", "..", "../7.png", "/etc/passwd", "a/7.png", "..\\7.png"])
def test_names_of_panoptic_images_lead_nowhere(tmp_path, name):
    storage = open_storage(str(tmp_path))
    storage.create("annotations/panoptic_val2017/7.png", PNG)
    storage.create("annotations/7.png", PNG)
    with PanopticImages(storage, "val2017") as images, pytest.raises(SourceError, match="expected the name of a file"):
        images.read(name)


def test_other_files_than_panoptic_images_are_refused(tmp_path):
    storage = open_storage(str(tmp_path))
    bomb = b"\x89PNG\r\n\x1a\n" + bytes(coco_files.MAX_PNG_BYTES)
    files = {"panoptic_val2017/jpeg.png": picture(1), "panoptic_val2017/bomb.png": bomb}
    storage.create("annotations/panoptic_val2017.zip", zipped(files))
    with PanopticImages(storage, "val2017") as images:
        with pytest.raises(SourceError, match="not a PNG"):
            images.read("jpeg.png")
        with pytest.raises(SourceError, match="over 1,048,576 bytes"):
            images.read("bomb.png")


def test_an_archive_in_an_archive_is_not_copied_beyond_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(coco_files, "MAX_PACKED_BYTES", 2**22)
    storage = open_storage(str(tmp_path))
    outer = zipped({"annotations/panoptic_val2017.zip": bytes(2**24)})
    storage.create("panoptic_annotations_trainval2017.zip", outer)
    with (
        pytest.raises(SourceError, match=r"larger than 4\.2 MB; unpack it into annotations/"),
        PanopticImages(storage, "val2017"),
    ):
        pass


def test_damaged_archives_are_refused(tmp_path):
    good = zipped({"annotations/captions_val2017.json": b"{}" * 1000})
    for number, (data, words) in enumerate(
        [(b"", "no end of a zip"), (good[:-10], "no end of a zip"), (good[:50] + good[90:], "does not end here")]
    ):
        storage = open_storage(str(tmp_path / str(number)))
        storage.create("annotations_trainval2017.zip", data)
        with pytest.raises(SourceError, match=words):
            find_json(storage, "captions", "val2017")
    unknown = bytearray(good)
    for signature, at in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        unknown[good.index(signature) + at] = 99  # a method of compression that nobody knows
    storage = open_storage(str(tmp_path / "unknown"))
    storage.create("annotations_trainval2017.zip", bytes(unknown))
    with pytest.raises(SourceError, match="download the archive again"):
        content(find_json(storage, "captions", "val2017"))
