"""Boxes, masks and keypoints stay with the pixels that they mark, through the loader's crop and a transform."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as masks

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
from loaders.config import FieldsTransform, LoaderConfig
from loaders.decode.annotations import (
    COCO_FLIP_PAIRS,
    MAX_MASKS_BYTES,
    carried,
    transform_boxes,
    transform_keypoints,
    transform_masks,
    transform_points,
    transform_polygons,
)
from loaders.decode.crop import RandomCrop, RowView, evaluation_view, letterbox_views, train_views
from loaders.samples import Samples
from tests.support.forked_transforms import forked_transforms  # noqa: F401
from tests.support.markdown import blocks
from tests.support.marked import PEOPLE, delivered, misplaced_in
from tests.support.on_use import on_use
from tests.support.own_data import build_own, picture, write_files


@st.composite
def row_views(draw: st.DrawFn, max_side: int, max_size: int) -> RowView:
    """How a loader crops an image of any size, for training or for an evaluation."""
    height, width = draw(st.integers(1, max_side)), draw(st.integers(1, max_side))
    size = draw(st.integers(1, max_size))
    kind = draw(st.sampled_from(("crop", "evaluation", "letterbox")))
    if kind == "letterbox":
        (view,) = letterbox_views(draw(st.integers(0, 999)), [0], [(height, width)], size=size, flip=0.5)
    elif kind == "crop":
        crop = RandomCrop(scale=(0.05, 1.0))
        (view,) = train_views(
            draw(st.integers(0, 999)), [draw(st.integers(0, 999))], [height], [width], size=size, crop=crop
        )
    else:
        view = evaluation_view(height, width, size=size, resize=draw(st.integers(size, 2 * size)))
    return RowView(height, width, *view, size)


def source_of(view: RowView, row: int, column: int) -> tuple[float, float]:
    """Where the middle of a pixel of a row comes from in the image, as x and y: a loader's steps undone one by one."""
    x, y = column + 0.5, row + 0.5
    if view.flip:
        x = view.size - x
    x, y = x + view.out_left, y + view.out_top
    x, y = x / view.resized_width * view.width, y / view.resized_height * view.height
    return x + view.left, y + view.top


albumentations = on_use("albumentations")
v2 = on_use("torchvision.transforms.v2")
COMPLETE = RowView(100, 200, 0, 0, 100, 200, 100, 200, 0, 0, False, 100)
BOXES = AnnotationFields(size=None)

pytestmark = pytest.mark.usefixtures("forked_transforms")


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


@pytest.mark.parametrize("augment", [True, False])
def test_complete_images_in_a_letterbox_keep_all_objects(marked, augment):
    found = misplaced_in(marked(), transform=AnnotationTransform(PEOPLE), resize="letterbox", augment=augment)
    assert found == {"objects": 2 * 16, "corners": 2 * 16 * 4}


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
    assert delivered(marked("tfrecord"), steps=4, threads=2, world_size=2, **settings | {"transform": copied}) == one
    assert delivered(marked(), steps=4, threads=1, **settings | {"transform": AnnotationTransform(PEOPLE)}) != one


def test_worker_processes_deliver_the_same_annotations(marked):
    settings = {"image_size": 64, "fields": PEOPLE.names, "transform": AnnotationTransform(PEOPLE)}
    assert delivered(marked(), steps=3, processes=2, **settings) == delivered(marked(), steps=3, **settings)


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
    (text,) = (block.text for block in blocks("docs/batches.md") if "AlbumentationsTransform(" in block.text)
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
            count = len(target["label"])
            assert (target["bbox"].shape, target["segmentation"].shape) == ((count, 4), (count, 48, 48))
    assert sum(len(target["label"]) for _, targets in seen for target in targets) >= 10


# What is refused, and what a state says


