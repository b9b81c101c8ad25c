"""ImageNet (ILSVRC2012) from its tars, from unpacked folders, or from the Hugging Face Hub's parquet files: the first
of these that exists is used. ImageNet-21k has the same layout with other counts.

train: `ILSVRC2012_img_train.tar`, a tar of 1,000 class tars; or `train/<wnid>/*.JPEG`; or `train/<wnid>.tar`.
val: `ILSVRC2012_img_val.tar`; or `val/` flat; or `val/<wnid>/*.JPEG`. The first two take their labels from a file
(imagenet_labels.py). Folders may be in `ILSVRC/Data/CLS-LOC/`, as Kaggle has them. A label is the rank of the WNID in
the sorted class list.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import filterfalse
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from dataprep.arrays import np
from dataprep.dataset.paths import is_hidden_name
from dataprep.dataset.records import Enumeration, SourceFile
from dataprep.dataset.spill import SpilledItems
from dataprep.errors import SourceError, StorageError, UsageError
from dataprep.formats.tars import ByteReader, Member, damaged, plain_files, tar_members
from dataprep.messages import human_bytes, shell_words, shown
from dataprep.sources import base, image_tables
from dataprep.sources.archives import ArchiveReader, Progress, StreamReader
from dataprep.sources.base import MAX_SAMPLES, RefCollector, SplitFacts
from dataprep.sources.folders import FILES, FolderFile, folder_files, tree_files
from dataprep.sources.imagenet_labels import (
    BBOX,
    BOXES,
    DEVKIT,
    KAGGLE_CSV,
    KAGGLE_FOLDERS,
    KAGGLE_IMAGES,
    WNID,
    ValLabels,
    published_ids,
    read_val_labels,
)
from dataprep.sources.keys import IMAGE_SUFFIXES, is_hidden
from dataprep.sources.unpacked import PARQUET, unpacking_note
from dataprep.storage.base import ObjectInfo, Storage

TRAIN_TAR = "ILSVRC2012_img_train.tar"
VAL_TAR = "ILSVRC2012_img_val.tar"
GZIP_MAGIC = b"\x1f\x8b"
_WNID_OR_TAR = re.compile(rf"{WNID.pattern}(\.tar)?")
LABEL_COLUMN = "label"
_TRAIN = re.compile(r"((n\d{8})_\d+)(?:_(n\d{8}))?\.JPEG", re.ASCII)
_VAL = re.compile(r"(ILSVRC2012_val_\d{8})(?:_(n\d{8}))?\.JPEG", re.ASCII)
_TRAIN_EXAMPLE, _VAL_EXAMPLE = "n01440764_10026_n01440764.JPEG", "ILSVRC2012_val_00000293_n01440764.JPEG"
_EXPECTED = "expected the names of the Hub's ILSVRC/imagenet-1k, such as"


@cache
def published_classes() -> tuple[str, ...]:
    """Return the 1,000 WNIDs of ILSVRC2012, sorted."""
    return tuple(published_ids())


@dataclass(frozen=True, kw_only=True)
class ImageNet(base.Dataset):
    """ILSVRC2012's classification images."""

    def opened(self, root: Storage, reading: base.Reading = base.READ_ALL) -> ImageNet:
        """Return the dataset for the originals that exist: tars, folders, or parquet files of the Hub."""
        if root.stat(TRAIN_TAR) is not None or root.stat(VAL_TAR) is not None:
            return self
        tables = hub_tables(root)
        if not tables:
            return self
        num_bytes = sum(table.num_bytes for split in reading.splits for table in tables.get(split, ()))
        note = unpacking_note(f"about {human_bytes(num_bytes)}")
        return HubImageNet(**vars(self) | {"notes": (note,)}, tables=tables, unpack_to=reading.unpack_to)

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return the published WNIDs; with `allow_partial` those found among train images, or else val images."""
        if not allow_partial:
            return published_classes()
        if root.stat(TRAIN_TAR) is not None:
            with ArchiveReader(root, TRAIN_TAR, stream=False) as reader:
                return tuple(sorted(wnid for wnid, _ in _class_tars(reader)))
        for split in ("train", "val"):
            if found := classes_in_folder(_split_folder(root, split)[1]):
                return found
        labels = read_val_labels(root)
        return labels.classes if labels else ()

    def _find(self, root: Storage, wanted: base.SplitRequest) -> Enumeration:
        classes = wanted.classes if wanted.allow_partial else published_classes()
        if wanted.split == "train":
            return _Finder(root, "train", classes, wanted.progress).train()
        if classes is None:
            classes = self.classes(root, allow_partial=True)
        return _Finder(root, "val", classes, wanted.progress).val()


IMAGENET = ImageNet(
    name="imagenet",
    description=(
        "ImageNet as in the Large Scale Visual Recognition Challenge 2012: 1,281,167 images of 1,000 classes to train "
        "with, 50,000 to validate."
    ),
    citation=(
        "@article{russakovsky2015imagenet, title={{ImageNet} Large Scale Visual Recognition Challenge}, author={"
        "Russakovsky, Olga and Deng, Jia and Su, Hao and Krause, Jonathan and Satheesh, Sanjeev and Ma, Sean and "
        "Huang, Zhiheng and Karpathy, Andrej and Khosla, Aditya and Bernstein, Michael and Berg, Alexander C. and "
        "Fei-Fei, Li}, journal={International Journal of Computer Vision}, volume={115}, number={3}, "
        "pages={211--252}, year={2015}}"
    ),
    licence="Non-commercial research and education only; terms of access at https://www.image-net.org/download.php",
    origin="https://www.image-net.org/challenges/LSVRC/2012/",
    facts={
        "train": base.SplitFacts(
            samples=1_281_167,
            class_samples=(732, 1_300),
            archives=(
                base.ArchiveFacts(name=TRAIN_TAR, num_bytes=147_897_477_120, md5="1d675b47d978889d74fa0da5fadfb00e"),
            ),
        ),
        "val": base.SplitFacts(
            samples=50_000,
            class_samples=(50, 50),
            archives=(
                base.ArchiveFacts(name=VAL_TAR, num_bytes=6_744_924_160, md5="29b22e2961454d5413ddabcf34fc5622"),
                base.ArchiveFacts(name=DEVKIT, md5="fa75699e90414af021442c21a62c3abf"),
                base.ArchiveFacts(name=BBOX, md5="f4cd18b5ea29fe6bbea62ec9c20d80f0"),
            ),
        ),
    },
    default_splits=("train", "val"),
)


@dataclass(frozen=True, kw_only=True)
class HubImageNet(ImageNet):
    """ILSVRC2012's images in parquet files of the Hugging Face Hub."""

    tables: Mapping[str, Sequence[image_tables.ImageTable]]
    """Parquet files of each split."""
    unpack_to: Storage | None

    def opened(self, root: Storage, reading: base.Reading = base.READ_ALL) -> HubImageNet:
        """Return this dataset; its tables were found before."""
        return self

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return the published WNIDs; with `allow_partial` the WNIDs of the train images, or else of all."""
        if not allow_partial:
            return published_classes()
        tables = self.tables.get("train") or [table for found in self.tables.values() for table in found]
        return tuple(sorted(set(wnids_in(tables))))

    def _find(self, root: Storage, wanted: base.SplitRequest) -> Enumeration:
        split, known = wanted.split, wanted.classes if wanted.allow_partial else None
        if known is None:
            known = self.classes(root, allow_partial=wanted.allow_partial)
        finder = _Finder(root, split, known, wanted.progress)
        if not self.tables.get(split):
            raise finder.absent(f"parquet files with {split} in their names")
        expected = None if wanted.allow_partial else known
        images = _HubImages(expected, self.unpack_to, wanted.progress)
        for table in self.tables[split]:
            source = image_tables.packed_source(table, is_unpacked=True)
            finder.found.sources.append(source)
            for where, wnid, parts, image in images.read(table, source, split):
                member = Member(parts[-1], image.offset, image.num_bytes)
                finder.found.add(parts, table.name, member, finder.label(wnid, where), crc32c=image.crc32c)
        return replace(finder.enumeration_found(), is_checked=True)


class _Finder:
    """Collects one split; any class but `classes` is refused immediately, unless they are None."""

    def __init__(self, root: Storage, split: str, classes: tuple[str, ...] | None, progress: Progress | None) -> None:
        self.root, self.split, self.classes, self.progress = root, split, classes, progress
        self.found = base.RefCollector(root, split)
        self._labels = {wnid: label for label, wnid in enumerate(classes or ())}

    def label(self, wnid: str, where: str) -> int:
        label = self._labels.get(wnid)
        if label is None and self.classes is None and WNID.fullmatch(wnid):
            label = self._labels[wnid] = len(self._labels)  # preliminary, until all classes are known
        if label is not None:
            return label
        of, way = f"the {len(self._labels):,} expected", "the existing classes with `allow_partial`"
        if not WNID.fullmatch(wnid):
            of = "ImageNet's, whose names are n and eight digits"
            way = f"pictures of your own with: {_own_command(self.root)}"
        raise SourceError(f"{where}: class {shown(wnid)} is not one of {of}; remove it, or build {way}")

    def enumeration_found(self) -> Enumeration:
        """Return the collected references; labels are positions in the sorted class list."""
        met = tuple(self._labels)
        classes = tuple(sorted(met))
        if classes != met:
            ranks = {wnid: rank for rank, wnid in enumerate(classes)}
            self.found.refs = self.found.refs.relabelled([ranks[wnid] for wnid in met])
        return self.found.enumeration(classes)

    def absent(self, expected: str, dataset: str = "imagenet") -> SourceError:
        return SourceError(
            f"{self.root.url}: {dataset} {self.split}: not found: expected {expected}; check `source`, or build "
            f"pictures of your own with: {_own_command(self.root)}"
        )

    def train(self) -> Enumeration:
        """List all images of the train tar or folder."""
        info = self.root.stat(TRAIN_TAR)
        if info is not None:
            return self.in_tar(info)
        folder, files = _split_folder(self.root, "train")
        if not len(files):
            raise self.absent(f"{TRAIN_TAR} or train/<wnid>/")
        return self.in_folder(folder, files)

    def in_tar(self, info: ObjectInfo) -> Enumeration:
        """List all images of a tar of class tars."""
        with ArchiveReader(self.root, info.name, progress=self.progress, info=info) as reader:
            for wnid, tar in _class_tars(reader):
                self._add_class_tar(reader, info.name, wnid, tar)
            self.found.sources.append(SourceFile(info.name, reader.num_bytes, version=reader.version))
        return self.enumeration_found()

    def in_folder(self, folder: str, files: SpilledItems[FolderFile]) -> Enumeration:
        """List all images of the class tars and class folders in a folder; `files` are the folder's files."""
        if self.classes is None:
            for wnid in classes_in_folder(files):
                self.label(wnid, wnid)
        for file in filter(_is_lone_tar, files):
            self._add_lone_tar(folder, file.parts[0])
        self._add_folders(folder, filterfalse(_is_lone_tar, files))
        return self.enumeration_found()

    def _add_lone_tar(self, folder: str, file_name: str) -> None:
        name = f"{folder}/{file_name}" if folder else file_name
        with ArchiveReader(self.root, name, progress=self.progress) as reader:
            whole = Member(file_name, 0, reader.num_bytes)
            self._add_class_tar(reader, name, file_name.removesuffix(".tar"), whole)
            self.found.sources.append(SourceFile(name, reader.num_bytes, version=reader.version))

    def _add_class_tar(self, reader: ByteReader, source: str, wnid: str, tar: Member) -> None:
        label = self.label(wnid, f"{reader.archive}: {shown(tar.name)}")
        start, stop = tar.offset, tar.offset + tar.num_bytes
        for files in plain_files(reader, start, stop):
            if not self.found.add_plain(wnid, source, files, label):
                break
            start = files.stop
        for member in tar_members(reader, start, stop, within=tar.name):
            parts = self.found.image_parts(reader, member, within=tar.name)
            if parts is None:
                continue
            if parts[:-1] not in ((), (wnid,)):
                what = "in a folder; expected the images of one class"
                raise damaged(reader, member.offset, what, member=member.name, within=tar.name)
            self.found.add((wnid, parts[-1]), source, member, label)

    def _add_folders(self, folder: str, files: Iterable[FolderFile]) -> None:
        for file in self.found.images_in_folder(folder, files):
            if len(file.parts) != 2:
                raise SourceError(
                    f"{self.root.url_of(folder)}: {shown(file.parts[0])}: an image outside the class folders; "
                    f"expected {folder}{'/' if folder else ''}<wnid>/: move it"
                )
            self.found.add_file(folder, file, file.parts, self.label(file.parts[0], self.root.url_of(folder)))

    def val(self) -> Enumeration:
        """List all images of the val tar or folder."""
        info = self.root.stat(VAL_TAR)
        if info is not None:
            tar_labels = self._read_labels()
            for reader, parts, member in self.found.images_in_archive(info, self.progress):
                label = self._label_of(tar_labels, parts[-1], f"{reader.archive}: {shown(member.name)}")
                self.found.add(parts[-1:], VAL_TAR, member, label)
            return self.enumeration_found()
        folder, files = _split_folder(self.root, "val")
        if not len(files):
            raise self.absent(f"{VAL_TAR}, val/ or val/<wnid>/")
        labels: ValLabels | None = None
        for file in self.found.images_in_folder(folder, files):
            where = f"{self.root.url_of(folder)}: {shown('/'.join(file.parts))}"
            if len(file.parts) == 2:
                label = self.label(file.parts[0], where)
            else:
                labels = labels or self._read_labels()
                label = self._label_of(labels, file.parts[0], where)
            self.found.add_file(folder, file, file.parts[-1:], label)
        return self.enumeration_found()

    def _read_labels(self) -> ValLabels:
        labels = read_val_labels(self.root)
        if labels is None:
            above, url = "", self.root.url.rstrip("/")
            if (top := url.removesuffix(f"/{KAGGLE_IMAGES[:-1]}")) != url:
                top = top.removesuffix("/ILSVRC")
                above = f"; if {KAGGLE_CSV} or {BOXES} are above, name the folder of all: `source` {shell_words(top)}"
            raise SourceError(
                f"{self.root.url}: imagenet val: no labels: expected {DEVKIT}, {BBOX} or {KAGGLE_CSV} next to the "
                f"images, {BOXES}/ as Kaggle has it, or images in folders val/<wnid>/{above}"
            )
        self.found.sources.append(SourceFile(labels.archive, labels.num_bytes))
        return labels

    def _label_of(self, labels: ValLabels, file_name: str, where: str) -> int:
        wnid = labels.wnids.get(file_name.rpartition(".")[0])
        if wnid is None:
            what = f"no label in {labels.archive}; expected a name such as ILSVRC2012_val_00000001.JPEG"
            raise SourceError(f"{where}: {what}")
        return self.label(wnid, where)

    def of_any_release(self) -> tuple[str, Enumeration]:
        """Return the name of the release (empty if file names do not show it) and its images."""
        for release in RELEASES:
            for suffix in (".tar", ".tar.gz"):
                info = self.root.stat(release + suffix)
                if info is not None:
                    _refuse_gzip(self.root, info)
                    return release, self.in_tar(info)
        for folder in (*RELEASES, "train", ""):
            files = folder_files(self.root, folder, depth=2) if folder else _files_in_root(self.root)
            if classes_in_folder(files):
                last = folder or self.root.url.rstrip("/").rpartition("/")[2]
                return last if last in RELEASES else "", self.in_folder(folder, files)
        raise self.absent("winter21_whole.tar, fall11_whole.tar, or a folder of <wnid>.tar or <wnid>/", "imagenet-21k")


