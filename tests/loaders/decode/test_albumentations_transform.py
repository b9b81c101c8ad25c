"""albumentations moves boxes, masks and keypoints with the pixels, and draws from the sample's generator."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from dataprep.errors import FormatError, UsageError
from loaders import AlbumentationsTransform, AnnotationFields, Annotations, open_loader
from tests.support.marked import PEOPLE, misplaced_in
from tests.support.on_use import on_use

A = on_use("albumentations")
FIELDS = AnnotationFields(masks="mask", keypoints="points", size=None)


def composed(*transforms: object, **params: object) -> object:
    """A Compose for all kinds of annotations; params are those of boxes."""
    points = A.KeypointParams("xy", remove_invisible=False)
    return A.Compose(list(transforms), bbox_params=A.BboxParams("coco", **params), keypoint_params=points)


def annotations(count: int = 3) -> Annotations:
    """Some objects in a row of 32 pixels; the last of two points has no label."""
    boxes = np.array([[1, 2, 5, 6], [10, 10, 8, 8], [0, 20, 32, 12]], float)[:count]
    masks = np.zeros((count, 32, 32), np.uint8)
    for mask, (x, y, width, height) in zip(masks, boxes.astype(int), strict=True):
        mask[y : y + height, x : x + width] = 1
    keypoints = np.zeros((count, 2, 3))
    keypoints[:, 0, :2], keypoints[:, 0, 2] = boxes[:, :2], 2
    return Annotations(boxes=boxes, masks=masks, keypoints=keypoints, others={"label": [5, 6, 7][:count]})


def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)


def test_rectangles_stay_with_their_annotations(marked):
    augment = composed(
        A.D4(p=1.0),
        A.Affine(rotate=(-15, 15), scale=(0.8, 1.1), translate_percent=(-0.1, 0.1), p=1.0),
        A.RandomBrightnessContrast(0.2, 0.0),
        min_visibility=0.1,
    )
    found = misplaced_in(marked(), transform=AlbumentationsTransform(augment, PEOPLE), epochs=6)
    assert found["objects"] >= 84
    assert found["corners"] >= 120


@pytest.mark.parametrize(("flip", "axis"), [("HorizontalFlip", 1), ("VerticalFlip", 0)])
def test_a_flip_is_exact(flip, axis):
    given, image = annotations(), noise()
    transform = AlbumentationsTransform(composed(getattr(A, flip)(p=1.0)), FIELDS)
    flipped, found = transform.augment(image, given, np.random.default_rng(0))
    assert (flipped == np.flip(image, axis)).all()
    assert (found.masks == np.flip(given.masks, axis + 1)).all()
    at = 1 - axis
    assert found.boxes[:, at] == pytest.approx(32 - given.boxes[:, at] - given.boxes[:, at + 2], abs=1e-4)
    # A point at 0 is at 32 afterwards, which is outside.
    expected = np.where(given.keypoints[:, 0, at] > 0, 32 - given.keypoints[:, 0, at], 0)
    assert found.keypoints[:, 0, at] == pytest.approx(expected, abs=1e-4)
    assert (found.keypoints[:, 1] == 0).all()
    assert found.others == given.others


def test_objects_that_are_left_out_are_left_out_of_every_column():
    transform = AlbumentationsTransform(composed(A.NoOp(), min_area=100, label_fields=["label"]), FIELDS)
    _, found = transform.augment(noise(), annotations(), np.random.default_rng(0))
    assert found.others == {"label": [7]}
    assert found.boxes == pytest.approx(np.array([[0, 20, 32, 12]]))
    assert (found.masks.shape, int(found.masks.sum()), found.keypoints.shape) == ((1, 32, 32), 32 * 12, (1, 2, 3))
    _, nothing = AlbumentationsTransform(composed(A.NoOp(), min_area=9999), FIELDS).augment(
        noise(), annotations(), np.random.default_rng(0)
    )
    assert (nothing.boxes.shape, nothing.masks.shape, nothing.others) == ((0, 4), (0, 32, 32), {"label": []})


def test_images_without_objects_are_augmented():
    transform = AlbumentationsTransform(composed(A.Affine(rotate=(-9, 9), p=1.0)), FIELDS)
    augmented, found = transform.augment(noise(), annotations(0), np.random.default_rng(0))
    assert (augmented != noise()).any()
    assert (found.boxes.shape, found.masks.shape, found.keypoints.shape) == ((0, 4), (0, 32, 32), (0, 2, 3))


def test_transforms_draw_independently_of_each_other_and_of_earlier_calls():
    """A seed of albumentations makes all transforms of a Compose draw the same numbers."""
    transform = AlbumentationsTransform(A.Compose([A.HorizontalFlip(), A.VerticalFlip()]))
    image, kinds = noise(), {}
    kinds |= {noise()[:, ::-1].tobytes(): "h", noise()[::-1].tobytes(): "v", noise()[::-1, ::-1].tobytes(): "both"}
    first = [transform(image, np.random.default_rng(number)) for number in range(40)]
    assert {kinds.get(each.tobytes(), "none") for each in first} == {"none", "h", "v", "both"}
    again = [transform(image, np.random.default_rng(number)) for number in reversed(range(40))]
    assert all((one == other).all() for one, other in zip(first, reversed(again), strict=True))
    copied = pickle.loads(pickle.dumps(transform))
    assert all((copied(image, np.random.default_rng(number)) == each).all() for number, each in enumerate(first))
    assert (image == noise()).all()


def test_the_global_generators_are_left_as_they_were():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    AlbumentationsTransform(A.GaussNoise(p=1.0))(noise(), np.random.default_rng(7))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize("make", [lambda: A.Compose([A.ColorJitter()]), lambda: A.ColorJitter()])
def test_a_transform_of_the_library_itself_is_refused_before_anything_is_opened(make):
    wrapped = r"got \w+ of albumentations; wrap it: loaders\.AlbumentationsTransform\(transform\)$"
    with pytest.raises(UsageError, match=rf"^transform must be a function .*, {wrapped}"):
        open_loader("nowhere", batch_size=8, transform=make())


def test_another_size_is_an_error(marked):
    boxes = AnnotationFields()
    augment = A.Compose([A.RandomCrop(32, 32)], bbox_params=A.BboxParams("coco"))
    settings = {"batch_size": 8, "image_size": 48, "fields": boxes.names}
    with open_loader(marked(), **settings, transform=AlbumentationsTransform(augment, boxes)) as loader:
        with pytest.raises(FormatError, match=r"transform gave uint8 of shape \(32, 32, 3\), expected uint8 of \(48, "):
            next(iter(loader))


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (lambda: 7, "must be a transform of albumentations 2 or newer, got 7"),
        (lambda: np.flip, "must be a transform of albumentations 2 or newer"),
        (lambda: A.HorizontalFlip(), r'boxes need an A\.Compose with bbox_params=A\.BboxParams\("coco"\)'),
        (lambda: A.Compose([A.HorizontalFlip()], bbox_params=A.BboxParams("yolo")), "got other bbox_params"),
        (lambda: A.Compose([A.HorizontalFlip()], bbox_params=A.BboxParams("coco")), r"keypoints need an A\.Compose"),
        (
            lambda: A.Compose(
                [A.HorizontalFlip()], bbox_params=A.BboxParams("coco"), keypoint_params=A.KeypointParams("xy")
            ),
            r'KeypointParams\("xy", remove_invisible=False\), got other',
        ),
    ],
)
def test_what_takes_no_annotations_is_refused(augment, words):
    with pytest.raises(UsageError, match=words):
        AlbumentationsTransform(augment(), FIELDS)


def test_label_fields_name_columns():
    transform = AlbumentationsTransform(composed(A.HorizontalFlip(), label_fields=["labels"]), FIELDS)
    with pytest.raises(UsageError, match="label_fields: no column labels; there are label"):
        transform.augment(noise(), annotations(), np.random.default_rng(0))
