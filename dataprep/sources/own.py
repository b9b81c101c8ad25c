"""A user's own data: what the user says about them, and the base class of the datasets that read such data.

Nothing is published about such data, so nothing is compared with published facts: splits, classes and features are
those that are found. `Dataset.opened` finds them.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

from dataprep.dataset.records import Enumeration
from dataprep.errors import UsageError
from dataprep.messages import quoted
from dataprep.sources.archives import Progress
from dataprep.sources.base import Dataset
from dataprep.storage.base import Storage

UNSTATED = "unknown, not stated"
"""Licence or origin that the user has not stated."""
SPLITS = ("train", "val", "test")
SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Split by the name of its top folder, in lower case."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}[a-z0-9]|[a-z]")
_NO_LETTERS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnData:
    """What a user says about their own data; every field may change a dataset's bytes."""

    name: str
    """Name of the dataset, in manifest, shards and TFDS: lower-case letters, digits and `-`."""
    licence: str = UNSTATED
    origin: str = UNSTATED
    label_from: str | None = None
    """`folder`, `none`, or the column of the metadata that holds the class; None lets the data decide."""
    val_fraction: float = 0.0
    """Share of train that becomes val."""
    split_seed: int = 0
    """Seed of the choice of val."""
    group_by: str | None = None
    """Column of the metadata; images with the same value in it stay in one split."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Value for rows without one, by column of the metadata."""
    drop: tuple[str, ...] = ()
    """Columns of the metadata to leave out."""
    pass_over: tuple[str, ...] = ()
    """Suffixes of files to leave out."""
    archive: str = ""
    """Name of the only file to read below the source, an archive or table, or folder of tables; empty for all files."""
    image_column: str | None = None
    """Column of a table with its images; None to find it."""
    key_from: str | None = None
    """`path`, `row`, or the column of a table that gives the keys; None for paths if a table has some, else rows."""

    def __post_init__(self) -> None:
        if not 0 <= self.val_fraction < 1:
            raise UsageError(f"--val-fraction must be from 0 to below 1, got {self.val_fraction:g}")
        if self.group_by is not None and not self.val_fraction:
            raise UsageError("--group-by keeps groups together when train is split: it needs --val-fraction")

    def document(self) -> dict[str, object]:
        """Return the fields as JSON values, without those that only tables have if they are not given."""
        optional = {name for name in ("image_column", "key_from") if getattr(self, name) is None}
        return {name: value for name, value in asdict(self).items() if name not in optional}


@dataclass(frozen=True, kw_only=True)
class OwnDataset(Dataset):
    """A dataset of the user's own data."""

    own: OwnData | None = None
    """What the user says about the data; None for the class itself."""
    is_published: ClassVar[bool] = False

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return nothing: no classes are published."""
        return ()

    @abstractmethod
    def opened(
        self,
        root: Storage,
        progress: Progress | None = None,
        *,
        unpack_to: Storage | None = None,
        splits: tuple[str, ...] = (),
    ) -> Dataset:
        """Return the dataset with the splits, classes and features that are found in a storage."""

    def _find(
        self,
        root: Storage,
        split: str,
        *,
        allow_partial: bool,
        classes: tuple[str, ...] | None,
        progress: Progress | None,
    ) -> Enumeration:
        return self.opened(root, progress)._find(
            root, split, allow_partial=allow_partial, classes=classes, progress=progress
        )

    def described_by(self, own: OwnData) -> Self:
        """Return the dataset with the name, the licence and the origin that the user stated."""
        return replace(self, own=own, name=own.name, licence=own.licence, origin=own.origin)


def name_fault(name: str, taken: frozenset[str]) -> str:
    """Return why a user's own dataset cannot have this name; empty if it can."""
    if name in taken:
        return f"{quoted(name)} is the name of a dataset that dataprep builds"
    if not _NAME.fullmatch(name):
        return (
            f"name {quoted(name)}: expected lower-case letters, digits and '-', a letter first, at most 64 characters"
        )
    return ""


def name_from(url: str) -> str:
    """Return a name for the data at a URL, made of its last part: `~/My Pictures` gives `my-pictures`."""
    last = url.rstrip("/").rpartition("/")[2].lower()
    for suffix in (".zip", ".tar"):
        last = last.removesuffix(suffix)
    name = _NO_LETTERS.sub("-", last).strip("-")[:60].strip("-")
    return name if name[:1].isalpha() else f"data-{name}".strip("-")
