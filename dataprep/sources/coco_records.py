"""The records of COCO's annotation files, typed, and the features of a dataset that they become.

A record is checked on its own: its types, and values that no image can have. What depends on other records, such as
ids and categories, is checked where all of them are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dataprep.dataset.features import Feature, Features, Values
from dataprep.messages import quoted
from dataprep.sources.coco_masks import MAX_COORDINATE, is_coordinate, segmentation_text

KINDS = ("captions", "instances", "keypoints", "panoptic")
"""Kinds of annotations; each is a file for each split."""

_LIST = (None,)
_OBJECT = {
    "area": Feature("float64", _LIST),
    "bbox": Feature("float64", (None, 4)),
    "category": Feature("text", _LIST),
    "category_id": Feature("int64", _LIST),
    "id": Feature("int64", _LIST),
    "is_crowd": Feature("bool", _LIST),
    "label": Feature("int64", _LIST),
}
_MASK = {"segmentation": Feature("text", _LIST)}
_KEYPOINTS = {"keypoints": Feature("float64", (None, 17, 3)), "num_keypoints": Feature("int64", _LIST)}
_IMAGE: Features = {
    "coco_url": Feature("text"),
    "date_captured": Feature("text"),
    "filename": Feature("text"),
    "flickr_url": Feature("text"),
    "image_id": Feature("int64"),
    "license": Feature("int64"),
    "original_height": Feature("int64"),
    "original_width": Feature("int64"),
}
"""Features of every image, from the list of images of the annotation files."""
_FEATURES: Mapping[str, Features] = {
    "captions": {"captions": Feature("records", (), {"id": Feature("int64", _LIST), "text": Feature("text", _LIST)})},
    "instances": {"objects": Feature("records", (), {**_OBJECT, **_MASK})},
    "keypoints": {"person_keypoints": Feature("records", (), {**_OBJECT, **_MASK, **_KEYPOINTS})},
    "panoptic": {
        "panoptic_filename": Feature("text"),
        "panoptic_image": Feature("bytes"),
        "panoptic_objects": Feature("records", (), _OBJECT),
    },
}
RECORDS: Mapping[str, str] = {
    "captions": "captions",
    "instances": "objects",
    "keypoints": "person_keypoints",
    "panoptic": "panoptic_objects",
}
"""Feature of the records of each kind of annotations."""


def coco_features(kinds: Iterable[str]) -> dict[str, Feature]:
    """Return the features of a dataset with some kinds of annotations; none without annotations."""
    found: dict[str, Feature] = {}
    for kind in kinds:
        found |= {**_IMAGE, **_FEATURES[kind]}
    return dict(sorted(found.items()))


# The documents, typed


class CocoImage(msgspec.Struct):
    """An image as the files list it."""

    id: int
    file_name: str
    height: int
    width: int
    license: int = 0
    coco_url: str = ""
    flickr_url: str = ""
    date_captured: str = ""


class Category(msgspec.Struct):
    """A category of objects or segments."""

    id: int
    name: str


class Caption(msgspec.Struct):
    """A caption of an image."""

    id: int
    image_id: int
    caption: str

    def columns(self) -> Values:
        """Return the values as features have them."""
        return {"id": self.id, "text": self.caption}


class Segment(msgspec.Struct):
    """What objects and panoptic segments have in common."""

    id: int
    category_id: int
    iscrowd: int
    bbox: tuple[float, float, float, float]
    area: float

    def columns(self) -> Values:
        """Return the values as features have them. Raises ValueError for one that no image can have."""
        if not all(is_coordinate(value) for value in (*self.bbox, self.area)):
            raise ValueError(f"a bbox or an area with a value that is no number up to {MAX_COORDINATE:,.0f}")
        if self.bbox[2] < 0 or self.bbox[3] < 0:
            raise ValueError(f"a bbox of negative size, {quoted(list(self.bbox))}, expected [x, y, width, height]")
        if self.iscrowd not in (0, 1):
            raise ValueError(f"iscrowd {quoted(self.iscrowd)}, expected 0 or 1")
        return {
            "area": self.area,
            "bbox": list(self.bbox),
            "category_id": self.category_id,
            "id": self.id,
            "is_crowd": bool(self.iscrowd),
        }


class Instance(Segment, kw_only=True):
    """An object."""

    image_id: int
    segmentation: Any = None

    def columns(self) -> Values:
        try:
            text = segmentation_text(self.segmentation)
        except ValueError as error:
            raise ValueError(f"segmentation: {error}") from error
        return super().columns() | {"segmentation": text}


class Person(Instance, kw_only=True):
    """A person with keypoints."""

    keypoints: list[float]
    num_keypoints: int

    def columns(self) -> Values:
        numbers = self.keypoints
        if len(numbers) != 17 * 3 or not all(map(is_coordinate, numbers)):
            raise ValueError(f"{len(numbers)} numbers as keypoints, expected x, y and visibility of 17 points")
        points = [numbers[start : start + 3] for start in range(0, len(numbers), 3)]
        return super().columns() | {"keypoints": points, "num_keypoints": self.num_keypoints}


class Panoptic(msgspec.Struct):
    """The panoptic segments of an image."""

    image_id: int
    file_name: str
    segments_info: list[Segment]

    @property
    def id(self) -> int:
        return self.image_id

    def columns(self) -> Values:
        return {"file_name": self.file_name, "segments": [segment.columns() for segment in self.segments_info]}


TYPES: Mapping[str, type[Caption | Instance | Panoptic]] = {
    "captions": Caption,
    "instances": Instance,
    "keypoints": Person,
    "panoptic": Panoptic,
}
