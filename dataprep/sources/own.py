"""Data of the user's own: what they say of it, and the dataset class of which each source of such data is a subclass.

Nothing is published about such data, so nothing is compared with published facts: splits, classes and features are
those that are found. `Dataset.opened` finds them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from dataprep.errors import UsageError
from dataprep.messages import quoted
from dataprep.sources.base import Dataset

UNSTATED = "unknown, not stated"
"""Licence and origin of data of which the user says neither."""
SPLITS = ("train", "val", "test")
SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Names of top folders that stand for a split, in lower case."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}[a-z0-9]|[a-z]")
_NO_LETTERS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnData:
    """What a user says of data that no class here knows; all of it may change a dataset's bytes."""

    name: str
    """Name of the dataset, in manifest, shards and TFDS: lower-case letters, digits and `-`."""
    licence: str = UNSTATED
    origin: str = UNSTATED
    label_from: str | None = None
    """`folder`, `none`, or the column of the metadata that has the class; None: what is there decides."""
    val_fraction: float = 0.0
    """Share of train that becomes val."""
    split_seed: int = 0
    """Seed of the choice of val."""
    group_by: str | None = None
    """Column of the metadata of which no value may be in two splits."""
    defaults: tuple[tuple[str, str], ...] = ()
    """By column of the metadata, the value of rows that have none."""
    drop: tuple[str, ...] = ()
    """Columns of the metadata that are left out."""
    pass_over: tuple[str, ...] = ()
    """Suffixes of files that are left out."""
    archive: str = ""
    """The one file below the source that is read, an archive; empty where all are."""

    def __post_init__(self) -> None:
        if not 0 <= self.val_fraction < 1:
            raise UsageError(f"--val-fraction must be from 0 to below 1, got {self.val_fraction:g}")
        if self.group_by is not None and not self.val_fraction:
            raise UsageError("--group-by keeps groups together when train is split: it needs --val-fraction")


@dataclass(frozen=True, kw_only=True)
class OwnDataset(Dataset):
    """A dataset of the user's own data."""

    own: OwnData | None = None
    """What the user says of it; None for the class as such."""
    is_published: ClassVar[bool] = False

    def described_by(self, own: OwnData) -> Self:
        """Return the dataset with the name, the licence and the origin that the user says."""
        return replace(self, own=own, name=own.name, licence=own.licence, origin=own.origin)


def name_fault(name: str, taken: frozenset[str]) -> str:
    """Return what keeps a dataset of the user's own from having this name; empty where nothing does."""
    if name in taken:
        return f"{quoted(name)} is the name of a dataset that dataprep builds"
    if not _NAME.fullmatch(name):
        return f"name {quoted(name)}: expected lower-case letters, digits and '-', a letter first, at most 64"
    return ""


def name_from(url: str) -> str:
    """Return a name for the data at a URL, made of its last part: `~/My Pictures` gives `my-pictures`."""
    last = url.rstrip("/").rpartition("/")[2].lower()
    for suffix in (".zip", ".tar"):
        last = last.removesuffix(suffix)
    name = _NO_LETTERS.sub("-", last).strip("-")[:60].strip("-")
    return name if name[:1].isalpha() else f"data-{name}".strip("-")
