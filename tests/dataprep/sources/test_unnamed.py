"""Pictures beside those of a table that no row names."""

from pathlib import Path

import pytest

from dataprep.sources import table
from dataprep.sources.table import unnamed_pictures
from dataprep.storage import open_storage
from tests.support.own_data import write_files


def line(root, *names):
    return unnamed_pictures(open_storage(str(root)), set(names))


def test_pictures_in_the_same_folders_that_no_row_names_are_counted_and_named(tmp_path):
    files = ("a/0.jpg", "a/1.JPG", "a/2.heic", "a/x.txt", "a/._3.jpg", "a/deep/4.jpg", "b/5.png", "0.jpg", "c/6.jpg")
    write_files(tmp_path, dict.fromkeys(files, b"x"))
    (tmp_path / "a" / "folder.jpg").mkdir()
    assert line(tmp_path, "a/0.jpg", "b/5.png", "gone/7.jpg") == (
        "note: 2 pictures next to the table's are in no row, so they are left out: 'a/1.JPG', 'a/2.heic'"
    )
    assert line(tmp_path, "a/0.jpg", "a/1.jpg", "0.jpg") == (
        "note: 1 picture next to the table's is in no row, so it is left out: 'a/2.heic'"
    )
    assert line(tmp_path, "0.jpg", "c/6.jpg") == ""


def test_of_many_pictures_the_first_by_name_are_named(tmp_path):
    write_files(tmp_path, {f"{number}.jpg": b"x" for number in range(9)})
    assert line(tmp_path, "8.jpg").endswith(": '0.jpg', '1.jpg', '2.jpg', ...")


@pytest.mark.parametrize("bound", ["MAX_NAMED", "MAX_LISTED"])
def test_nothing_is_said_of_more_pictures_than_are_compared(tmp_path, monkeypatch, bound):
    write_files(tmp_path, {f"{number}.jpg": b"x" for number in range(9)})
    names = [f"{number}.jpg" for number in range(6)]
    assert "3 pictures" in line(tmp_path, *names)
    monkeypatch.setattr(table, bound, 5)
    assert line(tmp_path, *names) == ""


def test_the_documented_bounds_are_those_of_the_code():
    document = " ".join((Path(__file__).parents[3] / "DATA.md").read_text().split())
    assert f"up to {table.MAX_NAMED:,} pictures in the table and {table.MAX_LISTED:,} files" in document