def test_a_state_names_the_transform(marked, capsys):
    with open_loader(marked(), batch_size=8, fields=PEOPLE.names, transform=Inverted(PEOPLE)) as loader:
        state = loader.state_dict()
        loader.load_state_dict(state)
    with open_loader(marked(), batch_size=8, fields=PEOPLE.names, transform=AnnotationTransform(PEOPLE)) as other:
        other.load_state_dict(state)
    assert re.search(r"continues with other images: .*transform .*Inverted", capsys.readouterr().err)


def test_settings_that_do_not_fit_are_refused(marked):
    transform = AnnotationTransform(PEOPLE)
    words = r"needs the fields person_keypoints, original_width, .* set fields=\('original_height', 'person_keypoints'"
    with pytest.raises(UsageError, match=words):
        LoaderConfig(batch_size=8, fields=("original_height",), transform=transform)
    with pytest.raises(UsageError, match="a transform cannot change annotations of packs"):
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
        (None, {"caption": "a cat"}, "transform returned the fields caption, expected only those that it needs"),
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
    found = carried({"people": columns}, wanted, COMPLETE)
    assert found.boxes.tolist() == [[10, 20, 30, 40], [90, 0, 10, 10]]
    assert found.keypoints.tolist() == [[[15, 30, 2]], [[0, 0, 0]]]
    assert (found.masks, found.others, len(found)) == (None, {"label": [5, 7]}, 2)
    last = found.take([1])
    assert (last.boxes.tolist(), last.keypoints.shape, last.others) == ([[90, 0, 10, 10]], (1, 1, 3), {"label": [7]})
    assert found.take([]).boxes.shape == (0, 4)
    points_alone = AnnotationFields(objects="people", boxes="", keypoints="keypoints", size=None, flip_pairs=())
    assert len(carried({"people": columns}, points_alone, COMPLETE)) == 3
    nothing = carried({"people": {name: [] for name in columns}}, wanted, COMPLETE)
    assert (nothing.boxes.shape, nothing.keypoints.shape, len(nothing)) == ((0, 4), (0, 0, 3), 0)
    assert len(Annotations(others={})) == 0


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([{"bbox": [1, 2, 3, 4]}], "objects: list, expected columns with a value for each"),
        ({"bbox": 7}, "objects: dict, expected columns with a value for each"),
        ({"label": [1], "area": [2]}, "no column bbox; it has area, label"),
        ({"bbox": [[1, 2, 3, 4]], "label": []}, r"columns of \[0, 1\] values"),
        ({"bbox": [[1, 2, 3]]}, r"boxes must have the shape \(N, 4\)"),
        ({"bbox": [[1, 2, 3, 4], [1]]}, "field objects: .*inhomogeneous"),
        ({"bbox": [["a", 2, 3, 4]]}, "field objects: could not convert"),
        ({"bbox": [[1, 2, 3, float("nan")]]}, "column bbox has values that are not finite numbers"),
    ],
)
def test_what_holds_no_annotations_is_refused(objects, words):
    with pytest.raises(FormatError, match=words):
        carried({"objects": objects}, BOXES, COMPLETE)


@pytest.mark.parametrize(
    ("height", "words"),
    [("tall", "invalid literal"), (-2, "an image of 3x-2 pixels"), (float("inf"), "infinity"), ([1], "int()")],
)
def test_a_size_that_no_image_has_is_refused(height, words):
    with pytest.raises(FormatError, match=f"^field objects: .*{re.escape(words)}"):
        carried({"objects": {"bbox": []}, "h": height, "w": 3}, AnnotationFields(size=("h", "w")), COMPLETE)


@st.composite
def boxes(draw: st.DrawFn, view: RowView) -> list[float]:
    """A box somewhere around the image, with an area."""
    x, y = draw(st.integers(-9, view.image_width + 9)), draw(st.integers(-9, view.image_height + 9))
    return [x + draw(st.sampled_from([0, 0.25])), y, draw(st.integers(1, 70)), draw(st.integers(1, 70)) + 0.5]