def classes_in_folder(files: Iterable[FolderFile]) -> tuple[str, ...]:
    """Return the WNIDs of class folders and of class tars."""
    names = {file.parts[0].removesuffix(".tar") for file in files}
    return tuple(sorted(name for name in names if WNID.fullmatch(name)))


class Release(NamedTuple):
    """One release, as it was published."""

    images: int
    classes: int


RELEASES = {"winter21_whole": Release(13_153_500, 19_167), "fall11_whole": Release(14_197_122, 21_841)}
"""Releases by the name of their archive or folder."""


@dataclass(frozen=True, kw_only=True)
class ImageNet21k(base.Dataset):
    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return the WNIDs of the class tars or class folders."""
        return self._find(root, base.SplitRequest(split="train", allow_partial=True)).classes

    def _find(self, root: Storage, wanted: base.SplitRequest) -> Enumeration:
        release, found = _Finder(root, "train", None, wanted.progress).of_any_release()
        expected = {release: RELEASES[release]} if release else RELEASES
        counts = Release(len(found.refs), len(found.classes))
        if not wanted.allow_partial and counts not in expected.values():
            known = " or ".join(
                f"{each.images:,} images of {each.classes:,} classes ({name})" for name, each in expected.items()
            )
            what = f"{counts.images:,} images of {counts.classes:,} classes, expected {known}"
            raise base.unlike_published(f"{root.url}: imagenet-21k train", what)
        return found

    def _refuse_other_counts(self, root: Storage, split: str, facts: base.SplitFacts, found: Enumeration) -> None:
        """Do nothing: `_find` compares the counts with the release's."""


