from tests.support.finished import change_cell, column_values, details, kinds, verify_here


def test_an_index_row_of_an_image_folder(damaged):
    expected = {
        "key": "missing",
        "label": "missing",
        "image_crc32c": "digest",
        "image_bytes": "index",
        "record_offset": "index",
    }
    for column, kind in expected.items():
        copy = damaged("imagenet-imagefolder")
        value = {"key": "n01440764/other", "label": (column_values(copy, "label")[0] + 1) % 2}.get(column, 1)
        change_cell(copy, "index/train.parquet", column, value)
        copy.sign()
        assert kind in kinds(verify_here(copy.root)), column


def test_hostile_index_rows_lead_nowhere(damaged):
    for key in ("../../../etc/passwd", "/etc/passwd", "", "a\0b", "x" * 300):
        copy = damaged("imagenet-imagefolder")
        change_cell(copy, "index/train.parquet", "key", key)
        copy.sign()
        assert {"index", "extra"} <= kinds(verify_here(copy.root, deep=True)), key