@given(st.data())
def test_pixels_travel_where_the_box_says(data):
    """For each pixel of the row: it comes from the box if and only if it lies in the transformed box."""
    view = data.draw(row_views(60, 40))
    box = data.draw(boxes(view))
    ((x, y, width, height),) = transform_boxes([box], view, clip=False).boxes.tolist()
    clipped = transform_boxes([box], view)
    ((left, top, clipped_width, clipped_height),) = clipped.boxes.tolist()
    for row in range(view.size):
        for column in range(view.size):
            source_x, source_y = source_of(view, row, column)
            distances = (source_x - box[0], box[0] + box[2] - source_x, source_y - box[1], box[1] + box[3] - source_y)
            if min(map(abs, distances)) < 1e-6:
                continue  # on the edge, where rounding decides
            comes_from_box = min(distances) > 0
            assert (x < column + 0.5 < x + width and y < row + 0.5 < y + height) == comes_from_box
            in_clipped = left < column + 0.5 < left + clipped_width and top < row + 0.5 < top + clipped_height
            assert in_clipped == comes_from_box
    assert (clipped.boxes >= 0).all()
    assert (clipped.boxes[:, :2] + clipped.boxes[:, 2:] <= view.size + 1e-9).all()
    ratio = clipped_width * clipped_height / (width * height)
    assert clipped.visibility[0] == pytest.approx(min(1.0, ratio))


@given(st.data())
def test_points_are_the_corners_of_boxes(data):
    view = data.draw(row_views(60, 40))
    x, y, width, height = data.draw(boxes(view))
    corners = transform_points([[x, y], [x + width, y + height]], view)
    ((left, top, moved_width, moved_height),) = transform_boxes([[x, y, width, height]], view, clip=False).boxes
    assert sorted(corners[:, 0]) == pytest.approx([left, left + moved_width])
    assert sorted(corners[:, 1]) == pytest.approx([top, top + moved_height])


@given(st.data())
def test_annotations_of_a_larger_image_are_scaled(data):
    """A build with --resize keeps the boxes of the original file."""
    view = data.draw(row_views(60, 40))
    box = np.array([data.draw(boxes(view))])
    larger = box * np.array([4.0, 2.0, 4.0, 2.0])
    size = (2 * view.image_height, 4 * view.image_width)
    moved = transform_boxes(larger, view, annotated_size=size, clip=False).boxes
    assert moved == pytest.approx(transform_boxes(box, view, clip=False).boxes)
    assert (transform_boxes(box, view, annotated_size=(0, 0)).boxes == transform_boxes(box, view).boxes).all()


def test_boxes_are_clipped_or_left_out():
    """The row shows the left half of the image."""
    found = [[10, 20, 30, 40], [80, 0, 40, 10], [150, 0, 10, 10], [99, 50, 10, 10], [5, 5, 0, 0], [150, 5, 0, 0]]
    everything = transform_boxes(found, COMPLETE)
    assert everything.boxes.tolist() == [
        [10, 20, 30, 40], [80, 0, 20, 10], [100, 0, 0, 10], [99, 50, 1, 10], [5, 5, 0, 0], [100, 5, 0, 0]
    ]  # fmt: skip
    assert everything.visibility.tolist() == [1, 0.5, 0, 0.1, 1, 0]
    assert everything.kept.tolist() == [0, 1, 2, 3, 4, 5]
    visible = transform_boxes(found, COMPLETE, min_visibility=0.3, clip=False)
    assert (visible.kept.tolist(), visible.boxes[1].tolist()) == ([0, 1, 4], [80, 0, 40, 10])
    assert transform_boxes(found, COMPLETE, min_visibility=1).kept.tolist() == [0, 4]
    nothing = transform_boxes([], COMPLETE)
    assert (nothing.boxes.shape, nothing.visibility.shape, nothing.kept.shape) == ((0, 4), (0,), (0,))


