"""Pictures with a bright rectangle, and its box, mask and corners as COCO's annotations: whether all stay together."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from loaders import open_loader
from loaders.decode.annotations import AnnotationFields, transform_masks
from loaders.decode.crop import RowView
from tests.support.coco import build_coco
from tests.support.own_data import write_files
from tests.support.raw_zip import Entry, zip_file

PEOPLE = AnnotationFields(objects="person_keypoints", masks="segmentation", keypoints="keypoints")
"""All annotations of the rectangles."""
SIZES = ((160, 120), (96, 128), (150, 150), (200, 130))
IMAGES = 16
CORNERS = slice(1, 5)
"""Keypoints that are corners: left and right above, then below. They are pairs of COCO's, left and right."""
TOLERANCE = 1.5
"""Pixels by which an edge in a picture may lie elsewhere: JPEG and scaling blur it."""


def write_marked(root: Path) -> Path:
    """Write originals of COCO's train with one rectangle each; every third has a run-length encoding as its mask.

    Each picture has a second object, without area, that no transform gets.
    """
    entries, images, people = [], [], []
    for number in range(IMAGES):
        width, height = SIZES[number % len(SIZES)]
        left, top = width // 4 + number % 5, height // 3 - number % 7
        right, bottom = left + width // 3, top + height // 3
        name = f"{number + 1:012d}.jpg"
        entries.append(Entry(name=f"train2017/{name}".encode(), data=_drawn(width, height, (left, top, right, bottom))))
        images.append({"id": number + 1, "file_name": name, "height": height, "width": width})
        corners = [(left, top), (right, top), (left, bottom), (right, bottom)]
        polygon = [left, top, right, top, right, bottom, left, bottom]
        points = [0.0] * 3 + [float(each) for corner in corners for each in (*corner, 2)] + [0.0] * 3 * 12
        common = {"image_id": number + 1, "category_id": 1, "iscrowd": 0}
        people += [
            common | {
                "id": 2 * number + 1, "bbox": [left, top, right - left, bottom - top], "area": 1.0,
                "segmentation": [polygon] if number % 3 else _runs(width, height, (left, top, right, bottom)),
                "keypoints": points, "num_keypoints": 4,
            },
            common | {
                "id": 2 * number + 2, "bbox": [left, top, 0, 5], "area": 0.0, "segmentation": [],
                "keypoints": [0.0] * 51, "num_keypoints": 0,
            },
        ]  # fmt: skip
    document = {"images": images, "annotations": people, "categories": [{"id": 1, "name": "person"}]}
    files = {f"annotations/{kind}_train2017.json": json.dumps(document) for kind in ("instances", "person_keypoints")}
    return write_files(root, {"train2017.zip": zip_file(entries), **files})


def build_marked(folder: Path, fmt: str = "webdataset", **options: Any) -> Path:
    """Build the rectangles in this process; return the dataset."""
    output = folder / "-".join([fmt, *options])
    build_coco(folder / "source", output, fmt, splits=("train",), annotations=("instances", "keypoints"), **options)
    return output


def _drawn(width: int, height: int, box: tuple[int, int, int, int]) -> bytes:
    image = Image.new("RGB", (width, height))
    ImageDraw.Draw(image).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill="white")
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=100, subsampling=0)
    return stream.getvalue()


def _runs(width: int, height: int, box: tuple[int, int, int, int]) -> dict[str, Any]:
    """A rectangle as runs of its columns."""
    left, top, right, bottom = box
    inside, outside = bottom - top, height - bottom + top
    counts = [left * height + top, *[inside, outside] * (right - left)]
    counts[-1] = (width - right) * height + height - bottom
    return {"size": [height, width], "counts": counts}


