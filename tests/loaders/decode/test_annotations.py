"""Boxes, masks and keypoints stay with the pixels that they mark, through the loader's crop and a transform."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest

from dataprep.builder.images import ImagePolicy
from dataprep.errors import FormatError, UsageError
from loaders import (
    AlbumentationsTransform,
    AnnotationFields,
    Annotations,
    AnnotationTransform,
    Packs,
    TorchvisionTransform,
    mixture,
    open_loader,
    open_packs,
)
from loaders.config import LoaderConfig
from loaders.decode.annotations import FieldsTransform, carried
from loaders.decode.boxes import RowView
from loaders.samples.source import Samples
from tests.support.markdown import blocks
from tests.support.marked import PEOPLE, delivered, misplaced_in
from tests.support.on_use import on_use
from tests.support.own_data import build_own, picture, write_files

albumentations = on_use("albumentations")
v2 = on_use("torchvision.transforms.v2")
WHOLE = RowView(100, 200, 0, 0, 100, 200, 100, 200, 0, 0, False, 100)
BOXES = AnnotationFields(size=None)


class Both(AnnotationTransform):
    """Both libraries, one after the other; a module's class, so that worker processes find it."""

    def __init__(self) -> None:
        super().__init__(PEOPLE)
        affine = v2.Compose([v2.ColorJitter(0.4), v2.RandomAffine(10), v2.SanitizeBoundingBoxes()])
        flips = albumentations.Compose(
            [albumentations.D4(p=1.0), albumentations.GaussNoise()],
            bbox_params=albumentations.BboxParams("coco", min_visibility=0.5),
            keypoint_params=albumentations.KeypointParams("xy", remove_invisible=False),
        )
        self._steps = TorchvisionTransform(affine, PEOPLE), AlbumentationsTransform(flips, PEOPLE)

    def augment(self, image_HWC, annotations, rng):
        for step in self._steps:
            image_HWC, annotations = step.augment(image_HWC, annotations, rng)
        return image_HWC, annotations


class Inverted(AnnotationTransform):
    """A transform of one's own, which also changes a column."""

    def augment(self, image_HWC, annotations, rng):
        annotations.others["id"][:] = [-number for number in annotations.others["id"]]
        return 255 - image_HWC, annotations


# In batches


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord", "imagefolder"])
def test_annotations_are_carried_in_every_format(marked, fmt):
    found = misplaced_in(marked(fmt), transform=AnnotationTransform(PEOPLE), epochs=3)
    assert found["objects"] >= 40
    assert found["corners"] >= 60


def test_annotations_are_carried_through_an_evaluation(marked):
    found = misplaced_in(marked(), transform=AnnotationTransform(PEOPLE), shuffle=False, epochs=1)
    assert (found["objects"], found["corners"]) == (16, 64)


def test_annotations_of_a_dataset_of_smaller_images_are_scaled(marked):
    small = marked(images={"short_side": 64})
    assert misplaced_in(small, transform=AnnotationTransform(PEOPLE), epochs=1, tolerance=3.0)["objects"] >= 12


def test_objects_outside_are_left_out_of_every_column(marked):
    """The second object of each image has no area; a rectangle that is cut off is left out by its visibility."""
    counts = []
    for share in (0.0, 1.0):
        wanted = AnnotationFields(min_visibility=share)
        with open_loader(
            marked(), batch_size=16, scale=(0.1, 0.2), fields=wanted.names, transform=AnnotationTransform(wanted)
        ) as loader:
            (batch,) = loader
        rows = batch.fields["objects"]
        assert all(len({len(values) for values in row.values()}) == 1 for row in rows)
        assert all(number % 2 for row in rows for number in row["id"])
        assert all(row["bbox"].shape == (len(row["id"]), 4) for row in rows)
        assert {type(text) for row in rows for text in row["segmentation"]} <= {str}
        counts.append(sum(len(row["id"]) for row in rows))
    assert 16 >= counts[0] > counts[1]


def test_results_are_the_same_for_any_number_of_ranks_and_threads(marked):
    settings = {"image_size": 64, "fields": PEOPLE.names, "transform": Both()}
    one = delivered(marked(), steps=4, threads=1, **settings)
    assert len(one) == 32
    copied = pickle.loads(pickle.dumps(Both()))
    assert delivered(marked("tfrecord"), steps=4, threads=3, world_size=2, **settings | {"transform": copied}) == one
    assert delivered(marked(), steps=4, threads=1, **settings | {"transform": AnnotationTransform(PEOPLE)}) != one


