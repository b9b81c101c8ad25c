"""Checks the field `segmentation` of COCO's annotations, and makes it a text; no mask is ever drawn.

A segmentation is a list of polygons, `[[x1, y1, x2, y2, ...], ...]`, or a run-length encoding, `{"size": [height,
width], "counts": ...}` with counts as a list or in the compressed text of pycocotools. Its text is canonical JSON of
the same values, so `json.loads` gives what pycocotools has.

Refused is what makes a reader fail or write outside of its memory: numbers that are not finite, half points, and runs
that do not add up to the pixels of the mask. Kept is what is merely odd: no polygon, polygons of one or two points, and
points outside of the image.
"""

from __future__ import annotations

import json
from typing import Any

MAX_COORDINATE = 1e9
"""Maximum absolute value of a coordinate."""
MAX_MASK_PIXELS = 100_000_000
"""Maximum number of pixels of a mask, which is that of an image."""
_FIRST, _LAST = 48, 48 + 63
"""Characters of compressed counts: six bits each."""


def segmentation_text(value: Any) -> str:
    """Return a segmentation as canonical JSON; an empty text for None, where the annotation has none.

    Raises:
        ValueError: It is no segmentation; the text says what was found.
    """
    if value is None:
        return ""
    if isinstance(value, list):
        for polygon in value:
            _check_polygon(polygon)
    elif isinstance(value, dict):
        _check_runs(value)
    else:
        raise ValueError(f"{type(value).__name__}, expected polygons or a run-length encoding")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def mask_size(text: str) -> tuple[int, int] | None:
    """Return height and width of the mask that a segmentation's text encodes; None for polygons, which have none."""
    if not text.startswith("{"):
        return None
    height, width = json.loads(text)["size"]
    return height, width


def is_coordinate(value: Any) -> bool:
    """Return whether a value is a number that a coordinate can have."""
    return type(value) in (int, float) and -MAX_COORDINATE <= value <= MAX_COORDINATE


def _check_polygon(polygon: Any) -> None:
    if not isinstance(polygon, list) or len(polygon) % 2:
        count = f"{len(polygon):,} numbers" if isinstance(polygon, list) else type(polygon).__name__
        raise ValueError(f"a polygon of {count}, expected x and y of each point")
    if not all(map(is_coordinate, polygon)):
        raise ValueError(f"a polygon with a coordinate that is no number up to {MAX_COORDINATE:,.0f}")


def _check_runs(value: dict[str, Any]) -> None:
    size, counts = value.get("size"), value.get("counts")
    if value.keys() != {"size", "counts"} or not isinstance(size, list) or len(size) != len("hw"):
        raise ValueError("an object, expected a run-length encoding with the size [height, width] and the counts")
    if not all(type(side) is int and 0 <= side <= MAX_MASK_PIXELS for side in size):
        raise ValueError("a run-length encoding with a size of other than two whole numbers")
    pixels = size[0] * size[1]
    if pixels > MAX_MASK_PIXELS:
        raise ValueError(f"a mask of {pixels:,} pixels, expected at most {MAX_MASK_PIXELS:,}")
    runs = _runs(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(type(run) is int and 0 <= run <= pixels for run in runs):
        raise ValueError("a run-length encoding with counts that are no runs of the mask")
    if sum(runs) != pixels:
        raise ValueError(f"a run-length encoding of {sum(runs):,} pixels, its size has {pixels:,}")


def _runs(text: str) -> list[int]:
    """Return the runs of compressed counts: five bits a character, from the third run on relative to the last but one.

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
