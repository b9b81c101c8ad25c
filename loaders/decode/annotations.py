"""Annotations of images: mapped to a row's pixels (pure), and changed together with the image by a `transform`.

    stored fields ─carry through crop, scale and flip─▶ Annotations ─augment, with the image─▶ Annotations ─▶ fields

Boxes are COCO's [x, y, width, height] in pixels, as floats, x to the right and y downwards from the top left corner of
the image; pixel (row i, column j) covers y from i to i + 1 and x from j to j + 1. A segmentation is COCO's: polygons,
or run lengths `{"size": [height, width], "counts": ...}`, or the JSON text of either, as datasets store it; an empty
text means none. A pixel belongs to a mask if its middle does.

Shapes: HWC images, uint8, 0..255; N objects of a row, K keypoints, P points of a polygon, HW a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dataprep.arrays import np
from dataprep.dataset.run_lengths import runs_of
from dataprep.errors import FormatError, UsageError
from dataprep.messages import quoted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from loaders.decode.crop import RowView

COCO_FLIP_PAIRS = tuple((left, left + 1) for left in range(1, 17, 2))
"""Positions of COCO's keypoints on the left and right of a person: eyes, ears, shoulders, and so on to the ankles."""


class TransformedBoxes(NamedTuple):
    """Boxes of one row."""

    boxes: NDArray[np.float64]
    """(kept, 4): [x, y, width, height] in pixels of the row."""
    visibility: NDArray[np.float64]
    """(kept,): share of each box's area in the row, 0 to 1."""
    kept: NDArray[np.int64]
    """(kept,): positions of these boxes among the given ones, ascending."""


def transform_points(
    points: ArrayLike, view: RowView, *, annotated_size: tuple[int, int] | None = None
) -> NDArray[np.float64]:
    """Return points in pixels of a row; points outside the crop have coordinates outside 0 to `view.size`.

    Args:
        points: (..., 2): x and y.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: Height and width of the image that the points were made for, if a build has resized it:
            `original_height` and `original_width` of coco. None or zeros: the stored image.

    Raises:
        UsageError: The points have another shape.
    """
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
        clip: Cut boxes to the row; a box outside the row gets no area. False leaves boxes as they are.
        min_visibility: Leave out boxes with a smaller share of their area in the row. 0 keeps all; a small number such
            as 1e-9 drops boxes outside the row. A box without area is visible if its corner is in the row.

    Raises:
        UsageError: The boxes have another shape, or the share is not from 0 to 1.
    """
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
    """Return keypoints in pixels of a row. Points outside the row, and points without a label, become (0, 0, 0).

    Args:
        keypoints: (N, K, 3): x, y and visibility, which is 0 for a point without a label.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: As for `transform_points`.
        flip_pairs: Positions of keypoints that change places in a mirrored image: a left eye becomes a right one.

    Raises:
        UsageError: The keypoints have another shape.
    """
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
    """Return scale and shift of x and of y: coordinate * scale + shift is the position in the row."""
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
    """Return the share of each box that remains, given its corners before and after cutting."""
    areas, left = (np.prod(each[:, 1] - each[:, 0], axis=1) for each in (corners, inside))
    in_row = ((corners[:, 0] >= 0) & (corners[:, 0] < size)).all(axis=1)
    shares: NDArray[np.float64] = np.where(areas > 0, left / np.where(areas > 0, areas, 1.0), in_row)
    return np.clip(shares, 0.0, 1.0)


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

    Parts outside the row are cut off along its edges. If several parts of a polygon remain, lines without area join
    them there. A polygon that is completely outside is left out.

    Args:
        segmentation: Polygons, or their JSON text.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: Height and width of the image that the polygons were made for; see `loaders.transform_points`.

    Raises:
        UsageError: The segmentation is a run-length encoding, which has no polygons.
        FormatError: The value is not a segmentation.
    """
    found = _parsed(segmentation)
    if isinstance(found, Mapping):
        raise UsageError("a run-length encoding has no polygons; use loaders.transform_masks, which takes both")
    clipped = (_clipped(points, view.size) for points in _moved(found, view, annotated_size))
    return [points.ravel().tolist() for points in clipped if len(points) >= len("xyz")]