def test_worker_processes_deliver_the_same_annotations(marked):
    settings = {"image_size": 64, "fields": PEOPLE.names, "transform": AnnotationTransform(PEOPLE)}
    assert delivered(marked(), steps=3, processes=2, **settings) == delivered(marked(), steps=3, **settings)


@pytest.mark.long
def test_both_libraries_give_the_same_results_in_worker_processes(marked):
    """Each process imports both libraries for seconds."""
    settings = {"image_size": 64, "fields": PEOPLE.names, "transform": Both()}
    one = delivered(marked(), steps=4, threads=1, **settings)
    for processes in (1, 2):
        assert delivered(marked(), steps=4, threads=2, processes=processes, **settings) == one


def test_samples_and_mixtures_have_the_annotations_of_batches(marked):
    settings = {"image_size": 48, "fields": PEOPLE.names, "transform": Inverted(PEOPLE)}
    with open_loader(marked(), batch_size=4, **settings) as loader:
        batch = next(iter(loader))
    sample = Samples.open(marked(), **settings)[2]
    expected = batch.fields["person_keypoints"][2]
    with open_loader(mixture([(marked(), 1)]), batch_size=4, **settings) as mixed:
        mixed_batch = next(iter(mixed))
    for image, objects in (
        (sample["image"], sample["fields"]["person_keypoints"]),
        (mixed_batch.images[2], mixed_batch.fields["person_keypoints"][2]),
    ):
        assert (image == batch.images[2]).all()
        assert (objects["segmentation"] == expected["segmentation"]).all()
        assert (objects["id"], max(objects["id"]) < 0) == (expected["id"], True)


def test_the_example_of_the_documents_runs(marked, monkeypatch, tmp_path):
    (text,) = (block.text for block in blocks("docs/loaders.md") if "AlbumentationsTransform(" in block.text)
    assert (text.count('"coco", batch_size=256, image_size=448'), text.count("train_step(")) == (1, 1)
    (tmp_path / "coco").symlink_to(marked())
    monkeypatch.chdir(tmp_path)
    seen = []
    names = {"train_step": lambda images, targets: seen.append((images, targets))}
    exec(text.replace("batch_size=256, image_size=448", "batch_size=8, image_size=48"), names)  # noqa: S102
    assert len(seen) == 2
    for images, targets in seen:
        assert len(images) == len(targets) == 8
        for target in targets:
            count = len(target["labels"])
            assert (target["boxes"].shape, target["masks"].shape) == ((count, 4), (count, 48, 48))
    assert sum(len(target["labels"]) for _, targets in seen for target in targets) >= 10


# What is refused, and what a state says


def test_a_state_names_the_transform(marked):
    with open_loader(marked(), batch_size=8, fields=PEOPLE.names, transform=Inverted(PEOPLE)) as loader:
        state = loader.state_dict()
        loader.load_state_dict(state)
    with open_loader(marked(), batch_size=8, fields=PEOPLE.names, transform=AnnotationTransform(PEOPLE)) as other:
        with pytest.raises(UsageError, match=r"transform .*Inverted"):
            other.load_state_dict(state)


