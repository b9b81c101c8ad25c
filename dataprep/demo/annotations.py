"""Annotations of demo images in the files of COCO 2017: captions, instances, keypoints and panoptic segments.

They are drawn from the seed and the image's position, not from what the images show: they can test values, formats and
programs, but not accuracy. As in COCO, ids are not in the order of images, boxes have two decimals, crowds are
run-length encodings, and some images have no object.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep.dataset.randomness import permutation, philox_words

ARCHIVE, PANOPTIC_ARCHIVE = "annotations_trainval2017.zip", "panoptic_annotations_trainval2017.zip"
KEYPOINT_NAMES = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow"),
    *("right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle"),
    "right_ankle",
)
CATEGORIES = (
    {"supercategory": "person", "id": 1, "name": "person"},
    {"supercategory": "vehicle", "id": 3, "name": "car"},
    {"supercategory": "animal", "id": 17, "name": "cat"},
    {"supercategory": "indoor", "id": 90, "name": "toothbrush"},
)
"""Some of COCO's categories; as there, not every id exists."""
PANOPTIC_CATEGORIES = (
    *({**category, "isthing": 1} for category in CATEGORIES),
    {"supercategory": "sky", "isthing": 0, "id": 187, "name": "sky-other-merged"},
)
CAPTIONS = (
    "A cat that sleeps on a mat.",
    'Two cars stand in a street, one of them "parked".\n',
    "Ein grüner Fink 🐦 sitzt im Baum",
    "a person is holding a toothbrush",
    "There is nothing to be seen here. ",
)
_WORDS = 512
_PLAIN_FILE = 0o100644 << 16
Document = dict[str, Any]


class Described(NamedTuple):
    """An image of the demo."""

    file: str
    number: int
    width: int
    height: int


class _Draws:
    """Random numbers of one image."""

    def __init__(self, seed: int, image: Described, folder: str) -> None:
        words = philox_words(_WORDS, seed=seed, purpose=f"demo/annotations/{folder}", pass_index=image.number)
        self._draws = iter((words / 2.0**64).tolist())

    def below(self, stop: int) -> int:
        """Draw a whole number from 0 to below `stop`."""
        return int(next(self._draws) * stop)

    def within(self, low: float, high: float) -> float:
        """Draw a number with two decimals."""
        number: float = round(low + next(self._draws) * (high - low), 2)
        return number


def write_annotations(streams: Mapping[str, IO[bytes]], splits: Mapping[str, Sequence[Described]], seed: int) -> None:
    """Write the two archives of annotations.

    Args:
        streams: The archives by name, empty.
        splits: Images by folder, such as `train2017`.
        seed: Seed of the annotations.
    """
    with zipfile.ZipFile(streams[ARCHIVE], "w") as plain, zipfile.ZipFile(streams[PANOPTIC_ARCHIVE], "w") as panoptic:
        for folder, images in splits.items():
            for name, document in _documents(images, folder, seed):
                _add(plain, f"annotations/{name}_{folder}.json", json.dumps(document).encode())
            document, pictures = _panoptic(images, folder, seed)
            _add(panoptic, f"annotations/panoptic_{folder}.json", json.dumps(document).encode())
            _add(panoptic, f"annotations/panoptic_{folder}.zip", pictures)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, method: int = zipfile.ZIP_DEFLATED) -> None:
    header = zipfile.ZipInfo(name)
    header.external_attr = _PLAIN_FILE
    archive.writestr(header, data, method)


def _documents(images: Sequence[Described], folder: str, seed: int) -> Iterator[tuple[str, Document]]:
    captions, instances, people = [], [], []
    for image in images:
        draws = _Draws(seed, image, folder)
        captions += [
            {"image_id": image.number, "caption": CAPTIONS[draws.below(len(CAPTIONS))]}
            for _ in range(5 + draws.below(2))
        ]
        for _ in range(draws.below(5)):
            instance = _instance(draws, image)
            instances.append(instance)
            if instance["category_id"] == 1:
                people.append((instance, _keypoints(draws, instance)))
    for number, place in zip(permutation(len(instances), seed=seed, purpose="demo/ids"), instances, strict=True):
        place["id"] = 100 + 7 * int(number)
    for number, caption in enumerate(captions):
        caption["id"] = 37 + number
    order = [int(place) for place in permutation(len(instances), seed=seed, purpose="demo/order")]
    shared = _shared(images, folder)
    yield "captions", {**shared, "annotations": captions[::-1]}
    yield (
        "instances",
        {**shared, "annotations": [instances[place] for place in order], "categories": CATEGORIES},
    )
    person = CATEGORIES[0] | {"keypoints": KEYPOINT_NAMES, "skeleton": [[16, 14], [14, 12]]}
    annotated = [keypoints | instance for instance, keypoints in people]
    yield "person_keypoints", {**shared, "annotations": annotated, "categories": [person]}


