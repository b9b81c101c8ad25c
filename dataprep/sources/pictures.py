"""Pictures of a user's own with the rows that describe them: labels, features, and the share of train that becomes val.

How pictures and rows are found is the matter of a subclass of `PictureReader`; what becomes of them is the same for
all.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Generic, TypeVar

from dataprep.dataset.features import Feature, Values, annotations_json, name_fault
from dataprep.dataset.records import NO_LABEL, Enumeration, SampleRef
from dataprep.dataset.references import SpilledReferences
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.formats.checked import MAX_CLASS_NAME_CHARS, check_class_folder
from dataprep.sources.archives import Progress
from dataprep.sources.columns import Columns
from dataprep.sources.own import OwnData, OwnDataset
from dataprep.storage.base import Storage

LABEL_COLUMN = "label"
"""Column that holds the class, unless the user names another."""
FOLDER_LABELS, NO_LABELS = "folder", "none"
SHOWN_EXAMPLES = 3
"""Maximum number of examples in a message."""


@dataclass(frozen=True, kw_only=True)
class OpenedDataset(OwnDataset):
    """A user's own data that were read."""

    found: Mapping[str, Enumeration]
    """Samples of each split."""

    def opened(
        self,
        root: Storage,
        progress: Progress | None = None,
        *,
        unpack_to: Storage | None = None,
        splits: tuple[str, ...] = (),
    ) -> OpenedDataset:
        """Return this dataset, whose originals were read already."""
        return self

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return the classes that were found."""
        return next(iter(self.found.values())).classes

    def _find(
        self,
        root: Storage,
        split: str,
        *,
        allow_partial: bool,
        classes: tuple[str, ...] | None,
        progress: Progress | None,
    ) -> Enumeration:
        return self.found[split]


@dataclass(slots=True)
class Picture(ABC):
    """One image, with the facts that are found so far."""

    row: bytes = field(default=b"", kw_only=True)
    """Row of metadata as encoded by `Columns.add`: decoded values would take several times the memory."""
    class_name: str = field(default="", kw_only=True)

    @property
    @abstractmethod
    def key(self) -> str:
        """Key of the sample."""

    @property
    @abstractmethod
    def shown(self) -> str:
        """Path or row of the image, as messages show it."""

    @property
    @abstractmethod
    def place(self) -> tuple[str, int, int]:
        """File that holds the image, relative to the root, with offset and number of bytes."""


P = TypeVar("P", bound=Picture)


class PictureReader(ABC, Generic[P]):
    """Reads the pictures of a storage, step by step."""

    columns_of: str
    """What the columns belong to, as messages name it."""

    def __init__(self, root: Storage, own: OwnData, progress: Progress | None) -> None:
        self._root, self._own, self._progress = root, own, progress
        self._notes: list[str] = []
        self._columns = Columns(dict(own.defaults), frozenset(own.drop))
        self._all_columns: dict[str, Feature] = {}
        self._features: dict[str, Feature] = {}
        """All columns except that of the label."""

    def _take_columns(self) -> None:
        """Find the types of all columns, once every row was added to `_columns`."""
        self._all_columns = self._columns.features()
        self._features = dict(self._all_columns)

    def _values(self, picture: P) -> Values:
        """Return the values of an image's row, by column."""
        return self._columns.values(picture.row, self._all_columns)

    # The share of train that becomes val

    def _with_val(self, splits: dict[str, list[P]]) -> dict[str, list[P]]:
        """Return the splits with a share of train as val, if the user requests it."""
        own = self._own
        if not own.val_fraction:
            return splits
        if "val" in splits or "train" not in splits:
            raise UsageError(
                f"--val-fraction {own.val_fraction:g}: {self._root.url} has the splits {', '.join(splits)}; it needs "
                "train, and no val"
            )
        val = [picture for picture in splits["train"] if in_val(own, self._group(picture))]
        chosen = set(map(id, val))
        train = [picture for picture in splits["train"] if id(picture) not in chosen]
        if not val or not train:
            raise UsageError(
                f"--val-fraction {own.val_fraction:g} leaves {len(train):,} images for train and {len(val):,} for val, "
                f"{'groups of ' + own.group_by if own.group_by else 'single images'}; choose another fraction"
            )
        return {**splits, "train": train, "val": val}

    def _group(self, picture: P) -> str:
        """Return the text that decides an image's split: the value of its group, or its key."""
        column = self._own.group_by
        if column is None:
            return picture.key
        if column not in self._all_columns:
            known = ", ".join(sorted(self._all_columns)) or "no columns"
            raise UsageError(f"--group-by {column}: no such column in {self.columns_of}; it has {known}")
        return json.dumps(self._values(picture)[column], sort_keys=True, default=repr)

    # Labels

    def _label_by_column(self, pictures: list[P], column: str) -> None:
        feature = self._features.pop(column, None)
        if feature is None or feature.shape or feature.kind not in ("text", "int64", "bool"):
            known = ", ".join(self._features) or "none"
            what = "no such column" if feature is None else f"it has {feature.kind} values or lists"
            raise SourceError(
                f"{self._root.url}: --label-from {column}: {what} (columns: {known}); expected a column of texts, "
                "integers or truth values, folder, or none"
            )
        values = [self._values(picture)[column] for picture in pictures]
        width = 0
        if feature.kind == "int64":
            if min(values) < 0:
                raise SourceError(f"{self._root.url}: --label-from {column}: {min(values)}; expected integers from 0")
            width = len(str(max(values)))
        for picture, value in zip(pictures, values, strict=True):
            # With leading zeros the names are sorted like the numbers.
            picture.class_name = value if isinstance(value, str) else str(value).lower().zfill(width)

    def _check_features(self) -> None:
        """Refuse columns whose names no feature can have."""
        for name in self._features:
            if fault := name_fault(name):
                hint = f", or give --label-from {name}" if name == LABEL_COLUMN else ""
                raise SourceError(
                    f"{self._root.url}: a column of {self.columns_of}: {fault}; rename it, or leave it out with --drop "
                    f"{name}{hint}"
                )

    def _checked_classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the sorted names of classes, each once and without empty ones."""
        classes = tuple(sorted({name for name in names if name}))
        for name in classes:
            try:
                check_class_folder(name)
                if len(name) > MAX_CLASS_NAME_CHARS:
                    raise FormatError(f"class name of {len(name):,} characters")
            except FormatError as error:
                raise SourceError(f"{self._root.url}: {error}") from error
        return classes

    # References

    def _dataset(self, dataset: OwnDataset, found: Mapping[str, Enumeration], splits: Iterable[str]) -> OpenedDataset:
        """Return a dataset with the splits that exist, and the samples of those that were read."""
        values = {item.name: getattr(dataset, item.name) for item in fields(OwnDataset)}
        values |= {"facts": {name: dataset.facts[name] for name in splits}, "notes": tuple(self._notes)}
        return OpenedDataset(**values, found=found)

    def _enumeration(self, split: str, pictures: Sequence[P], classes: tuple[str, ...]) -> Enumeration:
        """Return the references of a split in the order of its pictures; the caller adds the original files."""
        if classes and any(not picture.class_name for picture in pictures):
            odd = [picture for picture in pictures if not picture.class_name]
            raise SourceError(f"{self._root.url}: {len(odd):,} images of {split} have an empty label: {examples(odd)}")
        labels = {name: label for label, name in enumerate(classes)}
        refs = SpilledReferences()
        for picture in pictures:
            refs.add(self._ref(picture, labels))
        return Enumeration(refs, [], classes, self._features)

    def _ref(self, picture: P, labels: Mapping[str, int]) -> SampleRef:
        annotations, (source, offset, num_bytes) = b"", picture.place
        if self._features:
            row = self._values(picture)
            values = {name: row[name] for name in self._features}
            try:
                annotations = annotations_json(self._features, values)
            except FormatError as error:
                raise SourceError(f"{self._root.url}: {picture.shown}: {error}") from error
        label = labels.get(picture.class_name, NO_LABEL)
        return SampleRef(picture.key, source, offset, num_bytes, label, annotations)


def in_val(own: OwnData, text: str) -> bool:
    """Return whether an image of train belongs to val. Only its group or key decides, so other images do not move
    it."""
    digest = hashlib.sha256(f"val/{own.split_seed}/{text}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") < own.val_fraction * 2**64


def same_keys(pictures: Sequence[P]) -> tuple[P, P] | None:
    """Return two pictures with the same key, ignoring case; None if there are none."""
    import numpy as np

    # Hashes take 8 bytes each; a set of the keys would take 170 MB for ImageNet.
    hashes = np.fromiter((hash(picture.key.lower()) for picture in pictures), dtype=np.int64, count=len(pictures))
    order = np.argsort(hashes, kind="stable")
    for i in np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]]):
        first, second = pictures[order[i]], pictures[order[i + 1]]
        if first.key.lower() == second.key.lower():
            return first, second
    return None


def examples(pictures: Sequence[Picture]) -> str:
    """Return the first few pictures for a message."""
    more = ", ..." if len(pictures) > SHOWN_EXAMPLES else ""
    return ", ".join(picture.shown for picture in pictures[:SHOWN_EXAMPLES]) + more