IMAGENET_21K = ImageNet21k(
    name="imagenet-21k",
    description=(
        "All of ImageNet: 13,153,500 images of 19,167 classes in the release of winter 2021, 14,197,122 images of "
        "21,841 classes in the release of fall 2011."
    ),
    citation=(
        "@inproceedings{deng2009imagenet, title={{ImageNet}: A Large-Scale Hierarchical Image Database}, author={Deng, "
        "Jia and Dong, Wei and Socher, Richard and Li, Li-Jia and Li, Kai and Fei-Fei, Li}, booktitle={IEEE Conference "
        "on Computer Vision and Pattern Recognition}, pages={248--255}, year={2009}}"
    ),
    licence="Non-commercial research and education only; terms of access at https://www.image-net.org/download.php",
    origin="https://www.image-net.org/download-images.php",
    facts={
        "train": base.SplitFacts(
            samples=RELEASES["winter21_whole"].images,
            archives=(base.ArchiveFacts(name="winter21_whole.tar.gz", md5="ab313ce03179fd803a401b02c651c0a2"),),
        )
    },
    default_splits=("train",),
)


def hub_tables(root: Storage) -> dict[str, list[image_tables.ImageTable]]:
    """Return the parquet files of each split; empty if the first known file is an image or an annotation, as in
    unpacked folders.

    Expects a source without tars.
    """
    for info in root.list():
        if is_hidden_name(info.name):
            continue
        if info.name.lower().endswith(PARQUET):
            return image_tables.tables_by_split(root, "", [])
        if info.name.rpartition(".")[2].lower() in {*IMAGE_SUFFIXES, "xml"}:
            break
    return {}


