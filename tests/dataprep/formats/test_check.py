"""The quick check of JPEGs calls sound what libjpeg reads to the end without a warning, and nothing else."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dataprep.builder import images
from dataprep.builder.images import CheckedImage, ImagePolicy, check_image
from dataprep.demo.images import encode as encoded_picture
from tests.support.jpeg_forms import by_pillow, encoded, picture
from tests.support.jpeg_parts import HUFFMAN_TABLES, QUANTISATION_TABLES, with_huffman_tables, without
from tests.support.picture_verdicts import checked_by_libjpeg, compare_sound

SIZE = (61, 83)
PIXELS = picture(np.random.default_rng(0), *SIZE)
COMPLETE = by_pillow(PIXELS, quality=90, subsampling=2)
RESTARTS = by_pillow(PIXELS, quality=90, restart_marker_blocks=3)
CMYK = encoded_picture(Image.fromarray(PIXELS).convert("CMYK"), "JPEG")
SCAN = COMPLETE.index(b"\xff\xda")


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(content)) + content


def in_front(*parts: bytes) -> bytes:
    return COMPLETE[:2] + b"".join(parts) + COMPLETE[2:]


def test_baseline_files_of_every_form_are_sound():
    rng = np.random.default_rng(1)
    for height, width in ((1, 1), (8, 8), (17, 40), (200, 300)):
        for kind, data in encoded(rng, height, width):
            assert images.read_sound(data) == (None if "progressive" in kind else (height, width, False)), kind


@pytest.mark.parametrize(
    "data",
    [
        COMPLETE + b"bytes behind the end",
        in_front(segment(0xE1, b"Exif\0\0" + COMPLETE)),  # a thumbnail with its own end
        in_front(segment(0xFE, b"a comment"), segment(0xE2, b"ICC_PROFILE\0\x01\x01profile")),
        in_front(segment(0xDD, b"\0\0")),  # no restarts
    ],
)
def test_what_surrounds_a_sound_picture_does_not_matter(data):
    assert images.read_sound(data) == (*SIZE, b"Exif" in data)
    assert checked_by_libjpeg("k", data) == check_image("k", data, ImagePolicy()) == CheckedImage(data, *SIZE, 1)


ODD: dict[str, bytes] = {
    "its end marker is missing": COMPLETE[:-2],
    "its end is zeros": COMPLETE[: 2 * len(COMPLETE) // 3].ljust(len(COMPLETE), b"\0"),
    "a byte is in front of the end marker": COMPLETE[:-2] + b"\x12" + COMPLETE[-2:],
    "a stuffed byte is in front of the end marker": COMPLETE[:-2] + b"\xff\0" + COMPLETE[-2:],
    "a fill byte is in front of the end marker": COMPLETE[:-2] + b"\xff" + COMPLETE[-2:],
    "a segment is behind the scan": COMPLETE[:-2] + segment(0xE0, b"more") + COMPLETE[-2:],
    "its number of lines is behind the scan": COMPLETE[:-2] + segment(0xDC, struct.pack(">H", 61)) + COMPLETE[-2:],
    "it has a second scan": COMPLETE[:-2] + COMPLETE[SCAN:],
    "its scan ends early": COMPLETE[:-40] + COMPLETE[-2:],
    "restart markers are in another order": RESTARTS.replace(b"\xff\xd1", b"\xff\xd2", 1),
    "a restart marker is missing": RESTARTS.replace(b"\xff\xd1", b"", 1),
    "restart markers are not announced": without(RESTARTS, 0xDD),
    "a byte is in front of a restart marker": RESTARTS.replace(b"\xff\xd1", b"\x12\xff\xd1", 1),
    "fill bytes are between segments": in_front(b"\xff\xff"),
    "bytes are between segments": in_front(b"\0\0"),
    "a segment is longer than the file": in_front(b"\xff\xe5\xff\xff"),
    "its JFIF has version 2": in_front(segment(0xE0, b"JFIF\0\x02" + bytes(8))),
    "Adobe has an unknown transform": in_front(segment(0xEE, b"Adobe" + bytes(6) + b"\x07")),
    "its profile lacks a part": in_front(segment(0xE2, b"ICC_PROFILE\0\x01\x02profile")),
    "it has no quantisation table": without(COMPLETE, QUANTISATION_TABLES),
    "a quantisation table has 16 bits": in_front(segment(0xDB, b"\x10" + b"\0\x01" * 64)),
    "it has no Huffman tables": without(COMPLETE, HUFFMAN_TABLES),
    "a code is all ones": with_huffman_tables(
        COMPLETE, (0, b"\x02" + bytes(15), b"\0\1"), (0x10, b"\x02" + bytes(15), b"\0\1")
    ),
    "it has four colours": CMYK,
}
"""Files about which our reader says nothing."""


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_left_to_libjpeg(name):
    assert images.read_sound(ODD[name]) is None


@pytest.mark.parametrize(
    ("at", "value"),
    [(4, 12), (5, 255), (11, 0x33), (14, 0x12), (13, 1)],
    ids=["12 bits a sample", "too many pixels", "too many blocks", "fine chroma", "a component twice"],
)
def test_frames_that_are_odd_are_left_to_libjpeg(at, value):
    """A value of the frame's header is another one."""
    place = COMPLETE.index(b"\xff\xc0") + at
    assert images.read_sound(COMPLETE[:place] + bytes([value]) + COMPLETE[place + 1 :]) is None


def test_libjpeg_finds_no_fault_in_sound_mutants():
    """`make soak SHOW=sound-jpegs` has a million of them."""
    found = compare_sound(0, 600)
    assert found["sound"] > 40
    assert found["left to libjpeg"] > 300


def test_a_build_without_the_quick_check_gives_the_same():
    for data in (COMPLETE, RESTARTS, *ODD.values()):
        assert checked_by_libjpeg("k", data) == check_image("k", data, ImagePolicy())


def test_a_sound_photograph_takes_less_than_half_of_libjpegs_time():
    data = by_pillow(picture(np.random.default_rng(2), 400, 475), quality=95, subsampling=2)
    check = partial(simplejpeg.decode_jpeg, data, "GRAY", min_height=1, min_width=1, min_factor=1, strict=True)
    assert images.read_sound(data) is not None
    assert least_s(partial(images.read_sound, data)) < least_s(check) / 2


def least_s(call: Callable[[], object]) -> float:
    """Least time of the processor for a call, of 20."""
    spent_s = []
    for _ in range(20):
        started_s = time.thread_time()
        call()
        spent_s.append(time.thread_time() - started_s)
    return min(spent_s)
