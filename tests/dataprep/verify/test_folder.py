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


def test_hostile_index_rows_do_not_lead_out_of_the_dataset(damaged):
    for key in ("../../../etc/passwd", "/etc/passwd", "", "a\0b", "x" * 300):
        copy = damaged("imagenet-imagefolder")
        change_cell(copy, "index/train.parquet", "key", key)
        copy.sign()
        assert {"index", "extra"} <= kinds(verify_here(copy.root, deep=True)), key
