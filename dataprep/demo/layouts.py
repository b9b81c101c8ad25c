"""Writes demo images in the layouts of the original archives, with their names, order and label files."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

from PIL import Image

from dataprep.arrays import NDArray, np
from dataprep.dataset.randomness import permutation, philox_words
from dataprep.demo.images import MadeImage, encode
from dataprep.sources.imagenet import TRAIN_TAR, VAL_TAR, published_classes
from dataprep.sources.imagenet_labels import BBOX, DEVKIT, published_ids, val_name

COCO_ARCHIVES = ("train2017.zip", "unlabeled2017.zip", "val2017.zip")
IMAGES_PER_CLASS = 20
TRAIN_IMAGES_PER_VAL_IMAGE = 20
_SYNSET_FIELDS = (
    "ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height", "num_train_images",
)  # fmt: skip
_PLAIN_FILE = 0o100644 << 16
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
Document = dict[str, Any]


@dataclass(frozen=True)
class CocoLayout:
    """Layout of COCO 2017: three zips of stored members in one folder each; the files' names have twelve digits."""

    images: int
    """Number of images in the split train, divided between train2017 and unlabeled2017 as in COCO."""
    seed: int = 0
    """Seed of the annotations."""
    annotated: bool = False
    """Whether the archives of annotations are written."""

    classes = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the archives."""
        return COCO_ARCHIVES + ((ARCHIVE, PANOPTIC_ARCHIVE) if self.annotated else ())

    @property
    def val_images(self) -> int:
        return max(1, self.images // TRAIN_IMAGES_PER_VAL_IMAGE)

    @property
    def _labelled(self) -> int:
        return max(1, self.images * 118_287 // 241_690)

    def photograph(self, index: int) -> int:
        """Choose the photograph of image `index`; the split val follows after train.

        Neighbours have the same photograph, which stays in the processor's cache: 10 ms an image instead of 17.
        """
        return index // IMAGES_PER_CLASS

    def train_key(self, index: int) -> str:
        """Return the key of the image at a position of the split train."""
        folder, number = ("train2017", index) if index < self._labelled else ("unlabeled2017", index - self._labelled)
        return f"{folder}/{_coco_number(number)}"

    def write(self, directory: Path, images: Iterator[MadeImage]) -> None:
        """Write all archives, each completely or not at all."""
        counts = (self._labelled, self.images - self._labelled, self.val_images)
        described: dict[str, list[Described]] = {}
        for file, count in zip(COCO_ARCHIVES, counts, strict=True):
            folder = file.removesuffix(".zip")
            described[folder] = []
            with _whole(directory / file) as stream, zipfile.ZipFile(stream, "w") as archive:
                archive.writestr(zipfile.ZipInfo(f"{folder}/"), b"")
                for number in range(count):
                    header = zipfile.ZipInfo(f"{folder}/{_coco_number(number)}.jpg")
                    header.external_attr = _PLAIN_FILE
                    made = next(images)
                    archive.writestr(header, made.file)
                    name = f"{_coco_number(number)}.jpg"
                    described[folder].append(Described(name, int(_coco_number(number)), made.width, made.height))
        if self.annotated:
            del described["unlabeled2017"]
            self._write_annotations(directory, described)

    def _write_annotations(self, directory: Path, described: dict[str, list[Described]]) -> None:
        with _whole(directory / ARCHIVE) as plain, _whole(directory / PANOPTIC_ARCHIVE) as panoptic:
            write_annotations({ARCHIVE: plain, PANOPTIC_ARCHIVE: panoptic}, described, self.seed)


@dataclass(frozen=True)
class ImageNetLayout:
    """Layout of ILSVRC2012: a tar of class tars, a flat tar for val, and its labels in both published forms."""

    images: int
    seed: int

    files = (TRAIN_TAR, VAL_TAR, DEVKIT, BBOX)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """WNIDs of the classes, spread over the published list, with IMAGES_PER_CLASS images each if possible."""
        count = max(2, min(1000, self.images // IMAGES_PER_CLASS))
        return tuple(published_classes()[i * 1000 // count] for i in range(count))

    @property
    def val_images(self) -> int:
        return len(self.classes) * max(1, self.images // TRAIN_IMAGES_PER_VAL_IMAGE // len(self.classes))

    def photograph(self, index: int) -> int:
        """Choose the photograph of image `index`: one for each class."""
        if index < self.images:
            return self._train_label(index)
        return self._val_labels[index - self.images]

    def train_key(self, index: int) -> str:
        """Return the key of the image at a position of the split train."""
        wnid = self.classes[self._train_label(index)]
        return f"{wnid}/{wnid}_{_imagenet_number(index)}"

    def write(self, directory: Path, images: Iterator[MadeImage]) -> None:
        """Write all archives, each completely or not at all."""
        with _whole(directory / TRAIN_TAR) as stream, _tar(stream) as train:
            self._add_class_tars(train, images)
        boxes = io.BytesIO()
        with _whole(directory / VAL_TAR) as stream, _tar(stream) as val, _tar(boxes) as annotations:
            for number in range(1, self.val_images + 1):
                made = next(images)
                wnid = self.classes[self._val_labels[number - 1]]
                _add(val, f"{val_name(number)}.JPEG", made.file)
                _add(annotations, f"val/{val_name(number)}.xml", _annotation(val_name(number), wnid, made))
        with _whole(directory / DEVKIT) as stream:
            stream.write(_gzipped(self._devkit()))
        with _whole(directory / BBOX) as stream:
            stream.write(_gzipped(boxes.getvalue()))

    def _train_label(self, index: int) -> int:
        return index * len(self.classes) // self.images

    @cached_property
    def _val_labels(self) -> tuple[int, ...]:
        """Labels of the validation images, shuffled as in ImageNet."""
        order = permutation(self.val_images, seed=self.seed, purpose="demo/val")
        return tuple(int(place) % len(self.classes) for place in order)

    def _add_class_tars(self, train: tarfile.TarFile, images: Iterator[MadeImage]) -> None:
        index = 0
        for label, wnid in enumerate(self.classes):
            content = io.BytesIO()
            with _tar(content) as class_tar:
                while index < self.images and self._train_label(index) == label:
                    _add(class_tar, f"{wnid}_{_imagenet_number(index)}.JPEG", next(images).file)
                    index += 1
            _add(train, f"{wnid}.tar", content.getvalue())

    def _devkit(self) -> bytes:
        """Return a tar of meta.mat and the ground truth; IDs are not in the order of WNIDs."""
        ids = published_ids()
        ground_truth = "".join(f"{ids[self.classes[label]]}\n" for label in self._val_labels)
        content = io.BytesIO()
        with _tar(content) as tar:
            folder = DEVKIT.removesuffix(".tar.gz")
            _add(tar, f"{folder}/readme.txt", b"Demo data in the layout of the ILSVRC2012 development kit.\n")
            _add(tar, f"{folder}/data/meta.mat", _meta_mat({ids[wnid]: wnid for wnid in self.classes}))
            _add(tar, f"{folder}/data/ILSVRC2012_validation_ground_truth.txt", ground_truth.encode())
        return content.getvalue()


def _coco_number(index: int) -> str:
    return f"{9 + 5 * index:012d}"


def _imagenet_number(index: int) -> int:
    return 18 + 13 * index


def _meta_mat(wnid_of_id: dict[int, str]) -> bytes:
    """Return a MATLAB file with the struct array `synsets`: the classes, then an inner node above them."""
    import scipy.io

    inner = len(published_ids()) + 1
    rows = [(float(i), wnid, f"demo class {wnid}", "", 0.0, 0.0, 0.0, 0.0) for i, wnid in sorted(wnid_of_id.items())]
    rows.append((float(inner), "n00001740", "entity", "", float(len(rows)), 1.0, 1.0, 0.0))
    synsets = np.array(rows, dtype=[(name, object) for name in _SYNSET_FIELDS])[:, None]
    content = io.BytesIO()
    scipy.io.savemat(content, {"synsets": synsets}, do_compression=True)
    header = b"MATLAB 5.0 MAT-file, demo data".ljust(116)  # SciPy writes the time here
    return header + content.getvalue()[len(header) :]


def _annotation(name: str, wnid: str, image: MadeImage) -> bytes:
    box = f"<xmin>0</xmin><ymin>0</ymin><xmax>{image.width}</xmax><ymax>{image.height}</ymax>"
    return (
        f"<annotation>\n\t<folder>val</folder>\n\t<filename>{name}</filename>\n"
        f"\t<size><width>{image.width}</width><height>{image.height}</height><depth>3</depth></size>\n"
        f"\t<object><name>{wnid}</name><bndbox>{box}</bndbox></object>\n</annotation>\n"
    ).encode()


def _tar(stream: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(data)
    tar.addfile(header, io.BytesIO(data))


def _gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its final name when it is completely written."""
    spool = path.with_name(f".{path.name}.part")
    with spool.open("wb") as stream:
        yield stream
    spool.replace(path)