def test_settings_that_do_not_fit_are_refused(marked):
    transform = AnnotationTransform(PEOPLE)
    words = r"needs the fields person_keypoints, original_width, .* set fields=\('original_height', 'person_keypoints'"
    with pytest.raises(UsageError, match=words):
        LoaderConfig(batch_size=8, fields=("original_height",), transform=transform)
    with pytest.raises(UsageError, match="packs carry no annotations"):
        open_packs(
            marked(), batch_size=8, packs=Packs(patch=16, tokens=64, images=4), fields=PEOPLE.names, transform=transform
        )
    with pytest.raises(UsageError, match="a column of boxes, masks or keypoints"):
        AnnotationFields(boxes="")
    with pytest.raises(UsageError, match="min_visibility must be a share from 0 to 1, got 2"):
        AnnotationFields(min_visibility=2)
    with pytest.raises(UsageError, match=r"must be loaders\.AnnotationFields or None, got 'objects'"):
        AnnotationTransform("objects")
    assert isinstance(transform, FieldsTransform)
    assert not isinstance(len, FieldsTransform)


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord", "imagefolder"])
def test_annotations_of_a_dataset_without_sizes_are_refused_with_what_needs_none(fmt, tmp_path):
    rows = "".join(f'{{"file_name": "{n}.jpg", "objects": [{{"bbox": [1, 2, 9, 9]}}]}}\n' for n in range(2))
    pictures = {f"{number}.jpg": picture(number, size=(24, 16)) for number in range(2)}
    write_files(tmp_path / "source", {"metadata.jsonl": rows, **pictures})
    url = tmp_path / "out"
    build_own(tmp_path / "source", url, fmt, options={"images": ImagePolicy()})
    transform = AnnotationTransform(AnnotationFields())
    hint = r"; if annotations are in pixels of the stored images, AnnotationFields\(size=None\) needs no such fields$"
    settings = {"batch_size": 2, "image_size": 16, "transform": transform}
    with pytest.raises(UsageError, match=rf"set fields=\('objects', 'original_height', 'original_width'\){hint}"):
        open_loader(url, fields=("objects",), **settings)
    with pytest.raises(UsageError, match=rf"field 'original_height', expected one of .*objects.*{hint}"):
        open_loader(url, fields=transform.needed_fields, **settings)
    with pytest.raises(UsageError, match=r"field 'captoin', expected one of [^;]*$"):
        open_loader(url, fields=(*transform.needed_fields, "captoin"), **settings)
    transform = AnnotationTransform(BOXES)
    with open_loader(url, **settings | {"fields": ("objects",), "transform": transform}) as loader:
        assert next(iter(loader)).fields["objects"][0]["bbox"].shape[1:] == (4,)


@pytest.mark.parametrize(
    ("image", "fields", "words"),
    [
        (np.zeros((8, 8, 3), np.uint8), {}, r"transform gave uint8 of shape \(8, 8, 3\), expected uint8 of \(48, 48"),
        (np.zeros((48, 48, 3)), {}, r"transform gave float64 of shape"),
        (None, {"caption": "a cat"}, "transform gave the fields caption, expected only those that it needs"),
    ],
)
def test_other_sizes_and_fields_are_refused(marked, image, fields, words):
    class Odd(AnnotationTransform):
        def transform_fields(self, image_HWC, stored, view, rng):
            return (image_HWC if image is None else image), fields

    settings = {"batch_size": 8, "image_size": 48, "fields": PEOPLE.names, "transform": Odd(PEOPLE)}
    with open_loader(marked(), **settings) as loader, pytest.raises((FormatError, UsageError), match=words):
        next(iter(loader))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Pictures of one's own with boxes and polygons, of which one is no JSON."""
    folder = tmp_path_factory.mktemp("damaged")
    files: dict[str, bytes | str] = {f"{number}.jpg": picture(number) for number in range(6)}
    lines = [
        {"file_name": f"{number}.jpg", "objects": [{"bbox": [1.5, 2.0, 9.0, 8.0], "outline": "[[2, 2, 9, 2, 9, 9]]"}]}
        for number in range(6)
    ]
    lines[3]["objects"][0]["outline"] = "[[2, 2"
    files["metadata.jsonl"] = "\n".join(map(json.dumps, lines))
    build_own(write_files(folder / "source", files), folder / "out", options={"images": ImagePolicy()})
    return folder / "out"


def test_annotations_that_cannot_be_read_are_an_error_in_their_image(damaged):
    wanted = AnnotationFields(masks="outline", size=None)
    settings = {"batch_size": 6, "image_size": 16, "fields": wanted.names, "transform": AnnotationTransform(wanted)}
    with open_loader(damaged, **settings, shuffle=False) as loader:
        with pytest.raises(FormatError, match=r"tar: 3: field objects: segmentation '\[\[2, 2' is not JSON"):
            next(iter(loader))
    with open_loader(damaged, **settings, shuffle=False, on_error="skip", views=True) as loader:
        (batch,) = loader
        assert loader.stats()["skipped"] == {"FormatError": 1}
    (skipped,) = np.flatnonzero(~batch.mask)
    assert batch.keys[skipped] == "3"
    assert not batch.images[skipped].any()
    assert [view is None for view in batch.views] == (~batch.mask).tolist()
    left = [objects["outline"] for row, objects in enumerate(batch.fields["objects"]) if row != skipped]
    assert all(masks.shape == (1, 16, 16) and masks.any() for masks in left)


