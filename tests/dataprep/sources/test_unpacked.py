"""Unpacked images: written whole or not at all, read back by range, and never those of another file."""

from array import array
from operator import itemgetter

import pytest

from dataprep.dataset.records import SampleRef, SourceFile
from dataprep.errors import SourceError
from dataprep.sources.unpacked import UnpackedImages, unpacked_list, unpacked_name, unpacked_sources, unpacking
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of

FILE = SourceFile("data/train.parquet", 100, "ab" * 32)
SOURCE = {"name": FILE.name, "bytes": FILE.num_bytes, "sha256": FILE.sha256}
IMAGES = [b"one", b"", b"three" * 1000]
SUMS = [crc32c_of(image) for image in IMAGES]


def unpack(storage, images=IMAGES, file=FILE):
    with unpacking(storage, unpacked_name(file)) as add:
        for image in images:
            add(image)


def test_images_are_ranges_again(storage, tmp_path):
    output, originals = storage, open_storage(str(tmp_path / "originals"))
    unpack(output)
    unpack(output)  # a second process that unpacks the same is no conflict
    assert unpacked_list(output, unpacked_name(FILE)) == (array("q", map(len, IMAGES)), array("I", SUMS))
    read = UnpackedImages(originals, output, [SOURCE])
    assert [read.read_range(FILE.name, offset, size) for offset, size in ((0, 3), (3, 0), (3, 5000))] == IMAGES
    assert read.url_of(FILE.name).endswith("originals/data/train.parquet")


def test_other_files_are_read_where_they_are(tmp_path):
    originals = open_storage(str(tmp_path))
    originals.create("a.jpg", b"0123")
    read = UnpackedImages(originals, open_storage(str(tmp_path / "out")), [])
    assert read.read_range("a.jpg", 1, 2) == b"12"


def test_tables_with_paths_hold_no_images():
    others = [{"name": "train.tar", "bytes": 1}, {"name": "dogs.csv", "bytes": 1, "sha256": FILE.sha256}]
    assert unpacked_sources([SOURCE, *others]) == [SOURCE]
    assert unpacked_sources([SOURCE, {"name": "*", "bytes": 5}]) == []


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path):
    output = open_storage(str(tmp_path))
    with pytest.raises(TypeError):
        unpack(output, [b"one", 1])
    assert unpacked_list(output, unpacked_name(FILE)) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_name_is_of_one_original_alone():
    others = [SourceFile("data/val.parquet", 100, FILE.sha256), SourceFile(FILE.name, 101, FILE.sha256)]
    names = {unpacked_name(file) for file in (FILE, *others, SourceFile(FILE.name, 100, "cd" * 32))}
    assert len(names) == 4


def test_images_that_are_gone_are_an_error_that_says_what_to_do(tmp_path):
    output = open_storage(str(tmp_path / "out"))
    read = UnpackedImages(open_storage(str(tmp_path)), output, [SOURCE])
    with pytest.raises(SourceError, match=r"is gone; it held the images of .*train.parquet: run the same command"):
        read.read_range(FILE.name, 0, 1)


def changed(at):
    def change(data):
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return change


@pytest.mark.parametrize(
    "damage",
    # The list of three images: 24 bytes of sizes, 12 of checksums, and its own checksum; then its length and the magic.
    [
        itemgetter(slice(20, None)),
        itemgetter(slice(5)),
        itemgetter(slice(-1)),
        *(changed(at) for at in (-56, -33, -32, -21, -20, -16, -10, -2)),
    ],
)
def test_a_file_that_is_not_whole_is_removed_and_unpacked_again(tmp_path, damage):
    output = open_storage(str(tmp_path))
    unpack(output)
    path = tmp_path / unpacked_name(FILE)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert unpacked_list(output, unpacked_name(FILE)) is None
    unpack(output)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("ref", "which"),
    [
        (SampleRef("k", FILE.name, 3, 5000, crc32c=SUMS[2]), r"row 3 \(k\)"),
        (SampleRef("k", FILE.name, 4, 10, crc32c=SUMS[2]), "k"),  # no image of the file
    ],
)
def test_an_image_without_its_checksum_is_named_and_its_file_removed(storage, tmp_path, ref, which):
    output = storage
    unpack(output)
    read = UnpackedImages(open_storage(str(tmp_path)), output, [SOURCE])
    read.refuse_damaged(SampleRef("k", "other.tar", 3, 5000, crc32c=1), 2)  # is not an unpacked one
    match = rf"train.parquet: the image of {which} had CRC32C {SUMS[2]:08x} when it was .*unpacked-\w+, it has 0000000c"
    with pytest.raises(SourceError, match=match):
        read.refuse_damaged(ref, 12)
    assert output.stat(unpacked_name(FILE)) is None
