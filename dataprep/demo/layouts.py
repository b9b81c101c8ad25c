"""Writes demo images in the layouts of the original archives, with their names, order and label files."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from dataprep.dataset.randomness import permutation
from dataprep.demo.annotations import ARCHIVE, PANOPTIC_ARCHIVE, Described, write_annotations
from dataprep.demo.images import MadeImage
from dataprep.sources.imagenet import TRAIN_TAR, VAL_TAR, published_classes
from dataprep.sources.imagenet_labels import BBOX, DEVKIT, published_ids, val_name

COCO_ARCHIVES = ("train2017.zip", "unlabeled2017.zip", "val2017.zip")
IMAGES_PER_CLASS = 20
TRAIN_IMAGES_PER_VAL_IMAGE = 20
_SYNSET_FIELDS = (
    "ILSVRC2012_ID",
    "WNID",
    "words",
    "gloss",
    "num_children",
    "children",
    "wordnet_height",
    "num_train_images",
)
_PLAIN_FILE = 0o100644 << 16


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
        """Write all archives, each whole or not at all."""
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
        """WNIDs of the classes, spread over the published list, with at least IMAGES_PER_CLASS images each if
        possible."""
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
        """Write all archives, each whole or not at all."""
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
    import numpy as np
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
