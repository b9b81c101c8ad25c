"""ImageNet as the Hugging Face Hub has it: parquet files of train, validation and test with the bytes of images.

`image.path` is the name in the tars with the class appended: `n01440764_10026_n01440764.JPEG` in train,
`ILSVRC2012_val_00000293_n01440764.JPEG` in validation. `label` is the position of the class among the sorted WNIDs,
as here. So keys, labels and images are those of the tars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dataprep.dataset.paths import is_hidden_name
from dataprep.dataset.records import SourceFile
from dataprep.errors import SourceError
from dataprep.messages import shown
from dataprep.sources.archives import Progress
from dataprep.sources.image_tables import ImageTable, choose_image_column, columns_of, image_path, table_rows
from dataprep.sources.keys import IMAGE_SUFFIXES
from dataprep.sources.packed_images import PackedImage, PackedImages
from dataprep.sources.table_files import tables_by_split
from dataprep.sources.unpacked import PARQUET
from dataprep.storage.base import Storage

LABEL_COLUMN = "label"
_TRAIN = re.compile(r"((n\d{8})_\d+)(?:_(n\d{8}))?\.JPEG", re.ASCII)
_VAL = re.compile(r"(ILSVRC2012_val_\d{8})(?:_(n\d{8}))?\.JPEG", re.ASCII)
_EXPECTED = "expected the names of the Hub's ILSVRC/imagenet-1k, such as"


class HubImage(NamedTuple):
    """One image of ImageNet in a parquet file."""

    where: str
    """Table and row, for messages."""
    wnid: str
    key_parts: tuple[str, ...]
    offset: int
    num_bytes: int
    crc32c: int
    """CRC32C of the image when it was measured or unpacked."""


def hub_tables(root: Storage) -> dict[str, list[ImageTable]]:
    """Return the parquet files of each split; nothing if the first file that is known is of a folder: an image or an
    annotation.

    Expects that there are no tars.
    """
    for info in root.list():
        if is_hidden_name(info.name):
            continue
        if info.name.lower().endswith(PARQUET):
            return tables_by_split(root, "", [])
        if info.name.rpartition(".")[2].lower() in {*IMAGE_SUFFIXES, "xml"}:
            break
    return {}


def wnids_in(tables: Sequence[ImageTable]) -> Iterator[str]:
    """Yield the class of each image by its name, without reading images; nothing for names without a class."""
    for table in tables:
        columns = columns_of(table)
        image_column = choose_image_column(table, columns, None)
        for row in table_rows(table, image_column, frozenset(columns.kinds) - {image_column}, only_paths=True):
            name = (image_path(row) or "").rpartition("/")[2]
            train, val = _TRAIN.fullmatch(name), _VAL.fullmatch(name)
            if wnid := train[2] if train else (val[2] if val else None):
                yield wnid


@dataclass(kw_only=True)
class HubImages:
    """Reader of the images of one split.

    Args:
        classes: The WNIDs, of which `label` is a position; None accepts any, but always the same for a class.
        unpack_to: Output below which images are unpacked; None to measure them only.
        progress: Called with a file's name, the bytes read and the total bytes.
    """

    classes: tuple[str, ...] | None
    unpack_to: Storage | None
    progress: Progress | None
    _labels: dict[str, int] = field(default_factory=dict)
    """Label by WNID."""
    _wnids: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for label, wnid in enumerate(self.classes or ()):
            self._labels[wnid], self._wnids[label] = label, wnid

    def read(self, table: ImageTable, source: SourceFile, split: str) -> Iterator[HubImage]:
        """Yield the images of a table.

        Raises:
            SourceError: The file cannot be read, or an image's name or label is not one of ImageNet.
        """
        columns = columns_of(table)
        image_column = choose_image_column(table, columns, None)
        if columns.kinds[image_column] != "struct":
            raise SourceError(
                f"{table.url}: column {image_column} holds {columns.types[image_column]}, {_EXPECTED} an image with "
                "bytes and path"
            )
        images = PackedImages(
            image_column=image_column,
            drop=frozenset(columns.kinds) - {image_column, LABEL_COLUMN},
            unpack_to=self.unpack_to,
            progress=self.progress,
        )
        for image in images.rows(table, source):
            yield self._named(table, image, split)

    def _named(self, table: ImageTable, image: PackedImage, split: str) -> HubImage:
        where = f"{table.url} row {image.row.number}"
        label = image.row.values.get(LABEL_COLUMN)
        label = label if isinstance(label, int) else None
        name = (image_path(image.row) or "").rpartition("/")[2]
        if split == "train":
            stem, wnid = self._train_name(where, name)
            parts: tuple[str, ...] = (wnid, f"{stem}.JPEG")
        else:
            stem, wnid = self._val_name(where, name, label)
            parts = (f"{stem}.JPEG",)
        self._check_label(where, wnid, label)
        return HubImage(where, wnid, parts, image.offset, image.num_bytes, image.crc32c)

    def _train_name(self, where: str, name: str) -> tuple[str, str]:
        match = _TRAIN.fullmatch(name)
        if match is None or match[3] not in (None, match[2]):
            raise SourceError(f"{where}: image.path is {shown(name)}; {_EXPECTED} n01440764_10026_n01440764.JPEG")
        return match[1], match[2]

    def _val_name(self, where: str, name: str, label: int | None) -> tuple[str, str]:
        match = _VAL.fullmatch(name)
        wnid = match[2] or (self._wnids.get(label) if label is not None else None) if match else None
        if match is None or wnid is None:
            raise SourceError(
                f"{where}: image.path is {shown(name)}; {_EXPECTED} ILSVRC2012_val_00000293_n01440764.JPEG"
            )
        return match[1], wnid

    def _check_label(self, where: str, wnid: str, label: int | None) -> None:
        """Refuse a label that stands for another class; the caller refuses unknown classes."""
        if label is None or (self.classes is not None and wnid not in self._labels):
            return
        if self.classes is None:
            self._labels.setdefault(wnid, label)
            self._wnids.setdefault(label, wnid)
        if self._labels[wnid] != label or self._wnids.get(label) != wnid:
            raise SourceError(
                f"{where}: label {label} of class {wnid}, expected {self._labels[wnid]}, its position among the sorted "
                "WNIDs; is this another edition of ImageNet?"
            )
