"""Carries segmentations of COCO to the pixels of an image's row in a batch: pure functions.

A segmentation is a list of polygons, `[[x1, y1, x2, y2, ...], ...]`, a run-length encoding, `{"size": [height, width],
"counts": ...}`, or the JSON text of either, as datasets store it; an empty text stands for none. Coordinates are
positions, as in `boxes.py`: a pixel belongs to a mask if its middle does. Shapes: N objects, P points, HW a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dataprep.dataset.run_lengths import runs_of
from dataprep.errors import FormatError, UsageError
from dataprep.messages import quoted
from loaders.decode.boxes import RowView, axes_of, transform_points

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Segmentation: TypeAlias = str | Sequence[Sequence[float]] | Mapping[str, Any]

MAX_MASKS_BYTES = 1 << 30
"""Maximum size of the masks of one row, a byte a pixel: a thousand objects in rows of 1,024 pixels."""
MAX_COORDINATE = 1e9
"""Maximum absolute value of a polygon's coordinate, as in builds."""
_EDGES = 4096
"""Edges of a polygon that are drawn at once: bounds the memory for edges that cross many lines of pixels."""


def transform_polygons(
    segmentation: Segmentation, view: RowView, *, annotated_size: tuple[int, int] | None = None
) -> list[list[float]]:
    """Return the polygons of a segmentation in pixels of a row, clipped to the row.

    What lies outside is cut off along the row's edges: where several parts of a polygon remain, they are joined there
    by lines without area. A polygon of which nothing remains is left out.

    Args:
        segmentation: Polygons, or their JSON text.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: Height and width of the image to which the polygons belong; see `loaders.transform_points`.

    Raises:
        UsageError: It is a run-length encoding, which has no polygons.
        FormatError: It is no segmentation.
    """
    found = _parsed(segmentation)
    if isinstance(found, Mapping):
        raise UsageError("a run-length encoding has no polygons; use loaders.transform_masks, which takes both")
    clipped = (_clipped(points, view.size) for points in _moved(found, view, annotated_size))
    return [points.ravel().tolist() for points in clipped if len(points) >= len("xyz")]


