"""Polygons and run-length encodings travel with the pixels that they cover."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as masks
from skimage.draw import polygon2mask

from dataprep.errors import FormatError, UsageError
from loaders.decode.boxes import RowView, transform_points
from loaders.decode.masks import MAX_MASKS_BYTES, transform_masks, transform_polygons
from tests.support.views import row_views, source_of

WHOLE = RowView(100, 200, 0, 0, 100, 200, 100, 200, 0, 0, False, 100)
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


@given(st.data())
def test_masks_are_those_of_scikit_image(data):
    """scikit-image counts pixels by their middles, too; it takes points on an edge as inside."""
    size = data.draw(st.integers(1, 40))
    view = RowView(size, size, 0, 0, size, size, size, size, 0, 0, False, size)
    (polygon,) = data.draw(polygons(view))[:1]
    (mask,) = transform_masks([[polygon]], view)
    points = np.array(polygon).reshape(-1, 2)[:, ::-1] - 0.5
    for y, x in np.argwhere(polygon2mask((size, size), points) != mask):
        assert is_inside(polygon, x + 0.5, y + 0.5) is None


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
    scaled = np.asarray(cropped.resize((view.resized_width, view.resized_height), Image.Resampling.NEAREST))
    expected = scaled[view.out_top :, view.out_left :][: view.size, : view.size]
    expected = expected[:, ::-1] if view.flip else expected
    (mask,) = transform_masks([json.dumps(encoded)], view)
    for row, column in np.argwhere(mask != expected):
        x, y = source_of(view, row, column)
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
    first, second = transform_masks([[left], [right]], WHOLE)
    assert np.argwhere(first)[[0, -1]].tolist() == [[5, 10], [14, 19]]
    assert (int(first.sum()), int(second.sum()), int((first & second).sum())) == (100, 100, 0)
    (middles,) = transform_masks([[[0.5, 0.5, 2.5, 0.5, 2.5, 2.5, 0.5, 2.5]]], WHOLE)
    assert np.argwhere(middles).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    mirrored = WHOLE._replace(flip=True)
    assert (transform_masks([[left]], mirrored) == first[None, :, ::-1]).all()


def test_polygons_are_cut_to_the_row():
    """The row shows the left half of the image."""
    assert transform_polygons([[90, 10, 110, 10, 110, 20, 90, 20], [150, 0, 160, 0, 160, 9]], WHOLE) == [
        [90, 10, 100, 10, 100, 20, 90, 20]
    ]
    assert transform_polygons("", WHOLE) == []
    assert transform_polygons([[5, 5, 6, 6], []], WHOLE) == []


def test_odd_segmentations_have_empty_masks():
    odd = ["", "[]", [[]], [[1.0, 2.0]], [[1.0, 2.0, 50.0, 60.0]], {"size": [0, 0], "counts": []}]
    found = transform_masks(odd, WHOLE)
    assert (found.shape, int(found.sum())) == ((6, 100, 100), 0)
    assert transform_masks([], WHOLE).shape == (0, 100, 100)


def test_a_large_polygon_of_many_points_is_drawn_in_parts():
    angles = np.linspace(0, 2 * np.pi, 10_000, endpoint=False)
    circle = np.stack([50 + 40 * np.cos(angles), 50 + 40 * np.sin(angles)], axis=1)
    (mask,) = transform_masks([[circle.ravel().tolist()]], WHOLE)
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
        ("[[1, NaN, 2, 3, 4, 5]]", "no number up to 1,000,000,000"),
        ([[1, 2, 1e300, 3, 4, 5]], "no number up to 1,000,000,000"),
        ({"size": [100, 200], "counts": [3]}, "segmentation: a run-length encoding of 3 pixels"),
        ({"size": [100_000, 100_000], "counts": [10**10]}, "a mask of 10,000,000,000 pixels"),
        ("[" * 100_000, "is not JSON"),
        ("[" * 300 + "]" * 300, "expected x and y of each point"),
    ],
)
def test_what_is_no_segmentation_is_refused(segmentation, words):
    with pytest.raises(FormatError, match=words):
        transform_masks([segmentation], WHOLE)


def test_runs_have_no_polygons_and_masks_are_bounded():
    with pytest.raises(UsageError, match=r"no polygons; use loaders\.transform_masks"):
        transform_polygons({"size": [1, 1], "counts": [1]}, WHOLE)
    with pytest.raises(FormatError, match="107,375 masks of 100x100 pixels, expected at most 1,073,741,824 bytes"):
        transform_masks([""] * (MAX_MASKS_BYTES // 100**2 + 1), WHOLE)
