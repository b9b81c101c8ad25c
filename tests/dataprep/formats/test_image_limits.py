"""Scans of a progressive JPEG are counted before anything is decoded, and bounded with its pixels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.image_limits import MAX_SCAN_PIXELS, MAX_SCANS, count_scans, too_many_scans
from tests.support.samples import examples

START, MARKER = b"\xff\xd8", b"\xff\xda"


@examples
@given(st.lists(st.one_of(st.just(MARKER), st.binary(max_size=5), st.sampled_from([b"\xff", b"\xda"])), max_size=40))
def test_scans_are_counted_by_their_markers(pieces: list[bytes]):
    data = START + b"".join(pieces)
    assert count_scans(data) == count_scans(memoryview(data)) == data.count(MARKER)


@pytest.mark.parametrize(
    ("scans", "side", "refused"),
    [
        (0, 10, False),
        (MAX_SCANS, 10, False),
        (MAX_SCANS + 1, 10, True),
        (20, 10_000, False),  # so few are never too many
        (51, 10_000, True),
        (50, 10_000, False),
    ],
)
def test_scans_are_bounded_alone_and_with_the_pixels(scans: int, side: int, refused: bool):
    assert MAX_SCAN_PIXELS == 50 * 10_000**2
    reason = too_many_scans(START + MARKER * scans, side, side)
    assert bool(reason) == refused
    assert not refused or reason == f"{scans:,} scans over {side}x{side} pixels; at most {MAX_SCANS}"