def wnids_in(tables: Sequence[image_tables.ImageTable]) -> Iterator[str]:
    """Yield the class in each image's name, without reading images; names without a class are skipped."""
    for table in tables:
        columns = image_tables.columns_of(table)
        image_column = image_tables.choose_image_column(table, columns, None)
        for row in image_tables.table_rows(
            table, image_column, frozenset(columns.kinds) - {image_column}, only_paths=True
        ):
            name = (image_tables.image_path(row) or "").rpartition("/")[2]
            train, val = _TRAIN.fullmatch(name), _VAL.fullmatch(name)
            if wnid := train[2] if train else (val[2] if val else None):
                yield wnid


class _HubImages:
    """Reader of the images of one split; a label is a position among its classes. Without classes any label is
    accepted, if each class always has the same one."""

    def __init__(self, classes: tuple[str, ...] | None, unpack_to: Storage | None, progress: Progress | None) -> None:
        self._classes, self._unpack_to, self._progress = classes, unpack_to, progress
        self._wnids = dict(enumerate(classes or ()))
        self._labels = {wnid: label for label, wnid in self._wnids.items()}

    def read(
        self, table: image_tables.ImageTable, source: SourceFile, split: str
    ) -> Iterator[tuple[str, str, tuple[str, ...], image_tables.PackedImage]]:
        """Yield the images of a table, each with its place for messages, its WNID and the components of its key. Raises
        SourceError if the file cannot be read, or an image's name or label is not ImageNet's."""
        columns = image_tables.columns_of(table)
        image_column = image_tables.choose_image_column(table, columns, None)
        if columns.kinds[image_column] != "struct":
            raise SourceError(
                f"{table.url}: column {image_column} holds {columns.types[image_column]}, {_EXPECTED} an image with "
                "bytes and path"
            )
        for image in image_tables.packed_images(
            table,
            source,
            image_column=image_column,
            drop=frozenset(columns.kinds) - {image_column, LABEL_COLUMN},
            unpack_to=self._unpack_to,
            progress=self._progress,
        ):
            where, label = f"{table.url} row {image.row.number}", image.row.values.get(LABEL_COLUMN)
            label = label if isinstance(label, int) else None
            name = (image_tables.image_path(image.row) or "").rpartition("/")[2]
            stem, wnid = self._parsed(where, name, split, label)
            if label is not None:
                self._check_label(where, wnid, label)
            yield where, wnid, (wnid, f"{stem}.JPEG") if split == "train" else (f"{stem}.JPEG",), image

    def _parsed(self, where: str, name: str, split: str, label: int | None) -> tuple[str, str]:
        """Return the first part of an image's name, and its class, which is found by label if the name lacks it."""
        pattern, example = (_TRAIN, _TRAIN_EXAMPLE) if split == "train" else (_VAL, _VAL_EXAMPLE)
        match, wnid = pattern.fullmatch(name), None
        if match is not None and split == "train":
            wnid = match[2] if match[3] in (None, match[2]) else None
        elif match is not None:
            wnid = match[2] or (self._wnids.get(label) if label is not None else None)
        if match is None or wnid is None:
            raise SourceError(f"{where}: image.path is {shown(name)}; {_EXPECTED} {example}")
        return match[1], wnid

    def _check_label(self, where: str, wnid: str, label: int) -> None:
        """Refuse the label of another class; the caller refuses unknown classes."""
        if self._classes is not None and wnid not in self._labels:
            return
        if self._classes is None:
            self._labels.setdefault(wnid, label)
            self._wnids.setdefault(label, wnid)
        if self._labels[wnid] != label or self._wnids.get(label) != wnid:
            raise SourceError(
                f"{where}: label {label} of class {wnid}, expected {self._labels[wnid]}, its position among the sorted "
                "WNIDs; is this another edition of ImageNet?"
            )


