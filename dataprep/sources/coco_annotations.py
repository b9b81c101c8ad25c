"""Reads the annotations of COCO 2017 and groups them by image, in bounded memory.

    JSON files ─▶ one annotation at a time, checked ─▶ temporary file ─▶ the annotations of one image at a time

An annotation file is not ordered by image, so each annotation is written to a temporary file without a name, and only
its image and its place are held in memory: 32 bytes an annotation. Values stay as they are in the JSON; each kind of
annotations is a separate feature. Masks stay as text: polygons, or run lengths.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import msgspec

from dataprep.arrays import NDArray, np
from dataprep.dataset.documents import convert
from dataprep.dataset.features import Feature, Features, Values, annotations_json
from dataprep.dataset.records import SourceFile
from dataprep.dataset.run_lengths import runs_of
from dataprep.errors import FormatError, SourceError
from dataprep.messages import quoted, shown
from dataprep.sources.coco_files import KINDS, AnnotationFile, PanopticImages, archive_of, find_json, top_level_items
from dataprep.storage.base import Storage
from dataprep.storage.spool import Extent, ScratchFile

MAX_COORDINATE = 1e9
"""Maximum absolute value of a coordinate."""
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
        "panoptic_image": Feature("bytes", member="panoptic.png"),
        "panoptic_objects": Feature("records", (), _OBJECT),
    },
}
RECORDS: Mapping[str, str] = {
    "captions": "captions",
    "instances": "objects",
    "keypoints": "person_keypoints",
    "panoptic": "panoptic_objects",
}
"""Name of the feature with the records of each kind of annotations."""
MAX_ANNOTATIONS = 20_000_000
"""Maximum number of annotations in one file, whose places take up to 640 MB. COCO's largest file has 860,001."""
MAX_IMAGES = 2_000_000
"""Maximum number of images that the files list."""
NO_IMAGE = -1
"""Id of an image that the files do not list; listed ids are 0 or more."""
_INT64 = 2**63
_AGAIN = "expected an annotation file of COCO; download it again"


def segmentation_text(value: Any) -> str:
    """Return a segmentation as canonical JSON; an empty text for None (the annotation has no segmentation). Raises
    ValueError if it is not a segmentation; the text says what was found."""
    if value is None:
        return ""
    if isinstance(value, list):
        for polygon in value:
            _check_polygon(polygon)
    elif isinstance(value, dict):
        runs_of(value)
    else:
        raise ValueError(f"{type(value).__name__}, expected polygons or a run-length encoding")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def mask_size(text: str) -> tuple[int, int] | None:
    """Return height and width of the mask in a segmentation's text; None for polygons, which have no size."""
    if not text.startswith("{"):
        return None
    height, width = json.loads(text)["size"]
    return height, width


def is_coordinate(value: Any) -> bool:
    return type(value) in (int, float) and -MAX_COORDINATE <= value <= MAX_COORDINATE


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
    id: int
    image_id: int
    caption: str

    def columns(self) -> Values:
        return {"id": self.id, "text": self.caption}


class Segment(msgspec.Struct):
    """Fields that objects and panoptic segments have in common."""

    id: int
    category_id: int
    iscrowd: int
    bbox: tuple[float, float, float, float]
    area: float

    def columns(self) -> Values:
        if not all(is_coordinate(value) for value in (*self.bbox, self.area)):
            raise ValueError(f"a bbox or an area with a value that is not a number up to {MAX_COORDINATE:,.0f}")
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
    image_id: int
    segmentation: Any = None

    def columns(self) -> Values:
        try:
            text = segmentation_text(self.segmentation)
        except ValueError as error:
            raise ValueError(f"segmentation: {error}") from error
        return super().columns() | {"segmentation": text}


class Person(Instance, kw_only=True):
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