def transform_masks(
    segmentations: Sequence[Segmentation], view: RowView, *, annotated_size: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Return the masks of objects in a row, (N, size, size), 1 where the middle of a pixel is in the object.

    A run-length encoding gives each pixel of the row the value of the mask's pixel that contains its middle. Polygons
    of one object are united; each is filled by the even-odd rule.

    Args:
        segmentations: Segmentation of each object, or its JSON text.
        view: How the image became a row, e.g. `batch.views[i]`.
        annotated_size: Height and width of the image that polygons were made for; see `loaders.transform_points`. A
            run-length encoding has its own size.

    Raises:
        FormatError: A value is not a segmentation, or there are too many for one row.
    """
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
    for polygon in polygons:
        try:
            points = np.asarray(polygon, np.float64).reshape(-1, 2)
        except (TypeError, ValueError) as error:
            raise FormatError("a polygon that is not a list of pairs, expected x and y of each point") from error
        if not (np.abs(points) <= MAX_COORDINATE).all():
            raise FormatError(f"a polygon coordinate is NaN or beyond ±{MAX_COORDINATE:,.0f}")
        yield transform_points(points, view, annotated_size=annotated_size)


def _clipped(points: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the part of a polygon in a square, cut side by side as in Sutherland and Hodgman, CACM 17 (1974)."""
    for axis in (0, 1):
        points = _cut(points, points[:, axis])
        points = _cut(points, size - points[:, axis])
    return np.clip(points, 0, size)


def _cut(points: NDArray[np.float64], distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the part of a polygon whose points have distances of 0 or more from a straight line."""
    after, distances_after = np.roll(points, -1, axis=0), np.roll(distances, -1)
    stays = distances >= 0
    crosses = stays != (distances_after >= 0)
    share = distances[crosses] / (distances[crosses] - distances_after[crosses])
    between = points[crosses] + share[:, None] * (after[crosses] - points[crosses])
    order = np.argsort(np.concatenate([2 * np.flatnonzero(stays), 2 * np.flatnonzero(crosses) + 1]))
    return np.concatenate([points[stays], between])[order]


def _fill(mask_HW: NDArray[np.uint8], points: NDArray[np.float64]) -> None:
    """Set the pixels whose middles are in a polygon.

    On each line through pixel middles, every crossing with an edge flips all pixels to its right; pixels flipped an odd
    number of times are inside.
    """
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
    """Return for each line of pixels and edge that cross: the line, and the first column whose middle is not left of
    the crossing. Edges go from `points` to `after`, both (P, 2), and reach the middles of lines `first` to `stop`."""
    counts = stop - first
    edges = np.repeat(np.arange(len(points)), counts)
    lines = np.arange(len(edges)) - np.repeat(np.cumsum(counts) - counts, counts) + first[edges]
    begin, end = points[edges], after[edges]
    share = (lines + 0.5 - begin[:, 1]) / (end[:, 1] - begin[:, 1])
    return lines, np.ceil(begin[:, 0] + share * (end[:, 0] - begin[:, 0]) - 0.5)


def _sampled(encoded: Mapping[str, Any], view: RowView) -> NDArray[np.bool_]:
    """Return a run-length encoding's mask in a row; the complete mask, which may be far larger, is never made."""
    try:
        runs = runs_of(encoded)
    except ValueError as error:
        raise FormatError(f"segmentation: {error}") from error
    height, width = encoded["size"]
    if not height * width:
        return np.zeros((view.size, view.size), np.bool_)
    columns, lines = (
        np.floor((np.arange(view.size) + 0.5 - shift) / scale).astype(np.int64)
        for scale, shift in axes_of(view, (height, width))
    )
    (in_width, columns), (in_height, lines) = (
        ((places >= 0) & (places < side), np.clip(places, 0, side - 1))
        for places, side in ((columns, width), (lines, height))
    )
    ended_WH = np.searchsorted(np.cumsum(runs), columns[:, None] * height + lines, side="right")
    inside: NDArray[np.bool_] = (ended_WH.T & 1).astype(np.bool_) & in_height[:, None] & in_width
    return inside


WITHOUT_SIZE = "if annotations are in pixels of the stored images, AnnotationFields(size=None) needs no such fields"
"""End of an error about missing fields with the size of annotations."""
_LEAST_SIDE = 1e-3
"""Minimum width and height of a box, pixels; libraries refuse a box that rounding has made empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotationFields:
    """Fields of a sample that are annotations, and rules for the objects that are kept; the defaults fit COCO.

    Raises:
        UsageError: No field is an annotation, or a share is not from 0 to 1.
    """

    objects: str = "objects"
    """Field of records, whose columns have a value for each object, e.g. `person_keypoints`."""
    boxes: str = "bbox"
    """Column of boxes, [x, y, width, height] in pixels; empty: none."""
    masks: str = ""
    """Column of segmentations, polygons or run-length encodings, e.g. `segmentation`; empty: none."""
    keypoints: str = ""
    """Column of keypoints, x, y and visibility each, e.g. `keypoints`; empty: none."""
    size: tuple[str, str] | None = ("original_height", "original_width")
    """Fields with the height and width of the image that annotations were made for; None: of the stored image."""
    min_visibility: float = 0.0
    """Share of a box's area that must be in the row; objects whose box is outside are always left out."""
    flip_pairs: Sequence[tuple[int, int]] = COCO_FLIP_PAIRS
    """Positions of keypoints that change places when the loader mirrors an image."""

    def __post_init__(self) -> None:
        if not self.columns or not self.objects:
            raise UsageError("annotations need the field `objects` and a column of boxes, masks or keypoints")
        if not 0 <= self.min_visibility <= 1:
            raise UsageError(f"min_visibility must be a share from 0 to 1, got {self.min_visibility!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that change with the image."""
        return tuple(name for name in (self.boxes, self.masks, self.keypoints) if name)

    @property
    def names(self) -> tuple[str, ...]:
        """Fields that a loader must read."""
        return (self.objects, *(self.size or ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotations:
    """Annotations of the objects in one row, in its pixels; coordinates are positions, as in COCO."""

    boxes: NDArray[np.float64] | None = None
    """(N, 4): [x, y, width, height], within the row; None if no column holds boxes."""
    masks: NDArray[np.uint8] | None = None
    """(N, height, width): 1 where the middle of a pixel is in the object; None if no column holds masks."""
    keypoints: NDArray[np.float64] | None = None
    """(N, K, 3): x, y and visibility, all 0 outside the row; None if no column holds keypoints."""
    others: Mapping[str, Sequence[Any]]
    """The other columns of the objects, as they are stored."""

    def __len__(self) -> int:
        """Return the number of objects."""
        known = (self.boxes, self.masks, self.keypoints, *self.others.values())
        return next((len(each) for each in known if each is not None), 0)

    def take(self, places: ArrayLike) -> Annotations:
        """Return the annotations of some objects, in the order of these places."""
        chosen = np.asarray(places, np.int64)
        return replace(
            self,
            boxes=None if self.boxes is None else self.boxes[chosen],
            masks=None if self.masks is None else self.masks[chosen],
            keypoints=None if self.keypoints is None else self.keypoints[chosen],
            others={name: [values[place] for place in chosen.tolist()] for name, values in self.others.items()},
        )


class AnnotationTransform:
    """A `transform` that carries annotations through the loader's crop, and then augments them with their image.

        transform = AnnotationTransform(AnnotationFields(masks="segmentation"))
        open_loader("coco", batch_size=256, fields=transform.needed_fields, transform=transform)

    A batch's field `objects` then has the objects that are in the row: boxes (N, 4), masks (N, size, size) and
    keypoints (N, K, 3) as arrays instead of the stored values, and the values of all other columns. This class itself
    augments nothing; `TorchvisionTransform`, `AlbumentationsTransform` and classes of your own override `augment`.

    Args:
        fields: Fields that are annotations; None: the image is augmented alone.
    """

    def __init__(self, fields: AnnotationFields | None = None) -> None:
        if fields is not None and not isinstance(fields, AnnotationFields):
            raise UsageError(f"fields of a transform must be loaders.AnnotationFields or None, got {fields!r}")
        self.fields = fields

    @property
    def needed_fields(self) -> tuple[str, ...]:
        """Fields that the loader's setting `fields` must name."""
        return () if self.fields is None else self.fields.names

    def augment(
        self, image_HWC: NDArray[np.uint8], annotations: Annotations, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], Annotations]:
        """Return an image of the same size, and its annotations.

        Args:
            image_HWC: The image after the loader's crop, scale and flip; changing it in place is allowed.
            annotations: The objects in it.
            rng: Random generator of this sample.
        """
        return image_HWC, annotations

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Augment an image without annotations."""
        return self.augment(image_HWC, Annotations(others={}), rng)[0]

    def transform_fields(
        self, image_HWC: NDArray[np.uint8], fields: Mapping[str, Any], view: RowView, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], Mapping[str, Any]]:
        """Carry annotations through the loader's crop, and augment them with the image; see `FieldsTransform`."""
        if self.fields is None:
            return self(image_HWC, rng), {}
        image_HWC, annotations = self.augment(image_HWC, carried(fields, self.fields, view), rng)
        columns: dict[str, object] = dict(annotations.others)
        arrays = (annotations.boxes, annotations.masks, annotations.keypoints)
        for name, values in zip((self.fields.boxes, self.fields.masks, self.fields.keypoints), arrays, strict=True):
            if name:
                columns[name] = values
        return image_HWC, {self.fields.objects: {name: columns[name] for name in fields[self.fields.objects]}}


def size_fields(transform: object) -> tuple[str, ...]:
    """Return the fields with the size of annotations that a transform reads; none if it reads no such fields."""
    wanted = transform.fields if isinstance(transform, AnnotationTransform) else None
    return () if wanted is None or wanted.size is None else wanted.size


def carried(fields: Mapping[str, Any], wanted: AnnotationFields, view: RowView) -> Annotations:
    """Return the annotations of a row, from the stored values of a sample's fields. Raises FormatError if the field
    holds no columns of objects, a column is missing, or its values are not annotations."""
    columns = _columns(fields, wanted)
    try:
        size = None if wanted.size is None else (int(fields[wanted.size[0]]), int(fields[wanted.size[1]]))
        if size is not None and min(size) < 0:
            raise FormatError(f"annotations of an image of {size[1]}x{size[0]} pixels, expected 0 or more")
        return _carried(columns, wanted, view, size)
    except (FormatError, OverflowError, TypeError, UsageError, ValueError) as error:
        raise FormatError(f"field {wanted.objects}: {error}") from error


def _carried(
    columns: Mapping[str, Sequence[Any]], wanted: AnnotationFields, view: RowView, size: tuple[int, int] | None
) -> Annotations:
    kept = np.arange(len(columns[wanted.columns[0]]))
    boxes = masks = keypoints = None
    if wanted.boxes:
        found = transform_boxes(
            _numbers(columns, wanted.boxes), view, annotated_size=size, min_visibility=wanted.min_visibility
        )
        large = (found.boxes[:, 2:] >= _LEAST_SIDE).all(axis=1)
        kept, boxes = found.kept[large], found.boxes[large]
    if wanted.masks:
        texts = [columns[wanted.masks][place] for place in kept.tolist()]
        masks = transform_masks(texts, view, annotated_size=size)
    if wanted.keypoints:
        points = _numbers(columns, wanted.keypoints)[kept]
        keypoints = transform_keypoints(points, view, annotated_size=size, flip_pairs=wanted.flip_pairs)
    others = {
        name: [values[place] for place in kept.tolist()]
        for name, values in columns.items()
        if name not in wanted.columns
    }
    return Annotations(boxes=boxes, masks=masks, keypoints=keypoints, others=others)


def _columns(fields: Mapping[str, Any], wanted: AnnotationFields) -> Mapping[str, Sequence[Any]]:
    """Return the columns of the objects; all have the same number of values."""
    columns = fields[wanted.objects]
    if not isinstance(columns, Mapping) or not all(isinstance(values, Sequence) for values in columns.values()):
        found = type(columns).__name__
        raise FormatError(f"field {wanted.objects}: {found}, expected columns with a value for each object")
    missing = [name for name in wanted.columns if name not in columns]
    if missing:
        raise FormatError(f"field {wanted.objects}: no column {missing[0]}; it has {', '.join(sorted(columns))}")
    counts = {len(values) for values in columns.values()}
    if len(counts) > 1:
        raise FormatError(f"field {wanted.objects}: columns of {sorted(counts)} values, expected one number")
    return columns


def _numbers(columns: Mapping[str, Sequence[Any]], name: str) -> NDArray[np.float64]:
    found = np.asarray(columns[name], np.float64)
    if not np.isfinite(found).all():
        raise FormatError(f"column {name} has values that are not finite numbers")
    return found


def placed_keypoints(
    points: NDArray[np.float64], before: NDArray[np.float64], image_HWC: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """Return keypoints at new places; points outside the image, and points without a label, become (0, 0, 0). `points`,
    (N, K, 2), are x and y after an augmentation, `before`, (N, K, 3), the keypoints before it."""
    height, width = image_HWC.shape[:2]
    inside = ((points >= 0) & (points < (width, height))).all(axis=-1) & (before[..., 2] > 0)
    found: NDArray[np.float64] = np.where(inside[..., None], np.concatenate([points, before[..., 2:]], axis=-1), 0.0)
    return found