def _split_folder(root: Storage, split: str) -> tuple[str, SpilledItems[FolderFile]]:
    """Return the folder of a split with its files, in the source or in Kaggle's folders."""
    for folder in (split, *(f"{above}{KAGGLE_IMAGES}{split}" for above in KAGGLE_FOLDERS)):
        files = folder_files(root, folder, depth=2)
        if len(files):
            return folder, files
    return split, files


def _own_command(root: Storage) -> str:
    """Return the command that builds these files as the user's own pictures."""
    return f"dataprep build folder `source` {shell_words(root.url)} `output` OUTPUT `format` webdataset"


def _class_tars(reader: ArchiveReader) -> Iterator[tuple[str, Member]]:
    """Yield the class tars of the train tar, each with its WNID."""
    seen: set[str] = set()
    for member in tar_members(reader):
        parts = base.member_parts(reader, member)
        if member.is_directory or is_hidden(parts):
            continue
        wnid = parts[-1].removesuffix(".tar")
        if not (parts[-1].endswith(".tar") and WNID.fullmatch(wnid)) or wnid in seen:
            what = "it occurs twice" if wnid in seen else "no class tar; expected <wnid>.tar: remove it"
            raise damaged(reader, member.offset, what, member=member.name)
        seen.add(wnid)
        yield wnid, member