class CocoAnnotations:
    """The annotations of one split, by image. Use it in a `with` block, which removes the temporary files.

    Args:
        folder: Folder of the split's images, e.g. `train2017`.
        features: Features of the dataset; features without annotations in this split are empty.
    """

    def __init__(self, root: Storage, folder: str, kinds: tuple[str, ...], features: Features) -> None:
        self._root, self._folder, self._features = root, folder, features
        self._chosen = kinds
        self._stack = ExitStack()
        self._kinds: dict[str, _Kind] = {}
        self._images: dict[str, CocoImage] = {}
        self._used: set[str] = set()
        self._panoptic: PanopticImages | None = None
        self.sources: list[SourceFile] = []
        """The original files that were read."""

    def __enter__(self) -> CocoAnnotations:
        if not self._features:
            return self
        try:
            for kind in self._chosen:
                self._read(kind, self._required(kind))
            if not self._chosen:
                found = find_json(self._root, "image_info", self._folder)
                if found is not None:
                    self._read("image_info", found)
            self._refuse_shared_ids()
            if "panoptic" in self._kinds:
                self._panoptic = self._stack.enter_context(PanopticImages(self._root, self._folder))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(kind) for name, kind in self._kinds.items() if name in KINDS}

    @property
    def categories(self) -> dict[str, dict[int, str]]:
        """Names of the categories by id, for each kind that has some."""
        return {name: kind.categories for name, kind in self._kinds.items() if kind.categories}

    def unused(self) -> list[str]:
        """Return the file names of listed images for which `of` was not called."""
        return [name for name in self._images if name not in self._used]

    def unlisted(self) -> list[str]:
        """Return the images for which `of` was called but that no annotation file lists; empty if no file was read."""
        return sorted(self._used - self._images.keys()) if self._kinds else []

    def of_unlisted(self) -> dict[str, int]:
        """Return the number of annotations whose image no file lists, by kind; kinds without any are left out."""
        known = [image.id for image in self._images.values()]
        counts = {name: kind.count_of_others(known) for name, kind in self._kinds.items()}
        return {name: count for name, count in counts.items() if count}

    def of(self, file_name: str) -> bytes:
        """Return the annotations of an image as canonical JSON; empty if the dataset has no features.

        An image that the files do not list has no annotations, and the id NO_IMAGE, because its name may look like
        another image's id. Raises SourceError if an annotation does not fit the image, or there are too many.
        """
        if not self._features:
            return b""
        image = self._images.get(file_name, CocoImage(NO_IMAGE, file_name, 0, 0))
        self._used.add(file_name)
        values: Values = {
            "coco_url": image.coco_url,
            "date_captured": image.date_captured,
            "filename": file_name,
            "flickr_url": image.flickr_url,
            "image_id": image.id,
            "license": image.license,
            "original_height": image.height,
            "original_width": image.width,
        }
        try:
            for name, kind in self._kinds.items():
                if name in KINDS and image.id != NO_IMAGE:
                    values |= self._values_of(kind, image)
            empty = {name: _empty(feature) for name, feature in self._features.items()}
            return annotations_json(self._features, empty | {name: values[name] for name in empty.keys() & values})
        except FormatError as error:
            where = ", ".join(kind.url for kind in self._kinds.values()) or self._root.url
            raise SourceError(f"{where}: image {shown(file_name)}: {error}; {_AGAIN}") from error

    def _required(self, kind: str) -> AnnotationFile:
        found = find_json(self._root, kind, self._folder)
        if found is None:
            archive = archive_of(kind, self._folder)
            raise SourceError(
                f"{self._root.url}: no {kind} of {self._folder}: expected {archive}, or its files unpacked in "
                "annotations/; download it, or name other annotations with `annotations`"
            )
        return found

    # One file

    def _read(self, name: str, file: AnnotationFile) -> None:
        kind = _Kind(name, file.url)
        ids = array("q")
        with file.open() as stream:
            for array_name, element in top_level_items(stream, file.url):
                if array_name == "images":
                    self._add_image(kind, element)
                elif array_name == "categories":
                    _add_category(kind, element)
                elif array_name == "annotations" and name in KINDS:
                    ids.append(_add_annotation(kind, element, len(ids)))
        _refuse_twice(kind, ids)
        kind.categories = dict(sorted(kind.categories.items()))
        self._kinds[name] = kind
        if file.source not in self.sources:
            self.sources.append(file.source)

    def _add_image(self, kind: _Kind, element: Any) -> None:
        where = f"{kind.url}: image {quoted(element.get('id')) if isinstance(element, dict) else quoted(element)}"
        image = convert(element, CocoImage, where=where, advice=_AGAIN, error=SourceError)
        sides_fit = all(0 <= side <= MAX_COORDINATE for side in (image.height, image.width))
        if not 0 <= image.id < _INT64 or not 0 <= image.license < _INT64 or not sides_fit:
            raise SourceError(f"{where}: a number out of range; {_AGAIN}")
        if len(self._images) >= MAX_IMAGES:
            raise SourceError(f"{where}: over {MAX_IMAGES:,} images; {_AGAIN}")
        known = self._images.setdefault(image.file_name, image)
        if known is not image and (known.id, known.height, known.width) != (image.id, image.height, image.width):
            raise SourceError(
                f"{where}: {shown(image.file_name)} is listed before with the id {known.id} and the size "
                f"{known.width}x{known.height}; {_AGAIN}"
            )

    def _refuse_shared_ids(self) -> None:
        files: dict[int, str] = {}
        for image in self._images.values():
            other = files.setdefault(image.id, image.file_name)
            if other != image.file_name:
                urls = ", ".join(kind.url for kind in self._kinds.values())
                raise SourceError(
                    f"{urls}: {shown(other)} and {shown(image.file_name)} both have the id {image.id}; {_AGAIN}"
                )

    # One image

    def _values_of(self, kind: _Kind, image: CocoImage) -> Values:
        found = list(kind.of(image.id))
        if kind.name == "panoptic":
            return self._panoptic_values(kind, found)
        for value in found:
            size = mask_size(value.get("segmentation", ""))
            if size is not None and size != (image.height, image.width):
                raise FormatError(
                    f"{kind.name} {value['id']}: a mask of {size[1]}x{size[0]} pixels, the image has "
                    f"{image.width}x{image.height}"
                )
        return {RECORDS[kind.name]: self._columns(kind, found)}

    def _panoptic_values(self, kind: _Kind, found: list[Values]) -> Values:
        if not found:
            return {}
        (value,) = found
        picture = self._panoptic.read(value["file_name"]) if self._panoptic is not None else b""
        return {
            "panoptic_filename": value["file_name"],
            "panoptic_image": picture,
            "panoptic_objects": self._columns(kind, value["segments"]),
        }

    def _columns(self, kind: _Kind, found: list[Values]) -> Values:
        columns = self._features[RECORDS[kind.name]].columns
        if "category" in columns:
            labels = self._labels.get(kind.name, {})
            found = [value | _category_of(kind.name, value, kind.categories, labels) for value in found]
        return {name: [value[name] for value in found] for name in columns}

    @cached_property
    def _labels(self) -> dict[str, dict[int, int]]:
        """Position of each category among all categories in the order of their ids, by kind."""
        return {name: {number: at for at, number in enumerate(ids)} for name, ids in self.categories.items()}


