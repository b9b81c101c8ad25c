"""Rows of the index, of builds and of adopted data."""

import pytest

from dataprep.dataset.index_rows import IndexRow, IndexRows, index_schema, index_table
from dataprep.dataset.records import Placement
from dataprep.storage.checksums import crc32c_of

ROW = IndexRow("a", 0, 30, 10, 20, 7, 1, 480, 640)


def test_rows_of_a_shard_are_one_table():
    table = index_table([ROW, ROW._replace(key="b", image_crc32c=None, height=None, width=None)], 5)
    assert table.schema.equals(index_schema())
    assert table.to_pylist() == [
        {
            "key": key, "shard": 5, "record_offset": 0, "record_bytes": 30, "image_offset": 10, "image_bytes": 20,
            "image_crc32c": crc32c, "label": 1, "height": height, "width": width,
        }
        for key, crc32c, height, width in (("a", 7, 480, 640), ("b", None, None, None))
    ]  # fmt: skip


def test_rows_of_an_adopted_image_folder_name_its_files():
    table = index_table([ROW._replace(file="ant/a.png")], 0, with_files=True)
    assert table.schema.equals(index_schema(with_files=True))
    assert table.column("file").to_pylist() == ["ant/a.png"]


@pytest.mark.parametrize("with_files", [False, True])
def test_shard_without_samples_has_an_empty_table(with_files):
    table = index_table([], 3, with_files=with_files)
    assert (table.num_rows, table.schema.equals(index_schema(with_files=with_files))) == (0, True)


def test_rows_are_collected_with_the_digest_of_their_image():
    rows = IndexRows(2)
    rows.add("a", b"image", Placement(0, 30, 10, 20), label=1, height=480, width=640)
    rows.add("b", b"other", Placement(30, 30, 40, 20), label=-1, height=0, width=0)
    assert len(rows) == 2
    found = rows.table().to_pylist()
    assert [row["image_crc32c"] for row in found] == [crc32c_of(b"image"), crc32c_of(b"other")]
    assert [(row["shard"], row["height"], row["width"]) for row in found] == [(2, 480, 640), (2, None, None)]
