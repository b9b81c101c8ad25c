"""Carries boxes, keypoints and points of an image to the pixels of its row in a batch: pure functions.

    pixels that annotations count ─scale─▶ stored image ─crop, scale, cut─▶ row ─flip─▶ row

Boxes are COCO's: [x, y, width, height] in pixels, as floats, x to the right and y downwards from the top left corner of
the image. Coordinates are positions, not numbers of pixels: pixel (row i, column j) covers y from i to i + 1 and x from
j to j + 1. Shapes: N boxes or people, K keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dataprep.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from loaders.decode.crop import View

COCO_FLIP_PAIRS = tuple((left, left + 1) for left in range(1, 17, 2))
"""Positions of COCO's keypoints that are left and right of a person: eyes, ears, shoulders, and so on to the ankles."""


class RowView(NamedTuple):
    """How an image became a row of a batch; all numbers are pixels."""

    image_height: int
    image_width: int
    """Height and width of the stored image."""
    top: int
    left: int
    height: int
    width: int
    """Top, left, height and width are those of the crop, a box of the stored image."""
    resized_height: int
    resized_width: int
    """Height and width to which the crop is scaled."""
    out_top: int
    out_left: int
    """Top left corner of the row in the scaled crop; 0 unless an evaluation takes the middle."""
    flip: bool
    """Whether the row is mirrored, left to right, as the last step."""
    size: int
    """Height and width of the row."""


class TransformedBoxes(NamedTuple):
    """Boxes of one row."""

    boxes: NDArray[np.float64]
    """(kept, 4): [x, y, width, height] in pixels of the row."""
    visibility: NDArray[np.float64]
    """(kept,): share of each box's area that lies in the row, 0 to 1."""
    kept: NDArray[np.int64]
    """(kept,): positions of these boxes among the given ones, ascending."""


def row_view(view: View, image_height: int, image_width: int, size: int) -> RowView:
    """Return how an image became a row, from its view."""
    return RowView(image_height, image_width, *view, size)


def transform_points(
    points: ArrayLike, view: RowView, *, annotated_size: tuple[int, int] | None = None
) -> NDArray[np.float64]:
    """Return points in pixels of a row; points outside of the crop lie outside of 0 to `view.size`.

    Args:
        points: (..., 2): x and y.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: Height and width of the image to which the points belong, where a build has resized it:
            `original_height` and `original_width` of coco. None or zeros: the stored image.

    Raises:
        UsageError: The points have another shape.
    """
    import numpy as np

    found = np.asarray(points, np.float64)
    if found.size == 0:
        found = found.reshape(*found.shape[:-1], 2) if found.ndim > 1 else found.reshape(0, 2)
    if found.shape[-1:] != (2,):
        raise UsageError(f"points must have the shape (..., 2), got {found.shape}")
    (scale_x, shift_x), (scale_y, shift_y) = axes_of(view, annotated_size)
    moved: NDArray[np.float64] = found * np.array([scale_x, scale_y]) + np.array([shift_x, shift_y])
    return moved


def transform_boxes(
    boxes: ArrayLike,
    view: RowView,
    *,
    annotated_size: tuple[int, int] | None = None,
    clip: bool = True,
    min_visibility: float = 0.0,
) -> TransformedBoxes:
    """Return boxes in pixels of a row.

    Args:
        boxes: (N, 4): [x, y, width, height] in pixels, as COCO has them.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: As for `transform_points`.
        clip: Cut boxes to the row; a box outside of it gets no area. False leaves them as they are.
        min_visibility: Leave out boxes of which a smaller share lies in the row; 0 leaves out none, and a small number
            such as 1e-9 those outside. A box without area is visible if its corner lies in the row.

    Raises:
        UsageError: The boxes have another shape, or the share is not from 0 to 1.
    """
    import numpy as np

    found = np.asarray(boxes, np.float64)
    found = found.reshape(0, 4) if found.size == 0 else found
    if found.ndim != 2 or found.shape[1] != 4:
        raise UsageError(f"boxes must have the shape (N, 4), [x, y, width, height], got {found.shape}")
    if not 0 <= min_visibility <= 1:
        raise UsageError(f"min_visibility must be a share from 0 to 1, got {min_visibility!r}")
    corners = np.stack([found[:, :2], found[:, :2] + found[:, 2:]], axis=1)  # (N, 2, 2)
    moved = np.sort(transform_points(corners, view, annotated_size=annotated_size), axis=1)  # a flip swaps x
    inside = np.clip(moved, 0, view.size)
    visibility = _visibility(moved, inside, view.size)
    kept = np.flatnonzero(visibility >= min_visibility)
    chosen = (inside if clip else moved)[kept]
    return TransformedBoxes(np.concatenate([chosen[:, 0], chosen[:, 1] - chosen[:, 0]], axis=1), visibility[kept], kept)


def transform_keypoints(
    keypoints: ArrayLike,
    view: RowView,
    *,
    annotated_size: tuple[int, int] | None = None,
    flip_pairs: Sequence[tuple[int, int]] = COCO_FLIP_PAIRS,
) -> NDArray[np.float64]:
    """Return keypoints in pixels of a row. Points outside of the row and those without a label become (0, 0, 0).

    Args:
        keypoints: (N, K, 3): x, y and visibility, which is 0 for a point without a label.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: As for `transform_points`.
        flip_pairs: Positions of keypoints that change places in a mirrored image: a left eye becomes a right one.

    Raises:
        UsageError: The keypoints have another shape.
    """
    import numpy as np

    found = np.array(keypoints, np.float64)
    if found.size == 0:
        return found.reshape(0, *found.shape[1:]) if found.ndim == 3 else found.reshape(0, 0, 3)
    if found.ndim != 3 or found.shape[2] != 3:
        raise UsageError(f"keypoints must have the shape (N, K, 3), got {found.shape}")
    if view.flip:
        swapped = np.arange(found.shape[1])
        for left, right in flip_pairs:
            swapped[[left, right]] = right, left
        found = found[:, swapped]
    found[..., :2] = transform_points(found[..., :2], view, annotated_size=annotated_size)
    outside = ((found[..., :2] < 0) | (found[..., :2] >= view.size)).any(axis=-1)
    found[outside | (found[..., 2] == 0)] = 0
    return found


def axes_of(view: RowView, annotated_size: tuple[int, int] | None) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return scale and shift of x, and of y: a coordinate times its scale plus its shift is that in the row."""
    height, width = annotated_size or (0, 0)
    stored_x = view.image_width / width if width else 1.0
    stored_y = view.image_height / height if height else 1.0
    scale_x, scale_y = view.resized_width / view.width, view.resized_height / view.height
    shift_x, shift_y = -view.left * scale_x - view.out_left, -view.top * scale_y - view.out_top
    scale_x, scale_y = scale_x * stored_x, scale_y * stored_y
    if view.flip:
        scale_x, shift_x = -scale_x, view.size - shift_x
    return (scale_x, shift_x), (scale_y, shift_y)


def _visibility(corners: NDArray[np.float64], inside: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the shares of boxes that are left of them, given their corners before and after they are cut."""
    import numpy as np

    areas, left = (np.prod(each[:, 1] - each[:, 0], axis=1) for each in (corners, inside))
    in_row = ((corners[:, 0] >= 0) & (corners[:, 0] < size)).all(axis=1)
    shares: NDArray[np.float64] = np.where(areas > 0, left / np.where(areas > 0, areas, 1.0), in_row)
    return np.clip(shares, 0.0, 1.0)