def test_keypoints_move_and_change_sides():
    people = np.zeros((1, 17, 3))
    people[0, 0], people[0, 1], people[0, 2], people[0, 16] = [20, 10, 2], [30, 5, 1], [10, 5, 2], [150, 90, 2]
    straight = transform_keypoints(people, COMPLETE)
    assert straight[0, :3].tolist() == people[0, :3].tolist()
    assert straight[0, 16].tolist() == [0, 0, 0]
    mirrored = transform_keypoints(people, COMPLETE._replace(flip=True))
    assert mirrored[0, :3].tolist() == [[80, 10, 2], [90, 5, 2], [70, 5, 1]]
    assert mirrored[0, 5].tolist() == [0, 0, 0]
    assert transform_keypoints([], COMPLETE).shape == (0, 0, 3)
    assert transform_keypoints(np.zeros((0, 17, 3)), COMPLETE).shape == (0, 17, 3)
    assert [pair for pair in COCO_FLIP_PAIRS if 15 in pair or 1 in pair] == [(1, 2), (15, 16)]
    assert people[0, 0].tolist() == [20, 10, 2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: transform_boxes([1, 2, 3, 4], COMPLETE), r"boxes must have the shape \(N, 4\)"),
        (lambda: transform_boxes([[1, 2, 3]], COMPLETE), r"got \(1, 3\)"),
        (lambda: transform_boxes([[1, 2, 3, 4]], COMPLETE, min_visibility=2), "a share from 0 to 1"),
        (lambda: transform_points([1, 2, 3], COMPLETE), r"points must have the shape \(\.\.\., 2\)"),
        (lambda: transform_keypoints([[1, 2, 3]], COMPLETE), r"keypoints must have the shape \(N, K, 3\)"),
    ],
)
def test_other_shapes_are_refused(call, words):
    with pytest.raises(UsageError, match=words):
        call()


# Through a loader


def test_views_are_delivered_on_request_only(marked):
    with open_loader(marked(), batch_size=8, image_size=32) as loader:
        plain = next(iter(loader))
    with open_loader(marked(), batch_size=8, image_size=32, views=True) as loader:
        with_views = next(iter(loader))
    assert plain.views is None
    assert (plain.images == with_views.images).all()
    assert plain.state == with_views.state
    with open_loader(marked(), batch_size=7, image_size=32, views=True, shuffle=False) as loader:
        last = list(loader)[-1]
    assert [view is None for view in last.views] == [not there for there in last.mask]
    with pytest.raises(UsageError, match="views must be True or False"):
        open_loader(marked(), batch_size=8, views="yes")


NEAR = 1e-6
"""Distance from an edge, pixels, at which rounding decides on which side a pixel is."""


@st.composite
def polygons(draw: st.DrawFn, view: RowView) -> list[list[float]]:
    """Some polygons around an image, which may cross themselves; whole coordinates lie on the edges of pixels."""
    x, y = (st.one_of(st.integers(-9, side + 9), st.floats(-9, side + 9)) for side in view[1::-1])
    points = st.lists(st.tuples(x, y), min_size=3, max_size=8)
    return [[float(each) for point in draw(points) for each in point] for _ in range(draw(st.integers(1, 3)))]


def is_inside(polygon: list[float], x: float, y: float) -> bool | None:
    """The even-odd rule, edge by edge; None very close to an edge."""
    inside = False
    points = list(zip(polygon[0::2], polygon[1::2], strict=True))
    for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1], strict=True):
        length = float(np.hypot(x2 - x1, y2 - y1))
        along = ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length**2 if length > NEAR else 0.0
        along = min(1.0, max(0.0, along))
        if np.hypot(x1 + along * (x2 - x1) - x, y1 + along * (y2 - y1) - y) < NEAR:
            return None
        if (y1 <= y) != (y2 <= y) and x < x1 + (y - y1) / (y2 - y1) * (x2 - x1):
            inside = not inside
    return inside


