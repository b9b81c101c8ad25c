"""Transforms of other libraries as a loader's `transform`: of PIL images, torchvision and albumentations.

The latter two also take boxes, masks and keypoints (`annotations.py`). All run with the sample's random numbers
(`seeding.py`). Each library is imported when a transform of it is made or called.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError
from loaders.decode.annotations import AnnotationFields, Annotations, AnnotationTransform, placed_keypoints
from loaders.decode.seeding import SeededTransform

if TYPE_CHECKING:
    from PIL.Image import Image


class PilTransform(SeededTransform):
    """Turn an augmentation of PIL images that draws from global random generators, such as timm's, into a `transform`.

        from timm.data.auto_augment import rand_augment_transform
        open_loader(url, batch_size=1024, transform=PilTransform(rand_augment_transform("rand-m9-mstd0.5", {})))

    The function runs in separate processes, one for each decoding thread. There, the sample's own generator seeds
    Python's and NumPy's for each call.

    Args:
        augment: Picklable function from a PIL image to one of the same size.
    """

    state_name = "loaders.transforms.PilTransform"
    """Name in saved states: the place where version 0.1.0 defined the class."""

    def __init__(self, augment: Callable[[Image], Image]) -> None:
        self._augment = augment

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        augmented_HWC: NDArray[np.uint8] = self._seeded(rng, image_HWC)
        return augmented_HWC

    def _draw(self, seed: int, image_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        from PIL import Image

        return np.asarray(self._augment(Image.fromarray(image_HWC)))


_HALF_PIXEL = 0.5
"""Middle of a pixel: torchvision's flips and albumentations count points from pixel middles, but boxes from edges."""


class _AnnotatedTransform(SeededTransform, AnnotationTransform):
    """A transform of a library that also takes annotations."""

    def augment(
        self, image_HWC: NDArray[np.uint8], annotations: Annotations, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], Annotations]:
        """Augment an image and its annotations; only the image if `fields` is not set."""
        result: tuple[NDArray[np.uint8], Annotations] = self._seeded(rng, image_HWC, annotations)
        return result


class TorchvisionTransform(_AnnotatedTransform):
    """Turn a transform of `torchvision.transforms.v2` into a loader's `transform`.

        from torchvision.transforms import v2
        open_loader(url, batch_size=1024, transform=TorchvisionTransform(v2.RandAugment()))

    Without `fields` it gets the image, a `tv_tensors.Image` of uint8. With them it gets a dictionary of `image`,
    `boxes`, `masks` and `keypoints`, as tv_tensors, and `labels`, the position of each object: objects that
    `v2.SanitizeBoundingBoxes` drops are dropped from every column. The transform runs in separate processes, one
    for each decoding thread. There, the sample's own generator seeds Python's, NumPy's and PyTorch's for each call.

    Args:
        augment: Picklable transform to an image of the same size, uint8.
        fields: Fields that are annotations; None: the image is augmented alone.
    """

    def __init__(self, augment: Callable[..., Any], fields: AnnotationFields | None = None) -> None:
        super().__init__(fields)
        if not callable(augment):
            raise UsageError(f"augment must be a transform of torchvision.transforms.v2, got {augment!r}")
        self._augment = augment

    def _draw(
        self, seed: int, image_HWC: NDArray[np.uint8], annotations: Annotations
    ) -> tuple[NDArray[np.uint8], Annotations]:
        import torch
        from torchvision import tv_tensors

        image = tv_tensors.Image(torch.from_numpy(image_HWC.transpose(2, 0, 1).copy()))
        sample = image if self.fields is None else {"image": image, **_tensors(annotations, image_HWC)}
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(seed)
        try:
            result = self._augment(sample)
        finally:
            generator.set_state(state)
        if self.fields is None:
            return _pixels(result), annotations
        if not isinstance(result, Mapping) or not result.keys() >= sample.keys():
            raise UsageError(f"the transform of torchvision gave {type(result).__name__}, expected its dictionary back")
        augmented_HWC = _pixels(result["image"])
        return augmented_HWC, _from_tensors(result, annotations, augmented_HWC)