def _is_lone_tar(file: FolderFile) -> bool:
    return len(file.parts) == 1 and file.parts[0].endswith(".tar")


def _files_in_root(root: Storage) -> SpilledItems[FolderFile]:
    """List the class tars, and the files of class folders, directly in the source; ignore other files."""
    return SpilledItems(FILES, (file for file in tree_files(root) if _WNID_OR_TAR.fullmatch(file.parts[0])))


def _refuse_gzip(root: Storage, info: ObjectInfo) -> None:
    """Raise SourceError if an archive is compressed, because its images are then not byte ranges."""
    if info.num_bytes >= len(GZIP_MAGIC) and root.read_range(info.name, 0, len(GZIP_MAGIC)) == GZIP_MAGIC:
        where = root.url_of(info.name)
        raise SourceError(
            f"{where}: compressed, so images cannot be read in place; decompress it first: gunzip {where}"
        )


FAKE_TAR = "imagenet-fake.tar"
DEFAULT_IMAGES = 10_000


@dataclass(frozen=True, kw_only=True)
class FakeImageNet(base.Dataset):
    """ImageNet's classes with any number of generated images, to try and time a pipeline without ImageNet.

    `imagenet-fake.tar`, 7 MB, holds one image for each class; all images of a class refer to it, and a model can still
    learn to tell the classes apart.
    """

    generated: ClassVar[bool] = True

    def with_images(self, images: int) -> FakeImageNet:
        """Return the dataset with this many train images, and 1/26 as many val images as in ImageNet."""
        if not 1 <= images <= MAX_SAMPLES:
            raise UsageError(f"`images` must be 1 to {MAX_SAMPLES:,}, got {images:,}")
        return replace(self, facts=_facts(images))

    def write_originals(self, directory: Path) -> None:
        """Write `imagenet-fake.tar`, completely or not at all; an existing one stays."""
        path = directory / FAKE_TAR
        if path.exists():
            return
        spool = directory / f".{FAKE_TAR}.{os.getpid()}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with open(spool, "wb") as stream:
                _write_tar(stream)
            spool.replace(path)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}; choose another `source`") from error

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return ImageNet's 1,000 WNIDs."""
        return published_classes()

    def _find(self, root: Storage, wanted: base.SplitRequest) -> Enumeration:
        archive: AbstractContextManager[ByteReader]
        if root.stat(FAKE_TAR) is not None:
            archive = ArchiveReader(root, FAKE_TAR, progress=wanted.progress)
        else:  # a dry run writes nothing
            stream = io.BytesIO()
            _write_tar(stream)
            archive = nullcontext(StreamReader(stream, root.url_of(FAKE_TAR)))
        with archive as reader:
            members = [member for member in tar_members(reader) if not member.is_directory]
            num_bytes = reader.num_bytes
        classes = published_classes()
        if [member.name for member in members] != [f"{wnid}.jpg" for wnid in classes]:
            raise SourceError(f"{root.url_of(FAKE_TAR)}: not the generated file; remove it, then it is written again")
        found = RefCollector(root, wanted.split)
        for label, path in _images(wanted.split, self.split_facts(wanted.split).samples or 0):
            found.add(path, FAKE_TAR, members[label], label)
        found.sources.append(SourceFile(FAKE_TAR, num_bytes))
        return found.enumeration(classes)