def category_names(root: Storage, kind: str, folder: str) -> dict[int, str] | None:
    """Return the categories of one file, names by id, or None if the file does not exist."""
    file = find_json(root, kind, folder)
    if file is None:
        return None
    found = _Kind(kind, file.url)
    with file.open() as stream:
        for name, element in top_level_items(stream, file.url):
            if name == "categories":
                _add_category(found, element)
    return found.categories


def _check_polygon(polygon: Any) -> None:
    if not isinstance(polygon, list) or len(polygon) % 2:
        count = f"{len(polygon):,} numbers" if isinstance(polygon, list) else type(polygon).__name__
        raise ValueError(f"a polygon of {count}, expected x and y of each point")
    if not all(map(is_coordinate, polygon)):
        raise ValueError(f"a polygon with a coordinate that is not a number up to {MAX_COORDINATE:,.0f}")


class _Kind:
    """The annotations of one kind, for one split: values by image, in a temporary file."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.categories: dict[int, str] = {}
        """Names of the categories by their id, in the order of the ids."""
        self._scratch = ScratchFile("the annotations of COCO")
        self._images, self._offsets = array("q"), array("q")
        self._end = 0
        self._order: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._images)

    def add(self, image: int, value: Values) -> None:
        place = self._scratch.append(json.dumps(value, separators=(",", ":")).encode())
        self._images.append(image)
        self._offsets.append(place.offset)
        self._end = place.offset + place.num_bytes

    def count_of_others(self, images: Sequence[int]) -> int:
        return int(np.isin(np.array(self._images, np.int64), images, invert=True).sum())

    def of(self, image: int) -> Iterator[Values]:
        """Yield the values of an image, in the order in which they were added; none can be added afterwards."""
        if self._order is None:
            self._offsets.append(self._end)
            images = np.array(self._images, np.int64)
            order = np.argsort(images, kind="stable")
            self._order = order, images[order]
        order, images = self._order
        first, stop = np.searchsorted(images, [image, image + 1])
        for number in order[first:stop].tolist():
            start = self._offsets[number]
            value: Values = json.loads(self._scratch.read(Extent(start, self._offsets[number + 1] - start)))
            yield value


def _category_of(kind: str, value: Values, categories: Mapping[int, str], labels: Mapping[int, int]) -> Values:
    """Return name and label of an object's category. Raises FormatError for one that the file does not list."""
    number = value["category_id"]
    if number not in categories:
        raise FormatError(f"{kind} {value['id']}: category_id {number}, which is not among the file's categories")
    return {"category": categories[number], "label": labels[number]}