@given(st.data())
def test_pixels_of_a_mask_come_from_the_polygons(data):
    """For each pixel of the row: its middle comes from one of the polygons if and only if the mask has it."""
    view = data.draw(row_views(30, 20))
    drawn = data.draw(polygons(view))
    (mask,) = transform_masks([drawn], view)
    assert mask.dtype == np.uint8
    for row in range(view.size):
        for column in range(view.size):
            found = [is_inside(polygon, *source_of(view, row, column)) for polygon in drawn]
            if None not in found:
                assert mask[row, column] == any(found)


@given(st.data())
def test_clipped_polygons_have_the_same_mask(data):
    view = data.draw(row_views(60, 40))
    drawn = data.draw(polygons(view))
    clipped = transform_polygons(json.dumps(drawn), view)
    for polygon in clipped:
        points = np.array(polygon).reshape(-1, 2)
        assert (points >= 0).all()
        assert (points <= view.size).all()
    row = RowView(view.size, view.size, 0, 0, view.size, view.size, view.size, view.size, 0, 0, False, view.size)
    (clipped_mask,), (mask,) = transform_masks([clipped], row), transform_masks([drawn], view)
    for y, x in np.argwhere(clipped_mask != mask):
        assert any(
            is_inside(transform_points(np.array(polygon).reshape(-1, 2), view).ravel().tolist(), x + 0.5, y + 0.5)
            is None
            for polygon in drawn
        )


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools with NumPy 2
@given(st.data())
def test_run_length_encodings_are_cropped_and_scaled_as_pillow_does(data):
    """Decoded by pycocotools; cropped, scaled to the nearest pixel, cut and flipped by Pillow and NumPy."""
    view = data.draw(row_views(60, 40))
    drawn = np.random.default_rng(data.draw(st.integers(0, 999))).random((view.image_height, view.image_width)) < 0.4
    encoded = masks.encode(np.asfortranarray(drawn, np.uint8))
    encoded = {"size": encoded["size"], "counts": encoded["counts"].decode()}
    box = (view.left, view.top, view.left + view.width, view.top + view.height)
    cropped = Image.fromarray(masks.decode(encoded)).crop(box)
    scaled = cropped.resize((view.resized_width, view.resized_height), Image.Resampling.NEAREST)
    row = (view.out_left, view.out_top, view.out_left + view.size, view.out_top + view.size)
    expected = np.asarray(scaled.crop(row))
    expected = expected[:, ::-1] if view.flip else expected
    (mask,) = transform_masks([json.dumps(encoded)], view)
    for line, column in np.argwhere(mask != expected):
        x, y = source_of(view, line, column)
        assert min(abs(x - round(x)), abs(y - round(y))) < NEAR


@given(st.data())
def test_masks_of_a_larger_image_are_scaled(data):
    """A build with --resize keeps the segmentations of the original file; whole pixels become two by four."""
    view = data.draw(row_views(30, 20))
    drawn = np.random.default_rng(data.draw(st.integers(0, 999))).random((view.image_height, view.image_width)) < 0.4
    size = (2 * view.image_height, 4 * view.image_width)
    encoded = [_encoded(drawn), _encoded(np.kron(drawn, np.ones((2, 4))) > 0)]
    small, large = transform_masks(encoded, view, annotated_size=size)
    for row, column in np.argwhere(small != large):
        x, y = source_of(view, row, column)
        assert min(abs(x - round(x)), abs(y - round(y))) < NEAR
    polygon = [1.3, 2.1, 9.7, 3.2, 4.4, 8.9]
    larger = [each * (2 if place % 2 else 4) for place, each in enumerate(polygon)]
    assert (transform_masks([[larger]], view, annotated_size=size) == transform_masks([[polygon]], view)).all()


def _encoded(drawn: np.ndarray) -> dict:
    flat = drawn.ravel(order="F").astype(np.int64)
    changes = np.flatnonzero(np.diff(np.concatenate([[0], flat])))
    runs = np.diff(np.concatenate([[0], changes, [flat.size]]))
    return {"size": list(drawn.shape), "counts": [int(run) for run in runs]}


