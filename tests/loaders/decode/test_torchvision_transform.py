"""Transforms of torchvision move boxes, masks and keypoints with the pixels, and draw from the sample's generator."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from dataprep.errors import FormatError, UsageError
from loaders import AnnotationFields, Annotations, TorchvisionTransform, Views, open_loader
from tests.support.marked import PEOPLE, misplaced_in
from tests.support.on_use import on_use

tv_tensors = on_use("torchvision.tv_tensors")
transforms = on_use("torchvision.transforms")
v2 = on_use("torchvision.transforms.v2")
FIELDS = AnnotationFields(masks="mask", keypoints="points", size=None)


def annotations(count: int = 3) -> Annotations:
    """Some objects in a row of 32 pixels."""
    boxes = np.array([[1, 2, 5, 6], [10, 10, 8, 8], [0, 20, 32, 12]], float)[:count]
    masks = np.zeros((count, 32, 32), np.uint8)
    for mask, (x, y, width, height) in zip(masks, boxes.astype(int), strict=True):
        mask[y : y + height, x : x + width] = 1
    points = np.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:] - 1], axis=1)
    keypoints = np.concatenate([points, np.full((count, 2, 1), 2.0)], axis=2)
    return Annotations(boxes=boxes, masks=masks, keypoints=keypoints, others={"label": [5, 6, 7][:count]})


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (32, 32, 3), np.uint8)


def test_rectangles_stay_with_their_annotations(marked):
    augment = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomAffine(15, translate=(0.1, 0.1), scale=(0.8, 1.1)),
            v2.ColorJitter(brightness=0.2),
            v2.SanitizeBoundingBoxes(),
        ]
    )
    found = misplaced_in(marked(), transform=TorchvisionTransform(augment, PEOPLE), epochs=4, tolerance=2.5)
    assert found["objects"] >= 56
    assert found["corners"] >= 80


@pytest.mark.parametrize(("flip", "axis"), [("RandomHorizontalFlip", 1), ("RandomVerticalFlip", 0)])
def test_a_flip_is_exact(flip, axis):
    given, image = annotations(), noise()
    transform = TorchvisionTransform(getattr(v2, flip)(1.0), FIELDS)
    flipped, found = transform.augment(image, given, np.random.default_rng(0))
    assert (flipped == np.flip(image, axis)).all()
    assert (found.masks == np.flip(given.masks, axis + 1)).all()
    at = 1 - axis
    assert found.boxes[:, at].tolist() == (32 - given.boxes[:, at] - given.boxes[:, at + 2]).tolist()
    # A point at 0 is at 32 afterwards, which is outside.
    expected = np.where(given.keypoints[..., at] > 0, 32 - given.keypoints[..., at], 0)
    assert found.keypoints[..., at].tolist() == expected.tolist()
    assert found.others == given.others


def test_keypoints_are_rotated_to_a_fifth_of_a_pixel():
    """Ten degrees, clockwise around the middle, as the documents say."""
    given = annotations()
    _, found = TorchvisionTransform(v2.RandomAffine((10, 10)), FIELDS).augment(noise(), given, np.random.default_rng(0))
    cos, sin = np.cos(np.radians(10)), np.sin(np.radians(10))
    expected = (given.keypoints[..., :2] - 16) @ np.array([[cos, sin], [-sin, cos]]) + 16
    inside = found.keypoints[..., 2] > 0
    assert inside.sum() == 3
    errors = np.hypot(*(found.keypoints[inside][:, :2] - expected[inside]).T)
    assert errors.max() < 0.2


def test_objects_that_are_sanitized_are_left_out_of_every_column():
    """Two objects are too small."""
    augment = v2.Compose([v2.ColorJitter(0.4), v2.SanitizeBoundingBoxes(min_area=70)])
    _, found = TorchvisionTransform(augment, FIELDS).augment(noise(), annotations(), np.random.default_rng(0))
    assert found.others == {"label": [7]}
    assert (found.boxes.tolist(), found.masks.shape, found.keypoints.shape) == (
        [[0, 20, 32, 12]],
        (1, 32, 32),
        (1, 2, 3),
    )
    assert found.masks.sum() == 32 * 12


def test_images_without_objects_are_augmented():
    augment = v2.Compose([v2.RandomAffine(10), v2.SanitizeBoundingBoxes()])
    _, found = TorchvisionTransform(augment, FIELDS).augment(noise(), annotations(0), np.random.default_rng(0))
    assert (found.boxes.shape, found.masks.shape, found.keypoints.shape) == ((0, 4), (0, 32, 32), (0, 2, 3))


def test_boxes_of_another_format_come_back_as_they_were():
    augment = v2.ConvertBoundingBoxFormat("CXCYWH")
    _, found = TorchvisionTransform(augment, FIELDS).augment(noise(), annotations(), np.random.default_rng(0))
    assert found.boxes.tolist() == annotations().boxes.tolist()


@pytest.mark.parametrize(("augment", "strengths"), [("RandAugment", ()), ("ColorJitter", (0.4, 0.4, 0.4, 0.1))])
def test_images_are_augmented_alone_by_their_own_random_numbers(augment, strengths):
    transform, image = TorchvisionTransform(getattr(v2, augment)(*strengths)), noise()
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    first = [transform(image, np.random.default_rng(number)) for number in range(8)]
    assert (torch.get_rng_state() == before[0]).all()
    assert random.getstate() == before[1]
    again = [transform(image, np.random.default_rng(number)) for number in range(8)]
    assert all((one == other).all() for one, other in zip(first, again, strict=True))
    assert len({each.tobytes() for each in first}) >= 4
    assert {(each.shape, each.dtype) for each in first} == {(image.shape, image.dtype)}
    assert (image == noise()).all()


def test_a_loader_takes_randaugment_in_one_line(marked):
    """The image alone is augmented, so no field is needed."""
    with open_loader(marked(), batch_size=8, image_size=48, transform=TorchvisionTransform(v2.RandAugment())) as loader:
        augmented = next(iter(loader))
    with open_loader(marked(), batch_size=8, image_size=48) as loader:
        plain = next(iter(loader))
    assert augmented.keys == plain.keys
    assert (augmented.images != plain.images).any()


def test_another_size_is_an_error(marked):
    settings = {"batch_size": 8, "image_size": 48, "fields": PEOPLE.names}
    with open_loader(marked(), **settings, transform=TorchvisionTransform(v2.Resize((32, 32)), PEOPLE)) as loader:
        with pytest.raises(FormatError, match=r"transform gave uint8 of shape \(32, 32, 3\), expected uint8 of \(48, "):
            next(iter(loader))


@pytest.mark.parametrize(
    "make", [lambda: v2.Compose([v2.RandAugment()]), lambda: transforms.Compose([]), lambda: v2.RandAugment()]
)
def test_a_transform_of_the_library_itself_is_refused_before_anything_is_opened(make):
    name = type(make()).__name__
    message = (
        rf"transform must be a function \(image_HWC, rng\) -> image_HWC, got {name} of torchvision; "
        r"wrap it: loaders\.TorchvisionTransform\(transform\)$"
    )
    with pytest.raises(UsageError, match=f"^{message}"):
        open_loader("nowhere", batch_size=8, transform=make())
    with pytest.raises(UsageError, match=f"^views: {message}"):
        Views(transform=make())


def test_a_transform_that_normalises_is_told_where_to_do_so(marked):
    augment = TorchvisionTransform(v2.ToDtype(torch.float32, scale=True))
    with open_loader(marked(), batch_size=8, image_size=48, transform=augment) as loader:
        with pytest.raises(FormatError, match=r"gave float32 .*; normalise on the device: loaders\.torch\.normalize"):
            next(iter(loader))


def without_a_box(sample):
    return {**sample, "boxes": tv_tensors.wrap(sample["boxes"][1:], like=sample["boxes"])}


def the_image_alone(sample):
    return sample["image"]


def without_annotations(sample):
    return {"image": sample["image"]}


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (without_a_box, 'left 2 boxes and 3 labels of 3 objects; leave objects out with v2.*labels_getter="default"'),
        (the_image_alone, "gave Image, expected its dictionary back"),
        (without_annotations, "gave dict, expected its dictionary back"),
    ],
)
def test_results_that_cannot_be_delivered_are_refused(augment, words):
    with pytest.raises(UsageError, match=words):
        TorchvisionTransform(augment, FIELDS).augment(noise(), annotations(), np.random.default_rng(0))


def test_what_is_no_transform_is_refused():
    with pytest.raises(UsageError, match=r"augment must be a transform of torchvision\.transforms\.v2, got 7"):
        TorchvisionTransform(7)
