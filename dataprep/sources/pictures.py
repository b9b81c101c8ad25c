"""Pictures of a user's own with the rows that describe them: labels, features, and the share of train that becomes val.

How pictures and rows are found is the matter of a subclass of `PictureReader`; what becomes of them is the same for
all.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from operator import attrgetter
from typing import Generic, Protocol, TypeVar
from unicodedata import normalize

from dataprep.dataset.features import Feature, Values, annotations_json, name_fault
from dataprep.dataset.records import NO_LABEL, Enumeration, SampleRef, renumbering
from dataprep.dataset.spill import SpilledReferences
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.formats.base import MAX_CLASS_NAME_CHARS, check_class_folder
from dataprep.messages import counted, shell_words, shown
from dataprep.sources.archives import Progress
from dataprep.sources.base import READ_ALL, OwnData, OwnDataset, Reading, Wanted, class_counts
from dataprep.sources.columns import Columns
from dataprep.sources.keys import Problems
from dataprep.storage.base import Storage

LABEL_COLUMN = "label"
"""Column that holds the class, unless the user names another."""
FOLDER_LABELS, NO_LABELS = "folder", "none"
_NEAR_LABELS = frozenset({"label", "labels", "class", "classes", "class_name", "category", "cls", "target"})
"""Names, in lower case, of columns that may hold classes."""
SHOWN_EXAMPLES = 3
"""Maximum number of examples in a message."""
LISTED_IN_FULL = 5
"""Number of names up to which a message lists all of them."""


@dataclass(frozen=True, kw_only=True)
class OpenedDataset(OwnDataset):
    """A user's own data that were read."""

    found: Mapping[str, Enumeration]
    """Samples of each split."""

    def opened(self, root: Storage, reading: Reading = READ_ALL) -> OpenedDataset:
        """Return this dataset, whose originals were read already."""
        return self

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return the classes that were found."""
        return next(iter(self.found.values())).classes

    def _find(self, root: Storage, wanted: Wanted) -> Enumeration:
        return self.found[wanted.split]


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
    def place(self) -> tuple[str, int, int, int | None]:
        """File that holds the image, relative to the root, with offset, number of bytes, and the CRC32C that they must
        have; None where none is known."""


P = TypeVar("P", bound=Picture)
P_co = TypeVar("P_co", bound=Picture, covariant=True)


class Pictures(Protocol[P_co]):
    """Pictures in their order, which are read any number of times: a list, or more than fit into memory."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[P_co]: ...


class Together(Generic[P]):
    """The pictures of several splits, one split after the other."""

    def __init__(self, splits: Iterable[Pictures[P]]) -> None:
        self._splits = list(splits)

    def __len__(self) -> int:
        return sum(map(len, self._splits))

    def __iter__(self) -> Iterator[P]:
        return chain.from_iterable(self._splits)


