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

from dataprep.dataset.run_lengths import runs_of

MAX_COORDINATE = 1e9
"""Maximum absolute value of a coordinate."""


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
        runs_of(value)
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