def transform_masks(
    segmentations: Sequence[Segmentation], view: RowView, *, annotated_size: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Return the masks of objects in a row, (N, size, size), 1 where the middle of a pixel lies in the object.

    A run-length encoding gives each pixel of the row the value of the mask's pixel in which its middle lies. Polygons
    of one object are united, and each has the area inside of it by the even-odd rule.

    Args:
        segmentations: Segmentation of each object, or its JSON text.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: Height and width of the image to which polygons belong; see `loaders.transform_points`. A
            run-length encoding says it itself.

    Raises:
        FormatError: One is no segmentation, or they are too many for one row.
    """
    import numpy as np

    if len(segmentations) * view.size**2 > MAX_MASKS_BYTES:
        raise FormatError(
            f"{len(segmentations):,} masks of {view.size}x{view.size} pixels, expected at most {MAX_MASKS_BYTES:,} "
            "bytes of them for one image"
        )
    masks_NHW = np.zeros((len(segmentations), view.size, view.size), np.uint8)
    for mask_HW, segmentation in zip(masks_NHW, segmentations, strict=True):
        found = _parsed(segmentation)
        if isinstance(found, Mapping):
            mask_HW[...] = _sampled(found, view)
            continue
        for points in _moved(found, view, annotated_size):
            _fill(mask_HW, points)
    return masks_NHW


def _parsed(segmentation: Segmentation) -> Sequence[Any] | Mapping[str, Any]:
    """Return polygons or a run-length encoding; an empty text becomes no polygons."""
    found: Any = segmentation
    if isinstance(segmentation, str):
        try:
            found = json.loads(segmentation or "[]")
        except (ValueError, RecursionError) as error:
            raise FormatError(f"segmentation {quoted(segmentation)} is not JSON, expected polygons or runs") from error
    if not isinstance(found, Sequence | Mapping) or isinstance(found, str):
        raise FormatError(f"segmentation {quoted(found)}, expected polygons or a run-length encoding")
    return found


def _moved(
    polygons: Sequence[Any], view: RowView, annotated_size: tuple[int, int] | None
) -> Iterator[NDArray[np.float64]]:
    """Yield the points of each polygon in pixels of a row, (P, 2)."""
    import numpy as np

    for polygon in polygons:
        try:
            points = np.asarray(polygon, np.float64).reshape(-1, 2)
        except (TypeError, ValueError) as error:
            raise FormatError("a polygon that is no even list of numbers, expected x and y of each point") from error
        if not (np.abs(points) <= MAX_COORDINATE).all():
            raise FormatError(f"a polygon with a coordinate that is no number up to {MAX_COORDINATE:,.0f}")
        yield transform_points(points, view, annotated_size=annotated_size)


def _clipped(points: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the part of a polygon in a square, cut side by side as in Sutherland and Hodgman, CACM 17 (1974)."""
    import numpy as np

    for axis in (0, 1):
        points = _cut(points, points[:, axis])
        points = _cut(points, size - points[:, axis])
    return np.clip(points, 0, size)


def _cut(points: NDArray[np.float64], distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the part of a polygon whose points have distances of 0 or more from a straight line."""
    import numpy as np

    after, distances_after = np.roll(points, -1, axis=0), np.roll(distances, -1)
    stays = distances >= 0
    crosses = stays != (distances_after >= 0)
    share = distances[crosses] / (distances[crosses] - distances_after[crosses])
    between = points[crosses] + share[:, None] * (after[crosses] - points[crosses])
    order = np.argsort(np.concatenate([2 * np.flatnonzero(stays), 2 * np.flatnonzero(crosses) + 1]))
    return np.concatenate([points[stays], between])[order]


def _fill(mask_HW: NDArray[np.uint8], points: NDArray[np.float64]) -> None:
    """Set the pixels whose middles lie in a polygon.

    On each line of middles the polygon begins and ends where an edge crosses the line: every crossing changes all
    pixels to the right of it, and an odd number of changes is inside.
    """
    import numpy as np

    height, width = mask_HW.shape
    if len(points) == 0:
        return
    after = np.roll(points, -1, axis=0)
    first, stop = (
        np.clip(np.ceil(bound(points[:, 1], after[:, 1]) - 0.5), 0, height).astype(np.int64)
        for bound in (np.minimum, np.maximum)
    )
    top, bottom = int(first.min()), int(stop.max())
    changes = np.zeros((bottom - top) * (width + 1), np.int64)
    for start in range(0, len(points), _EDGES):
        part = slice(start, start + _EDGES)
        lines, columns = _crossings(points[part], after[part], first[part], stop[part])
        places = (lines - top) * (width + 1) + np.clip(columns, 0, width).astype(np.int64)
        changes += np.bincount(places, minlength=len(changes))
    inside = np.cumsum(changes.reshape(-1, width + 1), axis=1)[:, :width] & 1
    mask_HW[top:bottom] |= inside.astype(np.uint8)


def _crossings(
    points: NDArray[np.float64], after: NDArray[np.float64], first: NDArray[np.int64], stop: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return for each line of pixels and edge that cross: the line, and the first column whose middle is not left.

    Args:
        points: Where each edge begins, (P, 2).
        after: Where it ends.
        first: First line whose middle the edge reaches.
        stop: First line that it no longer reaches.
    """
    import numpy as np

    counts = stop - first
    edges = np.repeat(np.arange(len(points)), counts)
    lines = np.arange(len(edges)) - np.repeat(np.cumsum(counts) - counts, counts) + first[edges]
    begin, end = points[edges], after[edges]
    share = (lines + 0.5 - begin[:, 1]) / (end[:, 1] - begin[:, 1])
    return lines, np.ceil(begin[:, 0] + share * (end[:, 0] - begin[:, 0]) - 0.5)


def _sampled(encoded: Mapping[str, Any], view: RowView) -> NDArray[np.bool_]:
    """Return a run-length encoding's mask in a row; the mask itself is never made, which may be far larger."""
    import numpy as np

    try:
        runs = runs_of(encoded)
    except ValueError as error:
        raise FormatError(f"segmentation: {error}") from error
    height, width = encoded["size"]
    if not height * width:
        return np.zeros((view.size, view.size), np.bool_)
    columns, lines = (
        np.clip(np.floor((np.arange(view.size) + 0.5 - shift) / scale), 0, side - 1).astype(np.int64)
        for (scale, shift), side in zip(axes_of(view, (height, width)), (width, height), strict=True)
    )
    ended_WH = np.searchsorted(np.cumsum(runs), columns[:, None] * height + lines, side="right")
    inside: NDArray[np.bool_] = (ended_WH.T & 1).astype(np.bool_)
    return inside