# One image


def test_columns_are_carried_and_chosen():
    columns = {
        "bbox": [[10, 20, 30, 40], [150, 0, 10, 10], [90, 0, 20, 10]],
        "label": [5, 6, 7],
        "keypoints": [[[15, 30, 2]], [[155, 5, 2]], [[105, 5, 1]]],
    }
    wanted = AnnotationFields(objects="people", keypoints="keypoints", size=None, flip_pairs=())
    found = carried({"people": columns}, wanted, WHOLE)
    assert found.boxes.tolist() == [[10, 20, 30, 40], [90, 0, 10, 10]]
    assert found.keypoints.tolist() == [[[15, 30, 2]], [[0, 0, 0]]]
    assert (found.masks, found.others, len(found)) == (None, {"label": [5, 7]}, 2)
    last = found.take([1])
    assert (last.boxes.tolist(), last.keypoints.shape, last.others) == ([[90, 0, 10, 10]], (1, 1, 3), {"label": [7]})
    assert found.take([]).boxes.shape == (0, 4)
    points_alone = AnnotationFields(objects="people", boxes="", keypoints="keypoints", size=None, flip_pairs=())
    assert len(carried({"people": columns}, points_alone, WHOLE)) == 3
    nothing = carried({"people": {name: [] for name in columns}}, wanted, WHOLE)
    assert (nothing.boxes.shape, nothing.keypoints.shape, len(nothing)) == ((0, 4), (0, 0, 3), 0)
    assert len(Annotations(others={})) == 0


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([{"bbox": [1, 2, 3, 4]}], "objects: list, expected columns with a list"),
        ({"bbox": 7}, "objects: dict, expected columns with a list"),
        ({"label": [1], "area": [2]}, "no column bbox; it has area, label"),
        ({"bbox": [[1, 2, 3, 4]], "label": []}, r"columns of \[0, 1\] values"),
        ({"bbox": [[1, 2, 3]]}, r"boxes must have the shape \(N, 4\)"),
        ({"bbox": [[1, 2, 3, 4], [1]]}, "field objects: .*inhomogeneous"),
        ({"bbox": [["a", 2, 3, 4]]}, "field objects: could not convert"),
        ({"bbox": [[1, 2, 3, float("nan")]]}, "column bbox has values that are no finite numbers"),
    ],
)
def test_what_holds_no_annotations_is_refused(objects, words):
    with pytest.raises(FormatError, match=words):
        carried({"objects": objects}, BOXES, WHOLE)


@pytest.mark.parametrize(
    ("height", "words"),
    [("tall", "invalid literal"), (-2, "an image of 3x-2 pixels"), (float("inf"), "infinity"), ([1], "int()")],
)
def test_a_size_that_no_image_has_is_refused(height, words):
    with pytest.raises(FormatError, match=f"^field objects: .*{re.escape(words)}"):
        carried({"objects": {"bbox": []}, "h": height, "w": 3}, AnnotationFields(size=("h", "w")), WHOLE)


def test_boxes_of_pictures_that_a_build_has_shrunk_are_scaled_by_their_own_sizes(tmp_path):
    row = {"file_name": "0.jpg", "objects": [{"bbox": [8, 16, 32, 16]}], "original_height": 64, "original_width": 64}
    write_files(tmp_path / "in", {"0.jpg": picture(0, size=(64, 64)), "metadata.jsonl": json.dumps(row)})
    build_own(tmp_path / "in", tmp_path / "out", options={"images": ImagePolicy(short_side=32), "num_shards": 1})
    transform = AnnotationTransform(AnnotationFields())
    settings = {"image_size": 32, "resize": 32, "shuffle": False, "transform": transform}
    with open_loader(tmp_path / "out", batch_size=1, fields=transform.needed_fields, **settings) as loader:
        (batch,) = loader
    assert batch.fields["objects"][0]["bbox"].tolist() == [[4, 8, 16, 8]]