def _write_tar(stream: BinaryIO) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for label, wnid in enumerate(published_classes()):
            image = _fake_jpeg(label)
            header = tarfile.TarInfo(f"{wnid}.jpg")
            header.size = len(image)
            tar.addfile(header, io.BytesIO(image))


def _images(split: str, samples: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield label and path of every image, one class after the other."""
    classes = published_classes()
    for i in range(samples):
        number, label = divmod(i, len(classes))
        if split == "train":
            yield label, (classes[label], f"{classes[label]}_{number}.jpg")
        else:
            yield label, (f"ILSVRC2012_val_{i + 1:08d}.jpg",)


def _fake_jpeg(label: int) -> bytes:
    """Draw a smooth pattern that depends on the label, 160 to 288 pixels wide."""
    from PIL import Image

    words = np.random.Philox(key=label).random_raw(18)
    coarse_HWC = words.view(np.uint8).reshape(6, 8, 3)  # 0..255
    size = (160 + 16 * (label % 9), 160 + 16 * (label // 9 % 5))
    smooth = Image.fromarray(coarse_HWC, "RGB").resize(size, Image.Resampling.BICUBIC)
    out = io.BytesIO()
    smooth.save(out, "JPEG", quality=90)
    return out.getvalue()


def _facts(images: int) -> dict[str, SplitFacts]:
    published = {split: facts.samples or 1 for split, facts in IMAGENET.facts.items()}
    val_images = max(1, images * published["val"] // published["train"])
    return {"train": SplitFacts(samples=images), "val": SplitFacts(samples=val_images)}


IMAGENET_FAKE = FakeImageNet(
    name="imagenet-fake",
    description="Generated images under ImageNet's 1,000 class names: for timing and plumbing, not for accuracy.",
    citation="",
    licence="CC0-1.0: the images are generated",
    origin="generated",
    facts=_facts(DEFAULT_IMAGES),
    default_splits=("train", "val"),
)