def _tensors(annotations: Annotations, image_HWC: NDArray[np.uint8]) -> dict[str, object]:
    import torch
    from torchvision import tv_tensors

    size = image_HWC.shape[:2]
    tensors: dict[str, object] = {"labels": torch.arange(len(annotations))}
    if annotations.boxes is not None:
        boxes = torch.from_numpy(annotations.boxes).float()
        tensors["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=size)
    if annotations.masks is not None:
        tensors["masks"] = tv_tensors.Mask(torch.from_numpy(annotations.masks))
    if annotations.keypoints is not None:
        points = torch.from_numpy(annotations.keypoints[..., :2] - _HALF_PIXEL).float()
        tensors["keypoints"] = tv_tensors.KeyPoints(points, canvas_size=size)
    return tensors


def _from_tensors(result: Mapping[str, Any], given: Annotations, image_HWC: NDArray[np.uint8]) -> Annotations:
    """Return the remaining annotations; the labels of the result are their positions before."""
    from torchvision.transforms.v2 import functional

    left = result["labels"].numpy()
    found = given.take(left)

    def values_of(name: str, tensor: Any) -> NDArray[np.float64]:
        values: NDArray[np.float64] = np.asarray(tensor)
        if len(values) in (len(left), len(given)):
            return values if len(values) == len(left) else values[left]
        raise UsageError(
            f"the transform of torchvision left {len(tensor)} {name} and {len(left)} labels of {len(given)} objects; "
            'leave objects out with v2.SanitizeBoundingBoxes(labels_getter="default")'
        )

    if given.boxes is not None:
        boxes = functional.convert_bounding_box_format(result["boxes"], new_format="XYWH")
        found = replace(found, boxes=values_of("boxes", boxes).astype(np.float64))
    if given.masks is not None:
        found = replace(found, masks=values_of("masks", result["masks"]).astype(np.uint8))
    if given.keypoints is not None and found.keypoints is not None:
        points = values_of("keypoints", result["keypoints"]).astype(np.float64) + _HALF_PIXEL
        found = replace(found, keypoints=placed_keypoints(points, found.keypoints, image_HWC))
    return found


def _pixels(image: Any) -> NDArray[np.uint8]:
    """Return an image's pixels, HWC; the loader refuses another size or type."""
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels.transpose(1, 2, 0) if pixels.ndim == len("CHW") else pixels


class AlbumentationsTransform(_AnnotatedTransform):
    """Turn a transform of albumentations 2 into a loader's `transform`.

        import albumentations as A
        augment = A.Compose([A.Affine(rotate=(-10, 10))], bbox_params=A.BboxParams("coco"))
        transform = AlbumentationsTransform(augment, AnnotationFields(masks="segmentation"))
        open_loader("coco", batch_size=256, fields=transform.needed_fields, transform=transform)

    An object that albumentations leaves out, because of `min_visibility` for instance, is left out of every column.
    `label_fields` may name columns. The transform runs in separate processes, one for each decoding thread. There, the
    sample's own generator seeds the transform's, Python's and NumPy's for each call.

    Args:
        augment: A transform to an image of the same size, uint8. Boxes need a Compose with the format `coco`, and
            keypoints one with `A.KeypointParams("xy", remove_invisible=False)`.
        fields: Fields that are annotations; None: the image is augmented alone.

    Raises:
        UsageError: `augment` is not a transform of albumentations, or does not take boxes or keypoints in the form that
            fields have.
    """

    def __init__(self, augment: Any, fields: AnnotationFields | None = None) -> None:
        super().__init__(fields)
        if not callable(augment) or not hasattr(augment, "set_random_state"):
            raise UsageError(f"augment must be a transform of albumentations 2 or newer, got {augment!r}")
        self._augment = augment
        self._label_fields: tuple[str, ...] = ()
        if fields is not None:
            self._check_params(fields)

    def _draw(
        self, seed: int, image_HWC: NDArray[np.uint8], annotations: Annotations
    ) -> tuple[NDArray[np.uint8], Annotations]:
        given = {"image": image_HWC.copy(), **self._arrays(annotations)}
        # A seed would give each transform its own generator, and all of them would draw the same numbers.
        self._augment.set_random_state(np.random.default_rng(seed), random.Random(seed))
        result = self._augment(**given)
        augmented_HWC = result["image"]
        return augmented_HWC, _from_arrays(result, annotations, augmented_HWC)

    def _check_params(self, fields: AnnotationFields) -> None:
        processors = getattr(self._augment, "processors", {})
        boxes, points = (getattr(processors.get(name), "params", None) for name in ("bboxes", "keypoints"))
        if fields.boxes:
            if boxes is None or boxes.format != "coco":
                got = "no bbox_params" if boxes is None else f"format {boxes.format!r}"
                raise UsageError(f'boxes need an A.Compose with bbox_params=A.BboxParams("coco"), got {got}')
            self._label_fields = tuple(boxes.label_fields or ())
        if fields.keypoints and (points is None or points.format != "xy" or points.remove_invisible):
            got = (
                f"format {points.format!r}, remove_invisible={points.remove_invisible}"
                if points
                else "no keypoint_params"
            )
            raise UsageError(
                "keypoints need an A.Compose with keypoint_params=A.KeypointParams("
                f'"xy", remove_invisible=False), got {got}'
            )

    def _arrays(self, annotations: Annotations) -> dict[str, object]:
        """Return annotations in albumentations' form; boxes and points carry their positions in one more column."""
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


def _from_arrays(result: Mapping[str, Any], given: Annotations, image_HWC: NDArray[np.uint8]) -> Annotations:
    """Return the remaining annotations: objects whose boxes remain, or all if there are no boxes."""
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
