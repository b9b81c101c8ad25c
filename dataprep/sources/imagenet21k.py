"""ImageNet-21k, all of ImageNet, in its releases of winter 2021 and fall 2011: class tars in one tar or in a folder.

`winter21_whole.tar`, unzipped, or `fall11_whole.tar`; or a folder of class tars (`<wnid>.tar`) or class folders
(`<wnid>/`), which is `winter21_whole/`, `fall11_whole/`, `train/` or the source itself. There is one split. Its classes
are those of the tars: the lists of WNIDs were not published with counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from dataprep.dataset.records import Enumeration
from dataprep.dataset.spill import SpilledItems
from dataprep.errors import SourceError
from dataprep.sources.base import ArchiveFacts, Dataset, SplitFacts, Wanted
from dataprep.sources.folders import FILES, FolderFile, folder_files, tree_files
from dataprep.sources.imagenet import TrainFinder, classes_in_folder
from dataprep.sources.imagenet_labels import WNID
from dataprep.storage.base import ObjectInfo, Storage

GZIP_MAGIC = b"\x1f\x8b"
_WNID_OR_TAR = re.compile(rf"{WNID.pattern}(\.tar)?")


class Release(NamedTuple):
    """One release, as it was published."""

    images: int
    classes: int


RELEASES = {"winter21_whole": Release(13_153_500, 19_167), "fall11_whole": Release(14_197_122, 21_841)}
"""Releases by the name of their archive or folder."""
_FOLDERS = (*RELEASES, "train", "")


@dataclass(frozen=True, kw_only=True)
class ImageNet21k(Dataset):
    """All images of ImageNet."""

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return the WNIDs of the class tars or class folders."""
        return self._find(root, Wanted(split="train", allow_partial=True)).classes

    def _find(self, root: Storage, wanted: Wanted) -> Enumeration:
        release, found = _Finder(root, None, wanted.progress).of_any_release()
        if not wanted.allow_partial:
            _refuse_other_counts(root, release, Release(len(found.refs), len(found.classes)))
        return found

    def _refuse_other_counts(self, root: Storage, split: str, facts: SplitFacts, found: Enumeration) -> None:
        """Do nothing: `_find` compares the counts with those of the release."""


class _Finder(TrainFinder):
    dataset = "imagenet-21k"

    def of_any_release(self) -> tuple[str, Enumeration]:
        """Return the name of the release, which is empty if the names of files do not say it, and its images."""
        for release in RELEASES:
            for suffix in (".tar", ".tar.gz"):
                info = self.root.stat(release + suffix)
                if info is not None:
                    _refuse_gzip(self.root, info)
                    return release, self.in_tar(info)
        for folder in _FOLDERS:
            files = folder_files(self.root, folder, depth=2) if folder else _files_in_root(self.root)
            if classes_in_folder(files):
                last = folder or self.root.url.rstrip("/").rpartition("/")[2]
                return last if last in RELEASES else "", self.in_folder(folder, files)
        raise self.absent("winter21_whole.tar, fall11_whole.tar, or a folder of <wnid>.tar or <wnid>/")


def _files_in_root(root: Storage) -> SpilledItems[FolderFile]:
    """List the class tars, and the files of class folders, that lie directly in the source among other files."""
    return SpilledItems(FILES, (file for file in tree_files(root) if _WNID_OR_TAR.fullmatch(file.parts[0])))


def _refuse_gzip(root: Storage, info: ObjectInfo) -> None:
    """Raise SourceError if an archive is compressed: then no range of its bytes is an image."""
    if info.num_bytes >= len(GZIP_MAGIC) and root.read_range(info.name, 0, len(GZIP_MAGIC)) == GZIP_MAGIC:
        where = root.url_of(info.name)
        raise SourceError(
            f"{where}: compressed, so images cannot be read in place; decompress it first: gunzip {where}"
        )


def _refuse_other_counts(root: Storage, release: str, found: Release) -> None:
    expected = {release: RELEASES[release]} if release else RELEASES
    if found in expected.values():
        return
    counts = " or ".join(
        f"{images:,} images of {classes:,} classes ({name})" for name, (images, classes) in expected.items()
    )
    raise SourceError(
        f"{root.url}: imagenet-21k train: {found.images:,} images of {found.classes:,} classes, expected {counts}: "
        "fetch the originals again, or build what exists with --allow-partial"
    )


IMAGENET_21K = ImageNet21k(
    name="imagenet-21k",
    description=(
        "All of ImageNet: 13,153,500 images of 19,167 classes in the release of winter 2021, 14,197,122 images of "
        "21,841 classes in that of fall 2011."
    ),
    citation=(
        "@inproceedings{deng2009imagenet, title={{ImageNet}: A Large-Scale Hierarchical Image Database}, author={Deng, "
        "Jia and Dong, Wei and Socher, Richard and Li, Li-Jia and Li, Kai and Fei-Fei, Li}, booktitle={IEEE Conference "
        "on Computer Vision and Pattern Recognition}, pages={248--255}, year={2009}}"
    ),
    licence="Non-commercial research and education only; terms of access at https://www.image-net.org/download.php",
    origin="https://www.image-net.org/download-images.php",
    facts={
        "train": SplitFacts(
            samples=RELEASES["winter21_whole"].images,
            archives=(ArchiveFacts(name="winter21_whole.tar.gz", md5="ab313ce03179fd803a401b02c651c0a2"),),
        )
    },
    default_splits=("train",),
)
