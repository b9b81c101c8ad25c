"""Rows of a JPEG that are decoded without those below them, compared with the rows of a full decode."""

import numpy as np
import pytest
import simplejpeg

from loaders.decode.lower_rows import without_lower_rows
from tests.support.jpeg_forms import by_pillow, encoded, jpegs, picture
from tests.support.jpeg_parts import HUFFMAN_TABLES, without


def height_of(data):
    return simplejpeg.decode_jpeg_header(data, strict=False)[0]


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_the_full_decode_in_every_form(seed):
    rng = np.random.default_rng(seed)
    shorter = 0
    for _ in range(4):
        height, width = (int(side) for side in rng.integers(20, 150, 2))
        for kind, data in jpegs(rng, height, width):
            full = simplejpeg.decode_jpeg(data)
            for rows in rng.integers(1, height + 1, 6).tolist():
                found = without_lower_rows(data, rows)
                image = simplejpeg.decode_jpeg(bytes(found), strict=False)
                assert rows <= len(image) <= height
                assert np.array_equal(image[:rows], full[:rows]), (kind, height, width, rows)
                shorter += len(image) < height
    assert shorter > 100


def test_damaged_files_show_the_same_rows():
    rng = np.random.default_rng(5)
    originals = [data for kind, data in encoded(rng, 90, 70) if "progressive" not in kind]
    compared = 0
    for _ in range(300):
        data = bytearray(originals[rng.integers(len(originals))])
        start = data.index(b"\xff\xda") + 14
        for at in rng.integers(start, len(data), rng.integers(1, 4)):
            data[at] = rng.integers(256)
        rows = int(rng.integers(1, 70))
        try:
            image = simplejpeg.decode_jpeg(bytes(without_lower_rows(bytes(data), rows)), strict=False)
            full = simplejpeg.decode_jpeg(bytes(data), strict=False)
        except ValueError:
            continue
        assert np.array_equal(image[:rows], full[:rows])
        compared += 1
    assert compared > 200


def test_only_the_height_in_the_header_changes_and_only_where_rows_are_saved():
    data = by_pillow(picture(np.random.default_rng(6), 120, 40))
    found = without_lower_rows(memoryview(data), 60)
    assert [at for at in range(len(data)) if data[at] != found[at]] == [data.index(b"\xff\xc0") + 6]
    assert (len(found), height_of(bytes(found))) == (len(data), 62)
    for rows in (103, 119, 120, 500):
        assert without_lower_rows(data, rows) is data
    assert height_of(bytes(without_lower_rows(data, 102))) == 104


def test_files_whose_rows_do_not_follow_each_other_stay_as_they_are():
    image = picture(np.random.default_rng(7), 120, 40)
    good = by_pillow(image)
    frame, scan = good.index(b"\xff\xc0"), good.index(b"\xff\xda")
    one_component = good[: scan + 4] + b"\x01" + good[scan + 5 :]
    twice = good[:frame] + good[frame : frame + 19] + good[frame:]
    odd = [
        by_pillow(image, progressive=True),
        one_component,
        twice,
        b"",
        b"\xff\xd8",
        b"GIF89a" + bytes(90),
        good[:300],
    ]
    odd += [good[:frame] + b"\xff" + good[frame:], good[:frame] + b"\x00" + good[frame:], good[: scan + 3]]
    for data in odd:
        assert without_lower_rows(data, 10) is data
    assert without_lower_rows(without(good, HUFFMAN_TABLES), 10) != good
