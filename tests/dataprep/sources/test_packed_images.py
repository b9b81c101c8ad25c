"""Images in parquet files: measured, unpacked once, and bounded."""

import pytest

from dataprep.errors import SourceError, StorageError
from dataprep.sources import image_tables
from dataprep.sources.image_tables import ImageTable, PackedImages, image_bytes, packed_source
from dataprep.sources.unpacked import unpacked_list, unpacked_name, unpacking
from dataprep.storage import open_originals, open_storage
from dataprep.storage.checksums import crc32c_of
from tests.support.own_data import picture
from tests.support.tables import hub_rows, write_hub


def read(path, unpack_to=None):
    table = ImageTable(open_originals(str(path.parent)), path.name, path.stat().st_size)
    images = PackedImages(image_column="image", drop=frozenset(), unpack_to=unpack_to, progress=None)
    return list(images.rows(table, packed_source(table, is_unpacked=True)))


def test_images_are_measured_unpacked_and_found_unpacked(tmp_path):
    path, output = write_hub(tmp_path / "x.parquet", hub_rows(5), row_group_size=2), open_storage(str(tmp_path / "out"))
    measured, unpacked, again = read(path), read(path, output), read(path, output)
    places = [(row.offset, row.num_bytes) for row in measured]
    sums = [crc32c_of(row["image"]["bytes"]) for row in hub_rows(5)]
    assert [num_bytes for _, num_bytes in places] == [len(row["image"]["bytes"]) for row in hub_rows(5)]
    for rows in (measured, unpacked, again):
        assert [(row.offset, row.num_bytes) for row in rows] == places
        assert [row.crc32c for row in rows] == sums
        assert [row.row.values for row in rows] == [row.row.values for row in measured]
    assert image_bytes(unpacked[0].row) == hub_rows(1)[0]["image"]["bytes"]
    assert again[0].row.image == {"path": "0.jpg"}  # the bytes are not read again


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_with_other_images_is_refused(tmp_path, count):
    path, output = write_hub(tmp_path / "x.parquet", hub_rows(2)), open_storage(str(tmp_path / "out"))
    table = ImageTable(open_originals(str(tmp_path)), "x.parquet", path.stat().st_size)
    with unpacking(output, unpacked_name(packed_source(table, is_unpacked=True))) as add:
        for _ in range(count):
            add(b"image")
    with pytest.raises(
        StorageError, match=rf"has {count} images, .*x.parquet has 2 rows: it was unpacked from another"
    ):
        read(path, output)


def test_an_image_that_is_too_large_leaves_nothing_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(image_tables, "MAX_IMAGE_BYTES", len(picture(0, size=(20, 16))) - 1)
    path, output = write_hub(tmp_path / "x.parquet", hub_rows(2)), open_storage(str(tmp_path / "out"))
    with pytest.raises(SourceError, match=r"x.parquet row 1: an image of [\d,]+ bytes; at most [\d,]+ for one image"):
        read(path, output)
    table = ImageTable(open_originals(str(tmp_path)), "x.parquet", path.stat().st_size)
    assert unpacked_list(output, unpacked_name(packed_source(table, is_unpacked=True))) is None