def misplaced(image_HWC: np.ndarray, objects: Mapping[str, Any], tolerance: float = TOLERANCE) -> list[str]:
    """What of the rectangle's annotations does not fit the bright pixels of a row; an empty list if all is in place.

    Args:
        image_HWC: The row.
        objects: Value of the field `person_keypoints`: no object, or the rectangle.
        tolerance: Pixels by which edges may differ.
    """
    bright, size = image_HWC[..., 1] > 127, len(image_HWC)
    if not len(objects["bbox"]):
        ys, xs = np.nonzero(bright)
        thin = not len(xs) or min(np.ptp(xs), np.ptp(ys)) < 2 * tolerance
        return [] if thin else [f"{bright.sum()} bright pixels without an object"]
    ((x, y, width, height),), (mask,) = objects["bbox"], objects["segmentation"]
    if min(width, height) < 4 * tolerance:
        return []
    found = []
    near = max(1, round(tolerance))
    odd = _eroded(mask > 0, near) & ~bright | _eroded(mask == 0, near) & bright
    if odd.any():
        found.append(f"{odd.sum()} pixels of {mask.sum()} are not those of the mask")
    ys, xs = np.nonzero(bright)
    edges = np.array([[xs.min(), x], [xs.max() + 1, x + width], [ys.min(), y], [ys.max() + 1, y + height]])
    apart = np.abs(edges[:, 0] - edges[:, 1])
    cut = min(x, y, size - x - width, size - y - height) < tolerance  # the box may then be larger than what is seen
    if not cut and (apart > tolerance + 0.5).any():
        found.append(f"edges at {edges[:, 0]}, the box has {edges[:, 1]}")
    if (xs < x - tolerance - 1).any() or (ys < y - tolerance - 1).any():
        found.append("bright pixels left of the box, or above it")
    corners = objects["keypoints"][0, CORNERS]
    for corner_x, corner_y in corners[corners[:, 2] > 0, :2]:
        square = bright[_around(corner_y, size), _around(corner_x, size)]
        if square.all() or not square.any():
            found.append(f"no corner at {corner_x:.1f}, {corner_y:.1f}")
    if (corners[:, 2] > 0).all():
        quad = corners[[0, 1, 3, 2], :2]
        (drawn,) = transform_masks([[quad.ravel().tolist()]], _whole(size))
        odd = _eroded(drawn > 0, near) & ~bright
        if odd.any():
            found.append(f"{odd.sum()} pixels between the corners are dark")
    return found


def _around(at: float, size: int) -> slice:
    return slice(max(0, int(at) - 3), min(size, int(at) + 4))


def _eroded(mask: np.ndarray, by: int) -> np.ndarray:
    """Pixels of a mask whose neighbours within `by` are all in it; none at the edges of the picture."""
    padded = np.pad(mask, by, constant_values=False)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * by + 1, 2 * by + 1))
    return windows.all(axis=(-2, -1))


def _whole(size: int) -> RowView:
    return RowView(size, size, 0, 0, size, size, size, size, 0, 0, False, size)


def misplaced_in(url: object, *, epochs: int = 2, tolerance: float = TOLERANCE, **settings: Any) -> dict[str, int]:
    """Load the rectangles for some epochs and compare all; return how many objects and corners there were."""
    found: Counter[str] = Counter()
    with open_loader(url, batch_size=8, image_size=96, scale=(0.3, 1.0), fields=PEOPLE.names, **settings) as loader:
        for batch in chain.from_iterable(loader for _ in range(epochs)):
            for image_HWC, objects, key in zip(batch.images, batch.fields["person_keypoints"], batch.keys, strict=True):
                wrong = misplaced(image_HWC, objects, tolerance)
                assert not wrong, (key, wrong)
                found["objects"] += len(objects["bbox"])
                found["corners"] += int((objects["keypoints"][..., 2] > 0).sum())
    return found


def delivered(url: object, *, steps: int, world_size: int = 1, **settings: Any) -> dict[int, str]:
    """What a loader delivers at each position: a digest of the image and its objects."""
    found = {}
    for rank in range(world_size):
        with open_loader(url, batch_size=8, rank=rank, world_size=world_size, **settings) as each:
            number = 0
            while number < steps:
                for batch in each:
                    positions = each.positions(batch.state["position"] // 8 - 1)
                    for row, position in enumerate(positions):
                        objects = batch.fields["person_keypoints"][row]
                        parts = [repr(values).encode() for values in map(_listed, objects.values())]
                        found[position] = hashlib.sha256(batch.images[row].tobytes() + b"".join(parts)).hexdigest()
                    number += 1
                    if number == steps:
                        break
    return found


def _listed(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values
