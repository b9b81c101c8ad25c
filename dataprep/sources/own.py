"""A user's own data: what the user says about them, and the base class of the datasets that read such data.

Nothing is published about such data, so nothing is compared with published facts: splits, classes and features are
those that are found. `Dataset.opened` finds them.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

from dataprep.dataset.paths import BUILD, RETRY
from dataprep.dataset.records import Enumeration
from dataprep.errors import UsageError
from dataprep.messages import quoted
from dataprep.sources.base import READ_ALL, Dataset, Reading, SplitFacts, Wanted
from dataprep.storage.base import Storage

UNSTATED = "unknown, not stated"
"""Licence or origin that the user has not stated."""
SPLITS = ("train", "val", "test")
SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Split by the name of its top folder, in lower case."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}[a-z0-9]|[a-z]")
_RESERVED_SPLITS = frozenset({BUILD, RETRY, "images", "index"})
CLASS_NAME = re.compile(r"(?=.{3,200}\Z)(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*", re.ASCII)
"""Name of somebody's own dataset class: `module:NAME`."""
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
    """Files to leave out, in lower case: suffixes, and patterns of names such as `notes.txt` and `*.bak`."""
    text_files: tuple[tuple[str, str], ...] = ()
    """Features that hold the text files of pictures, each with the suffix of its files."""
    join_classes: bool = False
    """Whether classes whose names differ only in case or Unicode form are one."""
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
        """Return the fields as JSON values; those that few datasets need are left out if they are not given."""
        rare = ("image_column", "key_from", "text_files", "join_classes")
        absent = {name for name in rare if getattr(self, name) in (None, (), False)}
        return {name: value for name, value in asdict(self).items() if name not in absent}


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """How a finished dataset becomes another one; every field may change the new dataset's bytes."""

    plan_hash: str
    """Plan of the dataset that is converted."""
    revision: int
    """Revision of that dataset."""
    was_shuffled: bool
    """Whether its samples are in random order."""
    shuffle: bool = True
    """Whether samples are put into another random order."""
    fields: tuple[str, ...] = ()
    """Fields of its samples that become features."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Value for samples without one, by field."""
    all_fields: bool = False
    """Whether all fields that every sample has become features."""

    def document(self) -> dict[str, object]:
        """Return the fields as JSON values; `all_fields` only where it is set."""
        return {name: value for name, value in asdict(self).items() if name != "all_fields" or value}

    @property
    def is_shuffled(self) -> bool:
        """Whether the new dataset's samples are in random order."""
        return self.shuffle or self.was_shuffled


@dataclass(frozen=True, kw_only=True)
class NamedDataset(Dataset):
    """A dataset to which the user may give a name, a licence and an origin."""

    own: OwnData | None = None
    """What the user says about the data; None for the class itself."""

    def described_by(self, own: OwnData) -> Self:
        """Return the dataset with the name, the licence and the origin that the user stated."""
        return replace(self, own=own, name=own.name, licence=own.licence, origin=own.origin)


@dataclass(frozen=True, kw_only=True)
class OwnDataset(NamedDataset):
    """A dataset of the user's own data."""

    identity: str = ""
    """Everything that decides what is found, besides the user's words and the files themselves."""
    is_published: ClassVar[bool] = False
    reads_all_files: ClassVar[bool] = False
    """Whether any file below the source may belong to the dataset, and not only those that a table names."""

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return nothing: no classes are published."""
        return ()

    @abstractmethod
    def opened(self, root: Storage, reading: Reading = READ_ALL) -> Dataset:
        """Return the dataset with the splits, classes and features that are found in a storage."""

    def _find(self, root: Storage, wanted: Wanted) -> Enumeration:
        return self.opened(root, Reading(progress=wanted.progress))._find(root, wanted)


@dataclass(frozen=True, kw_only=True)
class FinishedDataset(OwnDataset):
    """A dataset that is known from its manifest only: it was converted, or its class is not part of dataprep."""

    def of_splits(self, repeats: Mapping[str, int]) -> Self:
        """Return the dataset with the splits of a manifest, each with the passes of an epoch."""
        return replace(self, facts={split: SplitFacts(samples=None, repeats=count) for split, count in repeats.items()})

    def opened(self, root: Storage, reading: Reading = READ_ALL) -> Dataset:
        """Raise UsageError: nothing is known about original files."""
        raise UsageError(f"{self.name}: only its manifest is known here, so it can be read, but not built")


@dataclass(frozen=True, kw_only=True)
class Converted(FinishedDataset):
    """A dataset that was converted from another one."""

    recipe: ClassVar[str] = "converted"


def split_fault(split: str) -> str:
    """Return why a split cannot have this name; empty if it can."""
    if split.lower() in _RESERVED_SPLITS or split.lower().endswith("-events"):
        return f"the name {quoted(split)} of a split is that of another folder or file of a dataset"
    return ""


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


CONVERTED = Converted(
    name="converted",
    description="A dataset that dataprep converted from another one, with the same keys, labels and annotations.",
    citation="",
    licence=UNSTATED,
    origin=UNSTATED,
    facts={},
    default_splits=(),
)
FINISHED = FinishedDataset(
    name="dataset",
    description="Pictures that somebody's own dataset class has found.",
    citation="",
    licence=UNSTATED,
    origin=UNSTATED,
    facts={},
    default_splits=(),
)
"""Stands for every class that is not part of dataprep, wherever the class itself is not needed."""
