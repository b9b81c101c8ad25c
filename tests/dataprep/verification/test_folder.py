import os

import pytest

from tests.support.finished import change_cell, column_values, kinds, verify_here


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("key", "missing"),
        ("label", "missing"),
        ("image_crc32c", "digest"),
        ("image_bytes", "index"),
        ("record_offset", "index"),
        ("width", "image"),
    ],
)
def test_an_index_row_that_differs_from_its_file_is_found(damaged, column, kind):
    copy = damaged("imagenet-imagefolder")
    before = column_values(copy, column)[0]
    value = f"{before}x" if column == "key" else before - 1 if column == "label" and before else before + 1
    change_cell(copy, "index/train.parquet", column, value)
    copy.sign()
    assert kind in kinds(verify_here(copy.root))


@pytest.mark.parametrize("change", [-1, 1])
def test_an_image_of_another_size_is_one_finding(damaged, change):
    copy = damaged("imagenet-imagefolder")
    image = min(path for path in (copy.root / "train").rglob("*") if path.is_file())
    data = image.read_bytes()
    image.unlink()  # it is linked to the dataset that other tests read
    image.write_bytes(data + b"x")
    os.truncate(image, len(data) + change)
    [found] = verify_here(copy.root).findings
    assert (found.kind, found.where) == ("size", image.relative_to(copy.root).as_posix())


def test_hostile_index_rows_do_not_lead_out_of_the_dataset(damaged):
    for key in ("../../../etc/passwd", "/etc/passwd", "", "a\0b", "x" * 300):
        copy = damaged("imagenet-imagefolder")
        change_cell(copy, "index/train.parquet", "key", key)
        copy.sign()
        assert {"index", "extra"} <= kinds(verify_here(copy.root, deep=True)), key
