"""Transforms of `torchvision.transforms.v2` as a loader's `transform`, with boxes, masks and keypoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dataprep.errors import UsageError
from loaders.decode.annotations import AnnotationFields, Annotations, AnnotationTransform, placed_keypoints
from loaders.decode.seeding import SeededTransform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HALF_PIXEL = 0.5
"""Middle of a pixel: torchvision's flips count points by the middles of pixels, where boxes are positions."""


class TorchvisionTransform(SeededTransform, AnnotationTransform):
    """Turn a transform of `torchvision.transforms.v2` into a loader's `transform`.

        from torchvision.transforms import v2
        open_loader(url, batch_size=1024, transform=TorchvisionTransform(v2.RandAugment()))

    Without `fields` it gets the image, a `tv_tensors.Image` of uint8. With them it gets a dictionary of `image`,
    `boxes`, `masks` and `keypoints`, as tv_tensors, and `labels`, the position of each object: what
    `v2.SanitizeBoundingBoxes` leaves out is left out of every column. The transform runs in processes of its own, one
    for each decoding thread, where the generators of Python, NumPy and PyTorch are seeded from the sample's own one for
    each call.

    Args:
        augment: Picklable transform to an image of the same size, uint8.
        fields: Which fields are annotations; None: the image is augmented alone.
    """

    def __init__(self, augment: Callable[..., Any], fields: AnnotationFields | None = None) -> None:
        super().__init__(fields)
        if not callable(augment):
            raise UsageError(f"augment must be a transform of torchvision.transforms.v2, got {augment!r}")
        self._augment = augment

    def augment(
        self, image_HWC: NDArray[np.uint8], annotations: Annotations, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], Annotations]:
        """Augment an image with its annotations; without `fields` the image alone."""
        result: tuple[NDArray[np.uint8], Annotations] = self._seeded(rng, image_HWC, annotations)
        return result

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
        return augmented_HWC, _annotations(result, annotations, augmented_HWC)


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


def _annotations(result: Mapping[str, Any], given: Annotations, image_HWC: NDArray[np.uint8]) -> Annotations:
    """Return what is left of annotations, whose positions are the labels of the result."""
    import numpy as np
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
    import numpy as np

    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels.transpose(1, 2, 0) if pixels.ndim == len("CHW") else pixels
