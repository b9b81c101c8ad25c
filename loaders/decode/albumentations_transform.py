"""Transforms of albumentations as a loader's `transform`, with boxes, masks and keypoints."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dataprep.errors import UsageError
from loaders.decode.annotations import AnnotationFields, Annotations, AnnotationTransform, placed_keypoints
from loaders.decode.seeding import SeededTransform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HALF_PIXEL = 0.5
"""Middle of a pixel: albumentations counts keypoints by the middles of pixels, where boxes are positions."""


class AlbumentationsTransform(SeededTransform, AnnotationTransform):
    """Turn a transform of albumentations 2 into a loader's `transform`.

        import albumentations as A
        augment = A.Compose([A.Affine(rotate=(-10, 10))], bbox_params=A.BboxParams("coco"))
        transform = AlbumentationsTransform(augment, AnnotationFields(masks="segmentation"))
        open_loader("coco", batch_size=256, fields=transform.needed_fields, transform=transform)

    An object that albumentations leaves out, because of `min_visibility` for instance, is left out of every column.
    `label_fields` may name columns. The transform runs in processes of its own, one for each decoding thread, where its
    generators, and those of Python and NumPy, are set from the sample's own one for each call.

    Args:
        augment: A transform to an image of the same size, uint8. Boxes need a Compose with the format `coco`, and
            keypoints one with `A.KeypointParams("xy", remove_invisible=False)`.
        fields: Which fields are annotations; None: the image is augmented alone.

    Raises:
        UsageError: It is no transform of albumentations, or it does not take boxes or keypoints as fields have them.
    """

    def __init__(self, augment: Any, fields: AnnotationFields | None = None) -> None:
        super().__init__(fields)
        if not callable(augment) or not hasattr(augment, "set_random_state"):
            raise UsageError(f"augment must be a transform of albumentations 2 or newer, got {augment!r}")
        self._augment = augment
        self._label_fields: tuple[str, ...] = ()
        if fields is not None:
            self._check_params(fields)

    def augment(
        self, image_HWC: NDArray[np.uint8], annotations: Annotations, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], Annotations]:
        """Augment an image with its annotations; without `fields` the image alone."""
        result: tuple[NDArray[np.uint8], Annotations] = self._seeded(rng, image_HWC, annotations)
        return result

    def _draw(
        self, seed: int, image_HWC: NDArray[np.uint8], annotations: Annotations
    ) -> tuple[NDArray[np.uint8], Annotations]:
        import numpy as np

        given = {"image": image_HWC.copy(), **self._arrays(annotations)}
        # A seed would give each transform a generator of its own, all of which draw the same numbers.
        self._augment.set_random_state(np.random.default_rng(seed), random.Random(seed))
        result = self._augment(**given)
        augmented_HWC = result["image"]
        return augmented_HWC, _annotations(result, annotations, augmented_HWC)

    def _check_params(self, fields: AnnotationFields) -> None:
        processors = getattr(self._augment, "processors", {})
        boxes, points = (getattr(processors.get(name), "params", None) for name in ("bboxes", "keypoints"))
        if fields.boxes:
            if boxes is None or boxes.format != "coco":
                raise UsageError('boxes need an A.Compose with bbox_params=A.BboxParams("coco"), got other bbox_params')
            self._label_fields = tuple(boxes.label_fields or ())
        if fields.keypoints and (points is None or points.format != "xy" or points.remove_invisible):
            raise UsageError(
                "keypoints need an A.Compose with keypoint_params=A.KeypointParams("
                '"xy", remove_invisible=False), got other keypoint_params'
            )

    def _arrays(self, annotations: Annotations) -> dict[str, object]:
        """Return annotations as albumentations takes them; boxes and points have their numbers as one more column."""
        import numpy as np

        arrays: dict[str, object] = {}
        if annotations.boxes is not None:
            numbers = np.arange(len(annotations.boxes))[:, None]
            arrays["bboxes"] = np.concatenate([annotations.boxes, numbers], axis=1)
            for name in self._label_fields:
                if name not in annotations.others:
                    raise UsageError(
                        f"label_fields: no column {name}; there are {', '.join(sorted(annotations.others))}"
                    )
                arrays[name] = annotations.others[name]
        if annotations.masks is not None and len(annotations.masks):
            arrays["masks"] = annotations.masks
        if annotations.keypoints is not None:
            points = annotations.keypoints.reshape(-1, 3)
            (labelled,) = np.nonzero(points[:, 2])
            arrays["keypoints"] = np.concatenate([points[labelled, :2] - _HALF_PIXEL, labelled[:, None]], axis=1)
        return arrays


def _annotations(result: Mapping[str, Any], given: Annotations, image_HWC: NDArray[np.uint8]) -> Annotations:
    """Return what is left of annotations: the objects whose boxes are left, or all if there are no boxes."""
    import numpy as np

    found = given
    if given.masks is not None and len(given.masks):
        found = replace(found, masks=np.asarray(result["masks"], np.uint8))
    if given.keypoints is not None:
        points = np.full((given.keypoints[..., 0].size, 2), -1.0)
        moved = np.asarray(result["keypoints"], np.float64).reshape(-1, 3)
        points[moved[:, 2].astype(np.int64)] = moved[:, :2] + _HALF_PIXEL
        points = points.reshape(*given.keypoints.shape[:2], 2)
        found = replace(found, keypoints=placed_keypoints(points, given.keypoints, image_HWC))
    if given.boxes is not None:
        boxes = np.asarray(result["bboxes"], np.float64)
        left = boxes[:, 4].astype(np.int64) if len(boxes) else np.zeros(0, np.int64)
        found = replace(found.take(left), boxes=boxes[:, :4])
    return found