def _empty(feature: Feature) -> Any:
    if feature.kind == "records":
        return {name: [] for name in feature.columns}
    return b"" if feature.kind == "bytes" else ""


def _add_category(kind: _Kind, element: Any) -> None:
    category = convert(element, Category, where=f"{kind.url}: a category", advice=_AGAIN, error=SourceError)
    if category.id in kind.categories or not 0 <= category.id < _INT64:
        raise SourceError(f"{kind.url}: category {category.id} is listed twice, or its id is out of range; {_AGAIN}")
    kind.categories[category.id] = category.name


def _add_annotation(kind: _Kind, element: Any, count: int) -> int:
    """Check an annotation and write it to the temporary file; return its id."""
    number = element.get("image_id" if kind.name == "panoptic" else "id") if isinstance(element, dict) else element
    where = f"{kind.url}: annotation {quoted(number)}"
    if count >= MAX_ANNOTATIONS:
        raise SourceError(f"{where}: over {MAX_ANNOTATIONS:,} annotations; {_AGAIN}")
    found = convert(element, TYPES[kind.name], where=where, advice=_AGAIN, error=SourceError)
    if not 0 <= found.image_id < _INT64 or not 0 <= found.id < _INT64:
        raise SourceError(f"{where}: an id out of range; {_AGAIN}")
    try:
        kind.add(found.image_id, found.columns())
    except ValueError as error:
        raise SourceError(f"{where}: {error}; {_AGAIN}") from error
    return found.id


def _refuse_twice(kind: _Kind, ids: array[int]) -> None:
    if not ids:
        return
    numbers, counts = np.unique(np.frombuffer(ids, np.int64), return_counts=True)
    if (counts > 1).any():
        raise SourceError(f"{kind.url}: two annotations with the id {numbers[counts.argmax()]}; {_AGAIN}")
