"""timm's augmentation through `transform`, and captions through `fields`: the same for any number of workers."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from dataprep.errors import FormatError, UsageError
from loaders import AlbumentationsTransform, AnnotationFields, Annotations, TorchvisionTransform, Views, open_loader
from loaders.decode.transforms import PilTransform
from tests.support.builds import dataprep
from tests.support.forked_transforms import forked_transforms  # noqa: F401
from tests.support.loading import load
from tests.support.marked import PEOPLE, misplaced_in
from tests.support.on_use import on_use

torch = on_use("torch")
rand_augment_transform = on_use("timm.data.auto_augment:rand_augment_transform")
ShardWriter = on_use("webdataset:ShardWriter")
WRITE_TFRECORD = """
import pickle, sys
import tensorflow as tf
with tf.io.TFRecordWriter(sys.argv[1]) as writer:
    for key, image, caption in pickle.load(sys.stdin.buffer):
        values = {"key": key.encode(), "jpg": image, "caption": caption.encode()}
        features = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in values.items()
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writer.write(example.SerializeToString())
"""
"""TensorFlow has a process of its own: it must not meet torch_xla."""
pytestmark = pytest.mark.usefixtures("forked_transforms")
SETTINGS = {"batch_size": 12, "image_size": 64}


def test_timms_augmentation_is_the_same_for_any_number_of_workers(dataset):
    """Threads, and one process; the soak has 1, 2 and 4."""
    augmented_alike(dataset("webdataset"), processes=(1,))


def augmented_alike(url: object, *, processes: tuple[int, ...]) -> None:
    settings = {**SETTINGS, "transform": PilTransform(rand_augment_transform("rand-m9-mstd0.5-inc1", {}))}
    one = load(url, 8, **settings, threads=1)
    assert [digest for _, digest in one] != [digest for _, digest in load(url, 8, **SETTINGS)]
    assert load(url, 8, **settings, threads=2) == one
    for number in processes:
        assert load(url, 8, **settings, threads=1, processes=number) == one


@pytest.fixture(params=["webdataset", pytest.param("tfrecord", marks=pytest.mark.long)])
def captioned(request, dataset, tmp_path):
    """Thirty images with captions, as other tools write them."""
    with open_loader(str(dataset("imagefolder")), batch_size=1) as loader:
        root = loader.dataset.storage
    files = [info.name for info in root.list("train/")][:30]
    samples = [(f"{number:05d}", root.read(name), f"caption {number} – ☃") for number, name in enumerate(files)]
    if request.param == "webdataset":
        with ShardWriter(str(tmp_path / "%05d.tar"), maxcount=10, verbose=0) as writer:
            for key, image, caption in samples:
                writer.write({"__key__": key, "jpg": image, "txt": caption})
    else:
        program = [sys.executable, "-c", WRITE_TFRECORD, str(tmp_path / "00000.tfrecord")]
        subprocess.run(program, input=pickle.dumps(samples), check=True)
    run = dataprep("adopt", tmp_path)
    assert run.returncode == 0, run.stderr
    return tmp_path, {key: caption for key, _, caption in samples}


def test_captions_are_delivered_with_their_images(captioned):
    url, captions = captioned
    for processes in (0, 2):
        with open_loader(str(url), batch_size=10, image_size=32, fields=("caption",), processes=processes) as loader:
            found = {}
            for batch in loader:
                found |= dict(zip(batch.keys, batch.fields["caption"], strict=True))
        assert {key.rpartition("/")[2]: caption for key, caption in found.items()} == captions


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


@pytest.mark.parametrize(
    ("transform", "axis", "within"),
    [
        (lambda: TorchvisionTransform(v2.RandomHorizontalFlip(1.0), FIELDS), 1, 0),
        (lambda: TorchvisionTransform(v2.RandomVerticalFlip(1.0), FIELDS), 0, 0),
        (lambda: AlbumentationsTransform(composed(A.HorizontalFlip(p=1.0)), FIELDS), 1, 1e-4),
        (lambda: AlbumentationsTransform(composed(A.VerticalFlip(p=1.0)), FIELDS), 0, 1e-4),
    ],
    ids=["torchvision-1", "torchvision-0", "albumentations-1", "albumentations-0"],
)
def test_a_flip_is_exact(transform, axis, within):
    given, image = annotations(), noise()
    flipped, found = transform().augment(image, given, np.random.default_rng(0))
    assert (flipped == np.flip(image, axis)).all()
    assert (found.masks == np.flip(given.masks, axis + 1)).all()
    at = 1 - axis
    assert found.boxes[:, at] == pytest.approx(32 - given.boxes[:, at] - given.boxes[:, at + 2], rel=0, abs=within)
    # A point at 0 is at 32 afterwards, which is outside.
    expected = np.where(given.keypoints[..., at] > 0, 32 - given.keypoints[..., at], 0)
    assert found.keypoints[..., at] == pytest.approx(expected, rel=0, abs=within)
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


@pytest.mark.parametrize(
    ("library", "wrapper", "make"),
    [
        ("torchvision", "TorchvisionTransform", lambda: v2.Compose([v2.RandAugment()])),
        ("torchvision", "TorchvisionTransform", lambda: transforms.Compose([])),
        ("torchvision", "TorchvisionTransform", lambda: v2.RandAugment()),
        ("albumentations", "AlbumentationsTransform", lambda: A.Compose([A.ColorJitter()])),
        ("albumentations", "AlbumentationsTransform", lambda: A.ColorJitter()),
        ("timm", "PilTransform", lambda: rand_augment_transform("rand-m9-mstd0.5", {})),
    ],
)
def test_a_transform_of_a_library_itself_is_refused_before_anything_is_opened(library, wrapper, make):
    message = (
        rf"transform must be a function \(image_HWC, rng\) -> image_HWC, got {type(make()).__name__} of {library}; "
        rf"wrap it: loaders\.{wrapper}\(transform\)$"
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


A = on_use("albumentations")


def composed(*transforms: object, **params: object) -> object:
    """A Compose for all kinds of annotations; params are those of boxes."""
    points = A.KeypointParams("xy", remove_invisible=False)
    return A.Compose(list(transforms), bbox_params=A.BboxParams("coco", **params), keypoint_params=points)


def test_rectangles_stay_with_their_annotations_albumentations(marked):
    augment = composed(
        A.D4(p=1.0),
        A.Affine(rotate=(-15, 15), scale=(0.8, 1.1), translate_percent=(-0.1, 0.1), p=1.0),
        A.RandomBrightnessContrast(0.2, 0.0),
        min_visibility=0.1,
    )
    found = misplaced_in(marked(), transform=AlbumentationsTransform(augment, PEOPLE), epochs=6)
    assert found["objects"] >= 84
    assert found["corners"] >= 120


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


def test_transforms_draw_independently_of_each_other_and_of_earlier_calls():
    """A seed of albumentations makes all transforms of a Compose draw the same numbers."""
    transform = AlbumentationsTransform(A.Compose([A.HorizontalFlip(), A.VerticalFlip()]))
    image, kinds = noise(), {}
    kinds |= {
        noise()[:, ::-1].tobytes(): "h",
        noise()[::-1].tobytes(): "v",
        noise()[::-1, ::-1].tobytes(): "both",
    }
    first = [transform(image, np.random.default_rng(number)) for number in range(40)]
    assert {kinds.get(each.tobytes(), "none") for each in first} == {"none", "h", "v", "both"}
    again = [transform(image, np.random.default_rng(number)) for number in reversed(range(40))]
    assert all((one == other).all() for one, other in zip(first, reversed(again), strict=True))
    copied = pickle.loads(pickle.dumps(transform))
    assert all((copied(image, np.random.default_rng(number)) == each).all() for number, each in enumerate(first))
    assert (image == noise()).all()


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (lambda: 7, "must be a transform of albumentations 2 or newer, got 7"),
        (lambda: np.flip, "must be a transform of albumentations 2 or newer"),
        (lambda: A.HorizontalFlip(), r'boxes need an A\.Compose with .*=A\.BboxParams\("coco"\), got no bbox_params'),
        (lambda: A.Compose([A.HorizontalFlip()], bbox_params=A.BboxParams("yolo")), "got format 'yolo'"),
        (
            lambda: A.Compose([A.HorizontalFlip()], bbox_params=A.BboxParams("coco")),
            r"keypoints need an A\.Compose .*, got no keypoint_params",
        ),
        (
            lambda: A.Compose(
                [A.HorizontalFlip()], bbox_params=A.BboxParams("coco"), keypoint_params=A.KeypointParams("xy")
            ),
            r'KeypointParams\("xy", remove_invisible=False\), got format .xy., remove_invisible=True',
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
