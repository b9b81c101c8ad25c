"""Reads the runs of a mask that COCO stores as a run-length encoding, `{"size": [height, width], "counts": ...}`.

Runs count pixels column by column, and begin with pixels outside the mask. Counts are a list of runs, or a text in
which pycocotools compresses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_MASK_PIXELS = 100_000_000
"""Maximum number of pixels of a mask, the same as of an image."""
_FIRST, _LAST = 48, 48 + 63
"""Characters of compressed counts: six bits each."""


def runs_of(value: Mapping[str, Any]) -> list[int]:
    """Return the runs of a run-length encoding; they add up to the pixels of its size. Raises ValueError if the value
    is not a run-length encoding of an image's mask; the text says what was found."""
    size, counts = value.get("size"), value.get("counts")
    if value.keys() != {"size", "counts"} or not isinstance(size, list) or len(size) != len("hw"):
        raise ValueError("an object, expected a run-length encoding with the size [height, width] and the counts")
    if not all(type(side) is int and 0 <= side <= MAX_MASK_PIXELS for side in size):
        raise ValueError("a run-length encoding with a size of other than two whole numbers")
    pixels = size[0] * size[1]
    if pixels > MAX_MASK_PIXELS:
        raise ValueError(f"a mask of {pixels:,} pixels, expected at most {MAX_MASK_PIXELS:,}")
    runs = _decompressed(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(type(run) is int and 0 <= run <= pixels for run in runs):
        raise ValueError("a run-length encoding with counts that are not runs of the mask")
    if sum(runs) != pixels:
        raise ValueError(f"a run-length encoding of {sum(runs):,} pixels, its size has {pixels:,}")
    return runs


def _decompressed(text: str) -> list[int]:
    """Return the runs of compressed counts: five bits a character; from the fourth run on relative to the run two
    before it.

    The format is that of `rleToString` in pycocotools' maskApi.c.
    """
    runs: list[int] = []
    value, shift = 0, 0
    for character in text:
        bits = ord(character) - _FIRST
        if not _FIRST <= ord(character) <= _LAST or shift > 30:
            raise ValueError("compressed counts with a character or number that pycocotools does not write")
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise ValueError("compressed counts that end within a number")
    return runs