def test_a_square_on_the_edges_of_pixels_is_half_open():
    """Two neighbours share an edge and no pixel; a polygon through middles has its upper left ones."""
    left, right = [10.0, 5, 20, 5, 20, 15, 10, 15], [20.0, 5, 30, 5, 30, 15, 20, 15]
    first, second = transform_masks([[left], [right]], COMPLETE)
    assert np.argwhere(first)[[0, -1]].tolist() == [[5, 10], [14, 19]]
    assert (int(first.sum()), int(second.sum()), int((first & second).sum())) == (100, 100, 0)
    (middles,) = transform_masks([[[0.5, 0.5, 2.5, 0.5, 2.5, 2.5, 0.5, 2.5]]], COMPLETE)
    assert np.argwhere(middles).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    mirrored = COMPLETE._replace(flip=True)
    assert (transform_masks([[left]], mirrored) == first[None, :, ::-1]).all()


def test_polygons_are_cut_to_the_row():
    """The row shows the left half of the image."""
    assert transform_polygons([[90, 10, 110, 10, 110, 20, 90, 20], [150, 0, 160, 0, 160, 9]], COMPLETE) == [
        [90, 10, 100, 10, 100, 20, 90, 20]
    ]
    assert transform_polygons("", COMPLETE) == []
    assert transform_polygons([[5, 5, 6, 6], []], COMPLETE) == []


def test_odd_segmentations_have_empty_masks():
    odd = ["", "[]", [[]], [[1.0, 2.0]], [[1.0, 2.0, 50.0, 60.0]], {"size": [0, 0], "counts": []}]
    found = transform_masks(odd, COMPLETE)
    assert (found.shape, int(found.sum())) == ((6, 100, 100), 0)
    assert transform_masks([], COMPLETE).shape == (0, 100, 100)


def test_a_large_polygon_of_many_points_is_drawn_in_parts():
    angles = np.linspace(0, 2 * np.pi, 10_000, endpoint=False)
    circle = np.stack([50 + 40 * np.cos(angles), 50 + 40 * np.sin(angles)], axis=1)
    (mask,) = transform_masks([[circle.ravel().tolist()]], COMPLETE)
    rows, columns = np.mgrid[:100, :100] + 0.5
    assert (mask == (np.hypot(rows - 50, columns - 50) < 40)).all()


@pytest.mark.parametrize(
    ("segmentation", "words"),
    [
        ("{", "is not JSON"),
        ("7", "expected polygons or a run-length encoding"),
        ('"[]"', "expected polygons or a run-length encoding"),
        ([[1, 2, 3]], "expected x and y of each point"),
        ([[1, "a"]], "expected x and y of each point"),
        ("[[1, NaN, 2, 3, 4, 5]]", "coordinate is NaN or beyond ±1,000,000,000"),
        ([[1, 2, 1e300, 3, 4, 5]], "coordinate is NaN or beyond ±1,000,000,000"),
        ({"size": [100, 200], "counts": [3]}, "segmentation: a run-length encoding of 3 pixels"),
        ({"size": [100_000, 100_000], "counts": [10**10]}, "a mask of 10,000,000,000 pixels"),
        ("[" * 100_000, "is not JSON"),
        ("[" * 300 + "]" * 300, "expected x and y of each point"),
    ],
)
def test_what_is_no_segmentation_is_refused(segmentation, words):
    with pytest.raises(FormatError, match=words):
        transform_masks([segmentation], COMPLETE)


def test_runs_have_no_polygons_and_masks_are_bounded():
    with pytest.raises(UsageError, match=r"no polygons; use loaders\.transform_masks"):
        transform_polygons({"size": [1, 1], "counts": [1]}, COMPLETE)
    with pytest.raises(FormatError, match="107,375 masks of 100x100 pixels, expected at most 1,073,741,824 bytes"):
        transform_masks([""] * (MAX_MASKS_BYTES // 100**2 + 1), COMPLETE)