class PictureReader(ABC, Generic[P]):
    """Reads the pictures of a storage, step by step."""

    columns_of: str
    """Owner of the columns, as messages name it."""

    def __init__(self, root: Storage, own: OwnData, progress: Progress | None) -> None:
        self._root, self._own, self._progress = root, own, progress
        self._notes: list[str] = []
        texts = dict(own.text_files)
        defaults = {column: value for column, value in own.defaults if column not in texts}
        self._problems = Problems(root.url)
        self._columns = Columns(defaults, frozenset(own.drop), refuse=self._problems.add)
        self._are_typed = True
        """Whether all rows were read, and all columns have a type."""
        self._all_columns: dict[str, Feature] = {}
        self._features: dict[str, Feature] = {}
        """All columns except the label."""
        self._class_of: Callable[[P], str] = attrgetter("class_name")
        """Function that returns the class of an image; it is another one once the labels' source is known."""

    def _collected(self, pictures: Iterable[P]) -> Pictures[P]:
        """Return pictures that can be read several times."""
        return list(pictures)

    def _take_columns(self) -> None:
        """Find the types of all columns, once every row was added to `_columns`."""
        self._all_columns = self._columns.features()
        self._features = dict(self._all_columns)

    def _values(self, picture: P) -> Values:
        """Return the values of an image's row, by column."""
        return self._columns.values(picture.row, self._all_columns)

    # The share of train that becomes val

    def _with_val(self, splits: Mapping[str, Pictures[P]]) -> Mapping[str, Pictures[P]]:
        """Return the splits with a share of train as val, if the user requests it."""
        own = self._own
        if not own.val_fraction:
            return splits
        if "val" in splits or "train" not in splits:
            raise UsageError(
                f"`val_fraction` {own.val_fraction:g}: {self._root.url} has the splits {', '.join(splits)}; it needs "
                "train, and no val"
            )
        val = self._collected(picture for picture in splits["train"] if in_val(own, self._group(picture)))
        train = self._collected(picture for picture in splits["train"] if not in_val(own, self._group(picture)))
        if not len(val) or not len(train):
            raise empty_split(own, len(train), len(val), map(self._group, splits["train"]))
        return {**splits, "train": train, "val": val}

    def _group(self, picture: P) -> str:
        """Return the text that decides an image's split: the value of its group, or its key."""
        column = self._own.group_by
        if column is None:
            return picture.key
        if column not in self._all_columns:
            known = ", ".join(sorted(self._all_columns)) or "no columns"
            raise UsageError(f"`group_by` {column}: no such column in {self.columns_of}; it has {known}")
        return json.dumps(self._values(picture)[column], sort_keys=True, default=repr)

    # Labels

    def _label_by_column(self, pictures: Pictures[P], column: str) -> None:
        """Take the classes from a column, which then is not a feature."""
        feature = self._features.pop(column, None)
        if feature is None or feature.shape or feature.kind not in ("text", "int64", "bool"):
            known = ", ".join(self._features) or "none"
            what = "no such column" if feature is None else f"it has {feature.kind} values or lists"
            raise SourceError(
                f"{self._root.url}: `label_from` {column}: {what} (columns: {known}); expected a column of texts, "
                "integers or truth values, folder, or none"
            )
        width = 0
        if feature.kind == "int64":
            fewest, most = self._range(pictures, column)
            if fewest < 0:
                raise SourceError(f"{self._root.url}: `label_from` {column}: {fewest}; expected integers from 0")
            width = len(str(most))

        def class_of(picture: P) -> str:
            value = self._values(picture)[column]
            # With leading zeros the names are sorted like the numbers.
            return value if isinstance(value, str) else str(value).lower().zfill(width)

        self._class_of = class_of

    def _note_near_labels(self) -> None:
        """Note the first column that may hold classes, if none is called LABEL_COLUMN."""
        near = [name for name in self._features if name.lower().strip() in _NEAR_LABELS]
        if near:
            advice = f"`label_from` {shell_words(near[0])}"
            self._notes.append(f"note: the column {shown(near[0])} is a feature; if it holds the classes: {advice}")

    def _range(self, pictures: Pictures[P], column: str) -> tuple[int, int]:
        fewest, most = 2**63, -(2**63)
        for picture in pictures:
            value = self._values(picture)[column]
            fewest, most = min(fewest, value), max(most, value)
        return fewest, most

    def _check_features(self) -> None:
        """Refuse columns whose names no feature can have."""
        faults = {name: fault for name in self._features if (fault := name_fault(name))}
        if faults:
            hint = f", or give `label_from` {LABEL_COLUMN}" if LABEL_COLUMN in faults else ""
            raise SourceError(
                f"{self._root.url}: a column of {self.columns_of}: {'; '.join(faults.values())}; rename it, or leave "
                f"it out with {' '.join(f'`drop` {shell_words(name)}' for name in faults)}{hint}"
            )

    def _checked_classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the sorted names of classes, each once and without empty ones."""
        classes = self._told_apart({name for name in names if name})
        for name in classes:
            try:
                check_class_folder(name)
                if len(name) > MAX_CLASS_NAME_CHARS:
                    raise FormatError(f"class name of {len(name):,} characters")
            except FormatError as error:
                self._problems.add(SourceError(f"{self._root.url}: {error}"))
        return classes

    def _told_apart(self, names: set[str]) -> tuple[str, ...]:
        """Return sorted names; note those that differ only in case or Unicode form, or make them one."""
        spellings: dict[str, list[str]] = {}
        for name in sorted(names):
            spellings.setdefault(normalize("NFC", name).casefold(), []).append(name)
        alike = [each for each in spellings.values() if len(each) > 1]
        if not alike:
            return tuple(sorted(names))
        if not self._own.join_classes:
            these = listed([" and ".join(map(ascii, each)) for each in alike])
            self._notes.append(
                f"warning: {counted(sum(map(len, alike)), 'class')} have names that differ only in case or Unicode "
                f"form: {these}; `join_classes` makes one of each"
            )
            return tuple(sorted(names))
        joined = {name: normalize("NFC", each[0]) for each in alike for name in each}
        class_of = self._class_of
        self._class_of = lambda picture: joined.get(class_of(picture), class_of(picture))
        return tuple(sorted({joined.get(name, name) for name in names}))

    def _note_empty(self, empty: Examples) -> None:
        """Note the images of 0 bytes."""
        if empty.count:
            self._notes.append(
                f"warning: {counted(empty.count, 'image')} of 0 bytes, which a build rejects: {empty}; remove or "
                "replace them, or allow rejections with `max_reject_ratio`"
            )

    # References

    def _dataset(self, dataset: OwnDataset, found: Mapping[str, Enumeration], splits: Iterable[str]) -> OpenedDataset:
        """Return a dataset with the splits that exist, and the samples of those that were read."""
        values = {item.name: getattr(dataset, item.name) for item in fields(OwnDataset)}
        line = renumbering(next((enumeration.classes for enumeration in found.values()), ()))
        notes = (*self._notes, *([line] if line else ()), *uneven_classes(self._own, found))
        values |= {"facts": {name: dataset.facts[name] for name in splits}, "notes": notes}
        return OpenedDataset(**values, found=found)

    def _enumeration(self, split: str, pictures: Pictures[P], classes: tuple[str, ...]) -> Enumeration:
        """Return the references of a split in the order of its pictures; the caller adds the original files."""
        odd = Examples(picture for picture in pictures if not self._class_of(picture)) if classes else Examples(())
        if odd.count:
            has = "has" if odd.count == 1 else "have"
            raise SourceError(
                f"{self._root.url}: {counted(odd.count, 'image')} of {split} {has} an empty label: {odd}; fill it in, "
                "or build without labels by `label_from` none"
            )
        labels = {name: label for label, name in enumerate(classes)}
        refs = SpilledReferences()
        for picture in pictures:
            try:
                refs.add(self._ref(picture, labels))
            except SourceError as error:
                self._problems.add(error)
        return Enumeration(refs, [], classes, self._features)

    def _ref(self, picture: P, labels: Mapping[str, int]) -> SampleRef:
        annotations, (source, offset, num_bytes, crc32c) = b"", picture.place
        if self._features:
            row = self._values(picture)
            values = {name: row[name] for name in self._features}
            try:
                annotations = annotations_json(self._features, values)
            except FormatError as error:
                raise SourceError(f"{self._root.url}: {picture.shown}: {error}") from error
        label = labels[self._class_of(picture)] if labels else NO_LABEL
        return SampleRef(picture.key, source, offset, num_bytes, label, annotations, crc32c)


def in_val(own: OwnData, text: str) -> bool:
    """Return whether an image of train belongs to val. Only its group or key decides, so other images do not move
    it."""
    return _place_of(own, text) < own.val_fraction * 2**64


def uneven_classes(own: OwnData, found: Mapping[str, Enumeration]) -> Iterator[str]:
    """Yield a line for each split of a divided train that has no image of some classes."""
    if not own.val_fraction or not found.keys() >= {"train", "val"} or not found["train"].classes:
        return
    classes = found["train"].classes
    counts = {name: class_counts(found[name].refs, len(classes)) for name in ("val", "train")}
    advice = {"val": "a larger `val_fraction`", "train": "a smaller `val_fraction`"}
    for name, other in (("val", "train"), ("train", "val")):
        lacking = [number for number in range(len(classes)) if counts[other][number] and not counts[name][number]]
        if lacking:
            these = listed(
                [f"{classes[number]} ({counted(counts[other][number], 'image')}, all in {other})" for number in lacking]
            )
            has = "has" if len(lacking) == 1 else "have"
            yield (
                f"note: with `val_fraction` {own.val_fraction:g}, {len(lacking):,} of {counted(len(classes), 'class')} "
                f"{has} no image in {name}: {these}; {advice[name]} or another `seed` may change that"
            )


def listed(names: Sequence[str]) -> str:
    """Return names for a message: all of a few, else the first ones and dots."""
    if len(names) <= LISTED_IN_FULL:
        return ", ".join(names)
    return ", ".join([*names[:SHOWN_EXAMPLES], "..."])


def _place_of(own: OwnData, text: str) -> int:
    digest = hashlib.sha256(f"val/{own.split_seed}/{text}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")


def empty_split(own: OwnData, train: int, val: int, texts: Iterable[str]) -> UsageError:
    """Return the error for a share of train that leaves no image for one of the splits; it names one that works."""
    asked, low, high = own.val_fraction, 1.0, 0.0
    for text in texts:
        place = _place_of(own, text) / 2**64
        low, high = min(low, place), max(high, place)
    decides = "name" if own.group_by is None else f"value of {own.group_by}"
    what = (
        f"`val_fraction` {asked:g} leaves {counted(train, 'image')} for train and {val:,} for val, because the "
        f"{decides} of an image alone decides where it goes"
    )
    for digits in range(1, 16):
        steps = math.floor(low * 10**digits) + 1 if asked <= low else math.floor(high * 10**digits)
        fraction = steps / 10**digits
        if low < fraction <= high:
            return UsageError(f"{what}; `val_fraction` {fraction:.{digits}f} leaves some for both")
    only = "there is only one image" if train + val == 1 else f"all images have the same {decides}"
    return UsageError(f"{what}, and {only}: leave `val_fraction` out")


class Shown(Protocol):
    """Something that messages can name."""

    @property
    def shown(self) -> str: ...


class Examples:
    """Counts pictures, and keeps the first few for a message."""

    def __init__(self, pictures: Iterable[Shown] = ()) -> None:
        self.count = 0
        self._first: list[str] = []
        for picture in pictures:
            self.add(picture)

    def add(self, picture: Shown) -> None:
        """Count a picture."""
        self.count += 1
        if self.count <= SHOWN_EXAMPLES:
            self._first.append(picture.shown)

    def __str__(self) -> str:
        return ", ".join(self._first) + (", ..." if self.count > SHOWN_EXAMPLES else "")