class Described(NamedTuple):
    """Facts about a demo image that its annotations need."""

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
    """
    with zipfile.ZipFile(streams[ARCHIVE], "w") as plain, zipfile.ZipFile(streams[PANOPTIC_ARCHIVE], "w") as panoptic:
        for folder, images in splits.items():
            for name, document in _documents(images, folder, seed):
                _add_to_zip(plain, f"annotations/{name}_{folder}.json", json.dumps(document).encode())
            document, pictures = _panoptic(images, folder, seed)
            _add_to_zip(panoptic, f"annotations/panoptic_{folder}.json", json.dumps(document).encode())
            _add_to_zip(panoptic, f"annotations/panoptic_{folder}.zip", pictures)


def _add_to_zip(archive: zipfile.ZipFile, name: str, data: bytes, method: int = zipfile.ZIP_DEFLATED) -> None:
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
    yield ("instances", {**shared, "annotations": [instances[place] for place in order], "categories": CATEGORIES})
    person = CATEGORIES[0] | {"keypoints": KEYPOINT_NAMES, "skeleton": [[16, 14], [14, 12]]}
    annotated = [keypoints | instance for instance, keypoints in people]
    yield "person_keypoints", {**shared, "annotations": annotated, "categories": [person]}


def _shared(images: Sequence[Described], folder: str) -> Document:
    """Return the fields that all annotation files of a split share."""
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
    found = {"segmentation": polygons, "area": sum(map(_area, polygons)), "iscrowd": 0, "image_id": image.number}
    return found | {"bbox": [left, top, width, height], "category_id": category}


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
    mask = {"counts": counts, "size": [image.height, image.width]}
    found = {"segmentation": mask, "area": width * height, "iscrowd": 1, "image_id": image.number}
    return found | {"bbox": list(box), "category_id": category}


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
        _add_to_zip(archive, f"panoptic_{folder}/", b"", zipfile.ZIP_STORED)
        for image in images:
            segments, ids_HW = _segments(_Draws(seed, image, f"panoptic/{folder}"), image)
            file = image.file.replace(".jpg", ".png")
            _add_to_zip(archive, f"panoptic_{folder}/{file}", _png(ids_HW), zipfile.ZIP_STORED)
            annotations.append({"segments_info": segments, "file_name": file, "image_id": image.number})
    document = {**_shared(images, folder), "annotations": annotations, "categories": PANOPTIC_CATEGORIES}
    return document, packed.getvalue()


def _segments(draws: _Draws, image: Described) -> tuple[list[Document], NDArray[np.uint32]]:
    """Cut an image into upright stripes; return them, and the segment id of each pixel."""
    ids_HW = np.zeros((image.height, image.width), np.uint32)
    segments: list[Document] = []
    bounds = sorted({0, image.width, *(draws.below(image.width) for _ in range(2))})
    for left, right in pairwise(bounds):
        number = 1 + draws.below(2**24 - 1)
        category = PANOPTIC_CATEGORIES[draws.below(len(PANOPTIC_CATEGORIES))]
        ids_HW[:, left:right] = number
        box, area = [left, 0, right - left, image.height], (right - left) * image.height
        segments.append({"id": number, "category_id": category["id"], "iscrowd": 0, "bbox": box, "area": area})
    return segments, ids_HW


def _png(ids_HW: NDArray[np.uint32]) -> bytes:
    pixels_HWC = np.stack([ids_HW >> shift & 0xFF for shift in (0, 8, 16)], axis=-1).astype(np.uint8)
    return encode(Image.fromarray(pixels_HWC, "RGB"), "PNG")
