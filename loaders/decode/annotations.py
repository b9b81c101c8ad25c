"""Annotations that go through a loader's `transform` together with their image.

    stored fields ─carry through crop, scale and flip─▶ Annotations ─augment, with the image─▶ Annotations ─▶ fields

Shapes: HWC images, uint8, 0..255; N objects of a row, K keypoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dataprep.errors import FormatError, UsageError
from loaders.decode.boxes import COCO_FLIP_PAIRS, RowView, transform_boxes, transform_keypoints
from loaders.decode.masks import transform_masks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

WITHOUT_SIZE = "if annotations are in pixels of the stored images, AnnotationFields(size=None) needs no such fields"
"""End of an error about missing fields with the size of annotations."""
_LEAST_SIDE = 1e-3
"""Least width and height of a box, pixels; libraries refuse a box that rounding leaves without any."""


@runtime_checkable
class FieldsTransform(Protocol):
    """A `transform` that changes fields of a sample together with its image.

    The loader calls `transform_fields` if a transform has it, and the transform itself where there are no views, in
    packs. `AnnotationTransform` implements it for boxes, masks and keypoints.
    """

    @property
    def needed_fields(self) -> tuple[str, ...]:
        """Fields that it reads; the loader's setting `fields` must name them."""

    def transform_fields(
        self, image_HWC: NDArray[np.uint8], fields: Mapping[str, Any], view: RowView, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], Mapping[str, Any]]:
        """Return an image of the same size, and the values of fields that the batch delivers in place of the stored.

        Args:
            image_HWC: Row of the batch: the image after crop, scale and flip.
            fields: Stored values of `needed_fields`.
            view: How the stored image became the row.
            rng: Random generator of this sample, which depends on the seed and the sample's position alone.

        Raises:
            FormatError: The values cannot be used; the loader adds the sample to the text.
        """

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return an image of the same size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotationFields:
    """Which fields of a sample are annotations, and which objects stay in a row; the defaults are those of COCO.

    Raises:
        UsageError: Nothing is an annotation, or a share is not from 0 to 1.
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
    """Fields with the height and width of the image to which annotations belong; None: the stored image's own."""
    min_visibility: float = 0.0
    """Share of a box's area that must lie in the row; objects whose box lies outside are always left out."""
    flip_pairs: Sequence[tuple[int, int]] = COCO_FLIP_PAIRS
    """Positions of keypoints that change places where the loader mirrors an image."""

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
    """(N, 4): [x, y, width, height], within the row; None where no column holds boxes."""
    masks: NDArray[np.uint8] | None = None
    """(N, height, width): 1 where the middle of a pixel lies in the object; None where no column holds masks."""
    keypoints: NDArray[np.float64] | None = None
    """(N, K, 3): x, y and visibility, all 0 outside of the row; None where no column holds keypoints."""
    others: Mapping[str, Sequence[Any]]
    """The other columns of the objects, as they are stored."""

    def __len__(self) -> int:
        """Return the number of objects."""
        known = (self.boxes, self.masks, self.keypoints, *self.others.values())
        return next((len(each) for each in known if each is not None), 0)

    def take(self, places: ArrayLike) -> Annotations:
        """Return the annotations of some objects, in the order of these places."""
        import numpy as np

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
    keypoints (N, K, 3) as arrays in place of what is stored, and the values of all other columns. As it is, this class
    augments nothing; `TorchvisionTransform`, `AlbumentationsTransform` and classes of your own override `augment`.

    Args:
        fields: Which fields are annotations; None: the image is augmented alone.
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
    """Return the fields with the size of annotations that a transform reads; none for a transform that reads no such
    fields."""
    wanted = transform.fields if isinstance(transform, AnnotationTransform) else None
    return () if wanted is None or wanted.size is None else wanted.size


def carried(fields: Mapping[str, Any], wanted: AnnotationFields, view: RowView) -> Annotations:
    """Return the annotations of a row, from the stored values of a sample's fields.

    Raises:
        FormatError: The field holds no columns of objects, a column is missing, or its values are no annotations.
    """
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
    import numpy as np

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
    """Return the columns of the objects; all have as many values."""
    columns = fields[wanted.objects]
    if not isinstance(columns, Mapping) or not all(isinstance(values, Sequence) for values in columns.values()):
        found = type(columns).__name__
        raise FormatError(f"field {wanted.objects}: {found}, expected columns with a list of a value for each object")
    missing = [name for name in wanted.columns if name not in columns]
    if missing:
        raise FormatError(f"field {wanted.objects}: no column {missing[0]}; it has {', '.join(sorted(columns))}")
    counts = {len(values) for values in columns.values()}
    if len(counts) > 1:
        raise FormatError(f"field {wanted.objects}: columns of {sorted(counts)} values, expected equally many")
    return columns


def _numbers(columns: Mapping[str, Sequence[Any]], name: str) -> NDArray[np.float64]:
    import numpy as np

    found = np.asarray(columns[name], np.float64)
    if not np.isfinite(found).all():
        raise FormatError(f"column {name} has values that are no finite numbers")
    return found


def placed_keypoints(
    points: NDArray[np.float64], before: NDArray[np.float64], image_HWC: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """Return keypoints at new places; those outside of the image, and those without a label, become (0, 0, 0).

    Args:
        points: (N, K, 2): x and y after an augmentation.
        before: (N, K, 3): the keypoints before it.
        image_HWC: The image after it.
    """
    import numpy as np

    height, width = image_HWC.shape[:2]
    inside = ((points >= 0) & (points < (width, height))).all(axis=-1) & (before[..., 2] > 0)
    found: NDArray[np.float64] = np.where(inside[..., None], np.concatenate([points, before[..., 2:]], axis=-1), 0.0)
    return found
