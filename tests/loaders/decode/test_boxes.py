"""Boxes and points travel with the pixels that they mark."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from dataprep.builder.images import ImagePolicy
from dataprep.errors import UsageError
from loaders import open_loader
from loaders.decode.boxes import (
    COCO_FLIP_PAIRS,
    RowView,
    transform_boxes,
    transform_keypoints,
    transform_points,
)
from loaders.decode.crop import View
from tests.support.own_data import build_own, write_files
from tests.support.views import row_views, source_of

WHOLE = RowView(100, 200, 0, 0, 100, 200, 100, 200, 0, 0, False, 100)


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
    everything = transform_boxes(found, WHOLE)
    assert everything.boxes.tolist() == [
        [10, 20, 30, 40], [80, 0, 20, 10], [100, 0, 0, 10], [99, 50, 1, 10], [5, 5, 0, 0], [100, 5, 0, 0]
    ]  # fmt: skip
    assert everything.visibility.tolist() == [1, 0.5, 0, 0.1, 1, 0]
    assert everything.kept.tolist() == [0, 1, 2, 3, 4, 5]
    visible = transform_boxes(found, WHOLE, min_visibility=0.3, clip=False)
    assert (visible.kept.tolist(), visible.boxes[1].tolist()) == ([0, 1, 4], [80, 0, 40, 10])
    assert transform_boxes(found, WHOLE, min_visibility=1).kept.tolist() == [0, 4]
    nothing = transform_boxes([], WHOLE)
    assert (nothing.boxes.shape, nothing.visibility.shape, nothing.kept.shape) == ((0, 4), (0,), (0,))


def test_keypoints_move_and_change_sides():
    people = np.zeros((1, 17, 3))
    people[0, 0], people[0, 1], people[0, 2], people[0, 16] = [20, 10, 2], [30, 5, 1], [10, 5, 2], [150, 90, 2]
    straight = transform_keypoints(people, WHOLE)
    assert straight[0, :3].tolist() == people[0, :3].tolist()
    assert straight[0, 16].tolist() == [0, 0, 0]
    mirrored = transform_keypoints(people, WHOLE._replace(flip=True))
    assert mirrored[0, :3].tolist() == [[80, 10, 2], [90, 5, 2], [70, 5, 1]]
    assert mirrored[0, 5].tolist() == [0, 0, 0]
    assert transform_keypoints([], WHOLE).shape == (0, 0, 3)
    assert transform_keypoints(np.zeros((0, 17, 3)), WHOLE).shape == (0, 17, 3)
    assert [pair for pair in COCO_FLIP_PAIRS if 15 in pair or 1 in pair] == [(1, 2), (15, 16)]
    assert people[0, 0].tolist() == [20, 10, 2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: transform_boxes([1, 2, 3, 4], WHOLE), r"boxes must have the shape \(N, 4\)"),
        (lambda: transform_boxes([[1, 2, 3]], WHOLE), r"got \(1, 3\)"),
        (lambda: transform_boxes([[1, 2, 3, 4]], WHOLE, min_visibility=2), "a share from 0 to 1"),
        (lambda: transform_points([1, 2, 3], WHOLE), r"points must have the shape \(\.\.\., 2\)"),
        (lambda: transform_keypoints([[1, 2, 3]], WHOLE), r"keypoints must have the shape \(N, K, 3\)"),
    ],
)
def test_other_shapes_are_refused(call, words):
    with pytest.raises(UsageError, match=words):
        call()


def test_a_view_has_the_fields_of_its_crop():
    assert RowView._fields[2:-1] == View._fields


# Through a loader

SIZES = ((120, 90), (64, 64), (70, 150), (200, 120))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Black pictures, each with a white rectangle, whose box is the feature `box`: as they are, and `resized`."""
    folder = tmp_path_factory.mktemp("drawn")
    files, lines = {}, []
    for number in range(24):
        width, height = SIZES[number % len(SIZES)]
        x, y = width // 4 + number % 5, height // 3 - number % 7
        box = [float(x), float(y), float(width // 3), float(height // 2)]
        image = Image.new("RGB", (width, height))
        ImageDraw.Draw(image).rectangle((x, y, x + box[2] - 1, y + box[3] - 1), fill="white")
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=100, subsampling=0)
        files[f"{number}.jpg"] = stream.getvalue()
        lines.append(json.dumps({"file_name": f"{number}.jpg", "box": box, "size": [height, width]}))
    files["metadata.jsonl"] = "\n".join(lines)
    source = write_files(folder / "source", files)
    build_own(source, folder / "out")
    build_own(source, folder / "resized", options={"images": ImagePolicy(short_side=48)})
    return folder


@pytest.mark.parametrize(
    ("dataset", "processes", "augment", "tolerance"),
    [("out", 0, True, 1.5), ("out", 2, True, 1.5), ("out", 0, False, 1.5), ("resized", 0, True, 3.0)],
)
def test_rectangles_of_batches_lie_where_the_boxes_say(drawn, dataset, processes, augment, tolerance):
    """Edges of pictures that were made smaller are less sharp."""
    seen = 0
    settings = {"image_size": 96, "fields": ("box", "size"), "views": True, "augment": augment, "shuffle": augment}
    with open_loader(drawn / dataset, batch_size=8, processes=processes, **settings) as loader:
        for batch in loader:
            for row, view in enumerate(batch.views):
                size = tuple(batch.fields["size"][row])
                assert dataset == "resized" or size == (view.image_height, view.image_width)
                found = transform_boxes([batch.fields["box"][row]], view, annotated_size=size)
                (x, y, width, height), white = found.boxes[0], batch.images[row, :, :, 0] > 127
                columns, rows = np.flatnonzero(white.any(axis=0)), np.flatnonzero(white.any(axis=1))
                if width < 3 or height < 3:
                    assert len(columns) <= 4 or len(rows) <= 4
                    continue
                assert [columns[0], columns[-1] + 1] == pytest.approx([x, x + width], abs=tolerance)
                assert [rows[0], rows[-1] + 1] == pytest.approx([y, y + height], abs=tolerance)
                seen += 1
    assert seen >= 12


def test_views_are_delivered_on_request_only(drawn):
    with open_loader(drawn / "out", batch_size=8, image_size=32) as loader:
        plain = next(iter(loader))
    with open_loader(drawn / "out", batch_size=8, image_size=32, views=True) as loader:
        with_views = next(iter(loader))
    assert plain.views is None
    assert (plain.images == with_views.images).all()
    assert plain.state == with_views.state
    with open_loader(drawn / "out", batch_size=7, image_size=32, views=True, shuffle=False) as loader:
        last = list(loader)[-1]
    assert [view is None for view in last.views] == [not there for there in last.mask]
    with pytest.raises(UsageError, match="views must be True or False"):
        open_loader(drawn / "out", batch_size=8, views="yes")