def _shared(images: Sequence[Described], folder: str) -> Document:
    """Return what all files of a split begin with."""
    return {
        "info": {"description": "Demo data in the layout of COCO 2017", "year": 2017, "version": "1.0"},
        "licenses": [{"url": "http://creativecommons.org/licenses/by/2.0/", "id": 4, "name": "Attribution License"}],
        "images": [
            {
                "license": 4,
                "file_name": image.file,
                "coco_url": f"http://images.cocodataset.org/{folder}/{image.file}",
                "height": image.height,
                "width": image.width,
                "date_captured": "2013-11-14 11:18:45",
                "flickr_url": f"http://farm9.staticflickr.com/{image.number}_z.jpg",
                "id": image.number,
            }
            for image in images
        ],
    }


def _instance(draws: _Draws, image: Described) -> Document:
    category = CATEGORIES[draws.below(len(CATEGORIES))]["id"]
    left, top = draws.within(0, 0.7 * image.width), draws.within(0, 0.7 * image.height)
    width, height = draws.within(4, image.width - left), draws.within(4, image.height - top)
    if draws.below(6) == 0:
        return _crowd(image, category, [int(value) for value in (left, top, width, height)])
    polygons = [_polygon(draws, left, top, width / 2, height)]
    if draws.below(3) == 0:
        polygons.append(_polygon(draws, left + width / 2, top, width / 2, height))
    return {
        "segmentation": polygons,
        "area": sum(map(_area, polygons)),
        "iscrowd": 0,
        "image_id": image.number,
        "bbox": [left, top, width, height],
        "category_id": category,
    }


def _polygon(draws: _Draws, left: float, top: float, width: float, height: float) -> list[float]:
    """Return a polygon of 3 to 12 corners around the middle of a box."""
    polygon: list[float] = []
    corners = 3 + draws.below(10)
    for corner in range(corners):
        angle, share = 2 * np.pi * corner / corners, 0.25 + 0.25 * draws.within(0, 1)
        polygon.append(round(left + width * (0.5 + share * float(np.cos(angle))), 2))
        polygon.append(round(top + height * (0.5 + share * float(np.sin(angle))), 2))
    return polygon


def _area(polygon: Sequence[float]) -> float:
    points = np.asarray(polygon).reshape(-1, 2)
    x, y = points[:, 0], points[:, 1]
    return abs(float(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))) / 2


def _crowd(image: Described, category: object, box: Sequence[int]) -> Document:
    """Return a crowd, whose mask is the box: runs of pixels column by column, zeros first."""
    left, top, width, height = box
    counts = [left * image.height + top]
    for _ in range(width - 1):
        counts += [height, image.height - height]
    counts += [height, image.width * image.height - sum(counts) - height]
    return {
        "segmentation": {"counts": counts, "size": [image.height, image.width]},
        "area": width * height,
        "iscrowd": 1,
        "image_id": image.number,
        "bbox": list(box),
        "category_id": category,
    }


def _keypoints(draws: _Draws, instance: Document) -> Document:
    left, top, width, height = instance["bbox"]
    points: list[int] = []
    for _ in KEYPOINT_NAMES:
        visibility = 0 if instance["iscrowd"] else draws.below(3)
        x, y = int(draws.within(left, left + width)), int(draws.within(top, top + height))
        points += [x, y, visibility] if visibility else [0, 0, 0]
    return {"num_keypoints": sum(visibility > 0 for visibility in points[2::3]), "keypoints": points}


def _panoptic(images: Sequence[Described], folder: str, seed: int) -> tuple[Document, bytes]:
    """Return the panoptic document, and the zip of its pictures, in which the colour of a pixel is its segment's id."""
    annotations, packed = [], io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        _add(archive, f"panoptic_{folder}/", b"", zipfile.ZIP_STORED)
        for image in images:
            segments, ids_HW = _segments(_Draws(seed, image, f"panoptic/{folder}"), image)
            file = image.file.replace(".jpg", ".png")
            _add(archive, f"panoptic_{folder}/{file}", _png(ids_HW), zipfile.ZIP_STORED)
            annotations.append({"segments_info": segments, "file_name": file, "image_id": image.number})
    document = {**_shared(images, folder), "annotations": annotations, "categories": PANOPTIC_CATEGORIES}
    return document, packed.getvalue()


def _segments(draws: _Draws, image: Described) -> tuple[list[Document], NDArray[np.uint32]]:
    """Cut an image into upright stripes; return them, and the id of each pixel's."""
    ids_HW = np.zeros((image.height, image.width), np.uint32)
    segments: list[Document] = []
    bounds = sorted({0, image.width, *(draws.below(image.width) for _ in range(2))})
    for left, right in pairwise(bounds):
        number = 1 + draws.below(2**24 - 1)
        category = PANOPTIC_CATEGORIES[draws.below(len(PANOPTIC_CATEGORIES))]
        ids_HW[:, left:right] = number
        segments.append(
            {
                "id": number,
                "category_id": category["id"],
                "iscrowd": 0,
                "bbox": [left, 0, right - left, image.height],
                "area": (right - left) * image.height,
            }
        )
    return segments, ids_HW


def _png(ids_HW: NDArray[np.uint32]) -> bytes:
    from PIL import Image

    pixels_HWC = np.stack([ids_HW >> shift & 0xFF for shift in (0, 8, 16)], axis=-1).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels_HWC, "RGB").save(out, "PNG")
    return out.getvalue()
