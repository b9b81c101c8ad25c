"""Unpacked images: written whole or not at all, read back by range, and never those of another file."""

from __future__ import annotations

from array import array

import pytest

from dataprep.dataset.records import SourceFile
from dataprep.errors import SourceError
from dataprep.sources.unpacked import UnpackedImages, unpacked_name, unpacked_sizes, unpacked_sources, unpacking
from dataprep.storage import open_storage

FILE = SourceFile("data/train.parquet", 100, "ab" * 32)
IMAGES = [b"one", b"", b"three" * 1000]


def unpack(storage, images=IMAGES, file=FILE):
    with unpacking(storage, unpacked_name(file)) as add:
        for image in images:
            add(image)


def test_images_are_ranges_again(storage_url, tmp_path):
    output, originals = open_storage(storage_url), open_storage(str(tmp_path / "originals"))
    unpack(output)
    unpack(output)  # a second process that unpacks the same is no conflict
    assert unpacked_sizes(output, unpacked_name(FILE)) == array("q", map(len, IMAGES))
    source = {"name": FILE.name, "bytes": FILE.num_bytes, "sha256": FILE.sha256}
    read = UnpackedImages(originals, output, [source])
    assert [read.read_range(FILE.name, offset, size) for offset, size in ((0, 3), (3, 0), (3, 5000))] == IMAGES
    assert read.url_of(FILE.name).endswith("originals/data/train.parquet")


def test_other_files_are_read_where_they_are(tmp_path):
    originals = open_storage(str(tmp_path))
    originals.create("a.jpg", b"0123")
    read = UnpackedImages(originals, open_storage(str(tmp_path / "out")), [])
    assert read.read_range("a.jpg", 1, 2) == b"12"


def test_tables_with_paths_hold_no_images():
    source = {"name": FILE.name, "bytes": FILE.num_bytes, "sha256": FILE.sha256}
    others = [{"name": "train.tar", "bytes": 1}, {"name": "dogs.csv", "bytes": 1, "sha256": FILE.sha256}]
    assert unpacked_sources([source, *others]) == [source]
    assert unpacked_sources([source, {"name": "*", "bytes": 5}]) == []


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path):
    output = open_storage(str(tmp_path))
    with pytest.raises(TypeError):
        unpack(output, [b"one", None])
    assert unpacked_sizes(output, unpacked_name(FILE)) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_name_is_of_one_original_alone():
    others = [SourceFile("data/val.parquet", 100, FILE.sha256), SourceFile(FILE.name, 101, FILE.sha256)]
    names = {unpacked_name(file) for file in (FILE, *others, SourceFile(FILE.name, 100, "cd" * 32))}
    assert len(names) == 4


def test_images_that_are_gone_are_an_error_that_says_what_to_do(tmp_path):
    output = open_storage(str(tmp_path / "out"))
    source = {"name": FILE.name, "bytes": FILE.num_bytes, "sha256": FILE.sha256}
    read = UnpackedImages(open_storage(str(tmp_path)), output, [source])
    with pytest.raises(SourceError, match=r"is gone; it held the images of .*train.parquet: start over with"):
        read.read_range(FILE.name, 0, 1)


@pytest.mark.parametrize("cut", [1, 8, 20, 5000])
def test_a_file_that_is_not_whole_is_unpacked_again(tmp_path, cut):
    output = open_storage(str(tmp_path))
    unpack(output)
    path = tmp_path / unpacked_name(FILE)
    path.write_bytes(path.read_bytes()[cut:])
    assert unpacked_sizes(output, unpacked_name(FILE)) is None
    path.write_bytes(b"short")
    assert unpacked_sizes(output, unpacked_name(FILE)) is None
