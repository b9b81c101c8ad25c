"""A user's own pictures with the rows that describe them: labels, features, and the share of train that becomes val.

Subclasses of `PictureReader` find pictures and rows; the rest is the same for all. `Columns` finds the type of each
column over all rows, and converts each row to features. A type is never guessed from a part of the rows, and no value
is left out or filled in unless the user says how: a column with a missing value, or with values of two kinds, is an
error that names the row.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar
from unicodedata import normalize

import msgspec

from dataprep.dataset.features import (
    MAX_ANNOTATION_BYTES,
    Feature,
    Kind,
    Values,
    annotations_json,
    name_fault,
    shown_value,
)
from dataprep.dataset.records import NO_LABEL, Enumeration, SampleRef, renumbering
from dataprep.dataset.spill import SpilledItems, SpilledReferences
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.messages import counted, quoted, shell_words, shown
from dataprep.sources.archives import Progress
from dataprep.sources.base import READ_ALL, OwnData, OwnDataset, Reading, SplitRequest, class_counts, class_fault
from dataprep.sources.keys import Problems, Refuse, at_once
from dataprep.sources.tables import Row
from dataprep.storage.base import Storage

_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,18})")
_REAL = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?")
_WHOLE = re.compile(r"[+-]?\d{1,400}")
_NO_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT64 = range(-(2**63), 2**63)
_AS_TEXT = "write it as one text, with json.dumps for example"
LEAVE_OUT = "leave the column out with `drop` {words}"
"""Advice for leaving out a column."""


class ColumnError(SourceError):
    """A column that cannot be a feature.

    Args:
        reason: The row that shows the problem, and the reason; one clause.
        remedy: Advice for keeping the column, if it is left out by default; empty if there is none.
    """

    def __init__(self, column: str, reason: str, advice: str, *, mark: str = "; ", remedy: str = "") -> None:
        super().__init__(f"{reason}{mark}{advice}")
        self.column, self.reason = column, f"{reason}; {remedy}" if remedy else reason


class Columns:
    """Takes all rows, then returns the features and the values of each row.

    Args:
        defaults: Value for rows without one, as JSON or as plain text, by column.
        leave_out: Advice for leaving a column out, with {words} for its name.
        refuse: Takes a ColumnError for each value or column that cannot be a feature; such a column is left out.
    """

    def __init__(
        self, defaults: Mapping[str, str], drop: frozenset[str], *, leave_out: str = LEAVE_OUT, refuse: Refuse = at_once
    ) -> None:
        self._refuse = refuse
        self.faults: dict[str, str] = {}
        """Columns that cannot be features, each with the reason."""
        self.num_faults = 0
        """Number of values and columns that were refused."""
        self._defaults, self._drop, self._leave_out = dict(defaults), drop, leave_out
        self._types: dict[str, _Types | _TextTypes] = {}
        self._missing: dict[str, str] = {}
        """First row without a value, by column."""
        self._first_row = ""

    def add(self, row: Row) -> bytes:
        """Take a row, and return it encoded; `values` decodes it once all rows are known.

        A value that cannot be a feature, and a row that is too large, are refused.
        """
        values = {name: value for name, value in row.values.items() if name not in self._drop}
        for name, value in values.items():
            if name not in self._types:
                self._types[name] = _TextTypes() if row.is_text else _Types()
                if self._first_row:
                    self._missing.setdefault(name, self._first_row)
            if _is_missing(value):
                self._missing.setdefault(name, row.where)
                continue
            try:
                self._types[name].add(value, _Place(name, row.where, self._leave_out))
            except ColumnError as error:
                self._refuse_column(name, error)
        for name in self._types.keys() - values.keys():
            self._missing.setdefault(name, row.where)
        self._first_row = self._first_row or row.where
        used = {name: value for name, value in values.items() if not _is_missing(value) and name not in self.faults}
        kept = msgspec.msgpack.encode(used)
        if len(kept) <= MAX_ANNOTATION_BYTES:
            return kept
        what = f"{len(kept):,} bytes of values, expected at most {MAX_ANNOTATION_BYTES:,} for an image"
        self._refuse(SourceError(f"{row.where}: {what}; {self._leave_out.format(words='NAME')}"))
        return msgspec.msgpack.encode({})

    def _refuse_column(self, name: str, error: ColumnError) -> None:
        self.faults[name] = error.reason
        self.num_faults += 1
        self._refuse(error)

    def features(self) -> dict[str, Feature]:
        """Return the type of every column that has one.

        A column is refused if it has values of two kinds, or a row without a value and no default.
        """
        if unknown := sorted(self._defaults.keys() - self._types.keys() - self._drop):
            known = ", ".join(sorted(self._types))
            self._refuse(SourceError(f"`default` {unknown[0]}: the metadata has no such column; it has {known}"))
        found = {}
        for name in sorted(self._types.keys() - self.faults):
            try:
                found[name] = self._feature(name)
            except ColumnError as error:
                self._refuse_column(name, error)
        return found

    def _feature(self, name: str) -> Feature:
        types = self._types[name]
        if name in self._defaults:
            types.add(types.default(self._defaults[name]), _Place(name, "`default`", self._leave_out))
        if name in self._missing and name not in self._defaults:
            raise _no_value(name, self._missing[name], self._leave_out)
        return types.feature(name, has_default=name in self._defaults, leave_out=self._leave_out)

    def values(self, kept: bytes, features: Mapping[str, Feature]) -> Values:
        """Return the values of an encoded row, in the types of their features."""
        row = msgspec.msgpack.decode(kept)
        values = {}
        for name, feature in features.items():
            types, value = self._types[name], row.get(name)
            if value is None or (isinstance(types, _TextTypes) and value == "" and name in self._defaults):
                value = types.default(self._defaults[name])
            values[name] = types.typed(value, feature)
        return values


@dataclass(frozen=True, slots=True)
class _Place:
    column: str
    row: str
    leave_out: str = LEAVE_OUT

    def error(self, what: str, advice: str = "") -> ColumnError:
        step = f"{advice or 'correct it'}, or {self.leave_out.format(words=shell_words(self.column))}"
        return ColumnError(self.column, f"{self.row}: column {quoted(self.column)}: {what}", step)


class _TextTypes:
    """Finds the type of a column whose values are all texts, as in a CSV file."""

    def __init__(self) -> None:
        self._fits = dict(_TEXT_KINDS)
        self._empty = self._no_number = ""
        self._has_values = False

    def add(self, value: str, place: _Place) -> None:
        if value == "":
            self._empty = self._empty or place.row
        elif _NO_NUMBER.fullmatch(value):
            self._no_number = self._no_number or place.row
        else:
            self._has_values = True
            if self._fits:
                self._fits = {kind: fits for kind, fits in self._fits.items() if fits(value)}

    def default(self, text: str) -> str:
        return text

    def feature(self, name: str, *, has_default: bool, leave_out: str = LEAVE_OUT) -> Feature:
        kind = next(iter(self._fits)) if self._fits and self._has_values else "text"
        if kind != "text" and self._empty and not has_default:
            raise _no_value(name, self._empty, leave_out)
        if kind in ("int64", "float64") and self._no_number:
            raise _Place(name, self._no_number, leave_out).error("a number that is not finite")
        if kind == "bool" and self._no_number:
            kind = "text"
        return Feature(kind)

    def typed(self, value: str, feature: Feature) -> Any:
        return _FROM_TEXT[feature.kind](value)


_TEXT_KINDS: dict[Kind, Callable[[str], bool]] = {
    "int64": lambda text: _INTEGER.fullmatch(text) is not None and int(text) in _INT64,
    "float64": lambda text: _REAL.fullmatch(text) is not None and _is_kept(text),
    "bool": lambda text: text in _TRUTH,
}
"""Kinds that a column of texts may have; the first one that all values fit is used. Numbers with leading zeros, and
integers that would be rounded, are texts."""
_FROM_TEXT: dict[Kind, Callable[[str], Any]] = {"int64": int, "float64": float, "bool": _TRUTH.__getitem__, "text": str}


def _is_kept(text: str) -> bool:
    """Return whether a number survives as a 64-bit float: fractions may lose precision, but integers must stay exact,
    because they may be identifiers."""
    number = float(text)
    return math.isfinite(number) and (not _WHOLE.fullmatch(text) or int(number) == int(text))


@dataclass(slots=True)
class _Types:
    """Finds the type of a column of typed values; each fact seen so far maps to the first row that shows it."""

    kinds: dict[Kind, str] = field(default_factory=dict)
    depths: dict[int, str] = field(default_factory=dict)
    lengths: dict[int, str] = field(default_factory=dict)
    """Lengths of lists inside lists."""
    empty: str = ""
    """First row with an empty list, which does not show the type of its elements."""
    rounded: str = ""
    """First row with an integer that a 64-bit float cannot hold exactly."""
    columns: dict[str, _Types] = field(default_factory=dict)

    def add(self, value: Any, place: _Place) -> None:
        """Take one value. Raises SourceError for a value that cannot be a feature."""
        value = _as_columns(value, place)
        if isinstance(value, dict):
            self._add_records(value, place)
        else:
            self._add_nested(value, place, 0)

    def _add_records(self, value: Values, place: _Place) -> None:
        self.depths.setdefault(-1, place.row)
        lengths = {len(items) if isinstance(items, list) else -1 for items in value.values()}
        if not value or -1 in lengths or len(lengths) > 1:
            raise place.error(
                f"{shown_value(value)}, expected records: a list of objects, or an object of lists of one length",
                _AS_TEXT,
            )
        if self.columns and self.columns.keys() != value.keys():
            raise place.error(f"records of {', '.join(value)}; earlier rows have records of {', '.join(self.columns)}")
        for name, items in value.items():
            inner = self.columns.setdefault(name, _Types())
            inner._add_nested(items, replace(place, column=f"{place.column}/{name}"), 0)

    def _add_nested(self, value: Any, place: _Place, depth: int) -> None:
        if not isinstance(value, list):
            self.depths.setdefault(depth, place.row)
            self.kinds.setdefault(_kind_of(value, place), place.row)
            if isinstance(value, int) and int(float(value)) != value:
                self.rounded = self.rounded or place.row
            return
        if depth == 2:
            raise place.error("lists in lists in lists", _AS_TEXT)
        if depth == 1:
            self.lengths.setdefault(len(value), place.row)
        elif not value:
            self.empty = self.empty or place.row
        for item in value:
            self._add_nested(item, place, depth + 1)

    def default(self, text: str) -> Any:
        """Return the parsed text if it is JSON, else the text itself."""
        try:
            return json.loads(text)
        except ValueError:
            return text

    def feature(self, name: str, *, has_default: bool = False, leave_out: str = LEAVE_OUT) -> Feature:
        place = _Place(name, next(iter(self.depths.values()), self.empty), leave_out)
        if len(self.depths) > 1 or (self.empty and 0 in self.depths):
            rows = sorted({*self.depths.values(), *filter(None, [self.empty])})
            raise place.error(f"a value whose lists are nested differently in {rows[-1]}", _AS_TEXT)
        if self.columns:
            return Feature(
                "records", (), {inner: types.feature(f"{name}/{inner}") for inner, types in self.columns.items()}
            )
        kinds = self.kinds.keys()
        if not kinds:
            raise place.error("only empty lists, which do not show the type of their elements")
        if len(kinds) > 1 and kinds != {"int64", "float64"}:
            first, second, *_ = (f"{kind} in {row}" for kind, row in self.kinds.items())
            raise place.error(f"{first}, but {second}")
        if len(kinds) > 1 and self.rounded:
            raise place.error(f"float64 in {self.kinds['float64']}, but an integer in {self.rounded} would be rounded")
        kind: Kind = "float64" if len(kinds) > 1 else next(iter(kinds))
        return Feature(kind, self._shape(place, kind))

    def _shape(self, place: _Place, kind: Kind) -> tuple[int | None, ...]:
        (depth,) = self.depths
        if depth < 2:
            return (None,) * depth
        if len(self.lengths) > 1 or 0 in self.lengths or kind in ("text", "bytes"):
            rows = ", ".join(f"{length} in {row}" for length, row in list(self.lengths.items())[:2])
            raise place.error(f"lists in lists of {kind}, of different lengths or of text ({rows})", _AS_TEXT)
        return (None, next(iter(self.lengths)))

    def typed(self, value: Any, feature: Feature) -> Any:
        if feature.kind != "records":
            return _as_real(value) if feature.kind == "float64" else value
        columns = _as_columns(value, _Place("", "")) or dict.fromkeys(feature.columns, ())
        return {
            name: [_as_real(item) if inner.kind == "float64" else item for item in columns[name]]
            for name, inner in feature.columns.items()
        }


def _as_columns(value: Any, place: _Place) -> Any:
    """Return a list of objects as an object of lists; any other value unchanged."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return value
    names = value[0].keys()
    if any(item.keys() != names for item in value):
        raise place.error("objects with different fields in one list")
    return {name: [item[name] for item in value] for name in names}


def _as_real(value: Any) -> Any:
    return [_as_real(item) for item in value] if isinstance(value, list) else float(value)


def _kind_of(value: Any, place: _Place) -> Kind:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if value not in _INT64:
            raise place.error(f"{shown_value(value)}, expected an integer of 64 bits")
        return "int64"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise place.error("a number that is not finite")
        return "float64"
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise place.error("half of a surrogate pair, which is not text") from error
        return "text"
    what = "a list with missing values" if value is None else f"a value of type {type(value).__name__}"
    raise place.error(f"{what}, expected text, numbers, booleans, lists of them or records", _AS_TEXT)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _no_value(name: str, row: str, leave_out: str) -> ColumnError:
    return ColumnError(
        name,
        f"{row}: column {quoted(name)} has no value, and every image needs one",
        f"give one with `default` {shell_words(name)}=VALUE, or {leave_out.format(words=shell_words(name))}",
        mark=": ",
        remedy=f"`default` {shell_words(name)}=VALUE keeps it",
    )


LABEL_COLUMN = "label"
"""Column that holds the class, unless the user names another."""
FOLDER_LABELS, NO_LABELS = "folder", "none"
_NEAR_LABELS = frozenset({"label", "labels", "class", "classes", "class_name", "category", "cls", "target"})
"""Names, in lower case, of columns that may hold classes."""
SHOWN_EXAMPLES = 3
"""Maximum number of examples in a message."""
LISTED_IN_FULL = 5
"""Maximum number of names that a message lists completely."""


@dataclass(frozen=True, kw_only=True)
class OpenedDataset(OwnDataset):
    """A user's own data after reading."""

    found: Mapping[str, Enumeration]
    """Samples of each split."""

    @classmethod
    def of(cls, dataset: OwnDataset, found: Mapping[str, Enumeration], **changed: Any) -> OpenedDataset:
        """Return a dataset with its samples; `changed` replaces fields of it."""
        known = {item.name: getattr(dataset, item.name) for item in fields(OwnDataset)}
        return cls(**known | changed, found=found)

    def opened(self, root: Storage, reading: Reading = READ_ALL) -> OpenedDataset:
        """Return this dataset; its originals were read before."""
        return self

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        return next(iter(self.found.values())).classes

    def _find(self, root: Storage, wanted: SplitRequest) -> Enumeration:
        return self.found[wanted.split]


class Picture(Protocol):
    """One image, with the facts found so far."""

    row: bytes
    """Row of metadata as encoded by `Columns.add`; decoded values would take several times the memory."""

    @property
    def key(self) -> str: ...

    @property
    def shown(self) -> str:
        """Path or row of the image, as messages show it."""

    @property
    def place(self) -> tuple[str, int, int, int | None]:
        """The image's file, relative to the root, offset, number of bytes, and expected CRC32C (None if unknown)."""


P = TypeVar("P", bound=Picture)


class AllSplits(Generic[P]):
    """The pictures of several splits, one split after the other."""

    def __init__(self, splits: Iterable[SpilledItems[P]]) -> None:
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
        self._class_of: Callable[[P], str] = lambda _: ""
        """Function that returns the class of an image; replaced when the labels' source is known."""

    @abstractmethod
    def _collected(self, pictures: Iterable[P]) -> SpilledItems[P]:
        """Return pictures that can be read several times."""

    def _take_columns(self) -> None:
        """Find the types of all columns, after all rows were added to `_columns`."""
        self._all_columns = self._columns.features()
        self._features = dict(self._all_columns)

    def _values(self, picture: P) -> Values:
        """Return the values of an image's row, by column."""
        return self._columns.values(picture.row, self._all_columns)

    # The share of train that becomes val

    def _with_val(self, splits: Mapping[str, SpilledItems[P]]) -> Mapping[str, SpilledItems[P]]:
        """Return the splits with a share of train as val, if the user requests it."""
        own = self._own
        if not own.val_fraction:
            return splits
        if "val" in splits or "train" not in splits:
            raise UsageError(
                f"`val_fraction` {own.val_fraction:g}: {self._root.url} has the splits {', '.join(splits)}; it needs "
                "train, and no val"
            )
        val, train = self._collected(()), self._collected(())
        for picture in splits["train"]:
            (val if in_val(own, self._group(picture)) else train).append(picture)
        if not len(val) or not len(train):
            raise empty_split(own, len(train), len(val), map(self._group, splits["train"]))
        return {**splits, "train": train, "val": val}

    def _group(self, picture: P) -> str:
        """Return the text that determines an image's split: the value of its group, or its key."""
        column = self._own.group_by
        if column is None:
            return picture.key
        if column not in self._all_columns:
            known = ", ".join(sorted(self._all_columns)) or "no columns"
            raise UsageError(f"`group_by` {column}: no such column in {self.columns_of}; it has {known}")
        return json.dumps(self._values(picture)[column], sort_keys=True, default=repr)

    # Labels

    def _label_by_column(self, pictures: Iterable[P], column: str) -> None:
        """Take the classes from a column, which is then not a feature."""
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
            fewest, most = 0, 0
            for picture in pictures:
                value = self._values(picture)[column]
                fewest, most = min(fewest, value), max(most, value)
            if fewest < 0:
                raise SourceError(f"{self._root.url}: `label_from` {column}: {fewest}; expected integers of 0 or more")
            width = len(str(most))

        def class_of(picture: P) -> str:
            value = self._values(picture)[column]
            # With leading zeros, names sort like the numbers.
            return value if isinstance(value, str) else str(value).lower().zfill(width)

        self._class_of = class_of

    def _note_near_labels(self) -> None:
        """Note the first column that may hold classes, if none is called LABEL_COLUMN."""
        near = [name for name in self._features if name.lower().strip() in _NEAR_LABELS]
        if near:
            advice = f"`label_from` {shell_words(near[0])}"
            self._notes.append(f"note: the column {shown(near[0])} is a feature; if it holds the classes: {advice}")

    def _check_features(self) -> None:
        """Refuse columns whose names are not valid for features."""
        faults = {name: fault for name in self._features if (fault := name_fault(name))}
        if faults:
            hint = f", or give `label_from` {LABEL_COLUMN}" if LABEL_COLUMN in faults else ""
            raise SourceError(
                f"{self._root.url}: a column of {self.columns_of}: {'; '.join(faults.values())}; rename it, or leave "
                f"it out with {' '.join(f'`drop` {shell_words(name)}' for name in faults)}{hint}"
            )

    def _checked_classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the sorted, unique, non-empty names of classes."""
        classes = self._told_apart({name for name in names if name})
        for name in classes:
            if fault := class_fault(name):
                self._problems.note(f"{self._root.url}: {fault}")
        return classes

    def _told_apart(self, names: set[str]) -> tuple[str, ...]:
        """Return sorted names; note names that differ only in case or Unicode form, or join them."""
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

    # References

    def _dataset(self, dataset: OwnDataset, found: Mapping[str, Enumeration], splits: Iterable[str]) -> OpenedDataset:
        """Return a dataset with the existing splits, and the samples of the splits that were read."""
        line = renumbering(next((enumeration.classes for enumeration in found.values()), ()))
        notes = (*self._notes, *([line] if line else ()), *uneven_classes(self._own, found))
        return OpenedDataset.of(dataset, found, facts={name: dataset.facts[name] for name in splits}, notes=notes)

    def _enumeration(self, split: str, pictures: Iterable[P], classes: tuple[str, ...]) -> Enumeration:
        """Return the references of a split in the order of its pictures; the caller adds the original files."""
        odd = Examples(picture for picture in pictures if not self._class_of(picture)) if classes else Examples(())
        if odd.count:
            has = "has" if odd.count == 1 else "have"
            raise SourceError(
                f"{self._root.url}: {counted(odd.count, 'image')} of {split} {has} an empty label: {odd}; fill it in, "
                "or build without labels with `label_from` none"
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
    """Return whether an image of train belongs to val. This depends only on its group or key, not on other images."""
    return _place_of(own, text) < own.val_fraction * 2**64


def uneven_classes(own: OwnData, found: Mapping[str, Enumeration]) -> Iterator[str]:
    """Yield a line for each of train and val that lacks images of some classes after train was divided."""
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
    """Return names for a message: all if they are few, else the first ones and dots."""
    if len(names) <= LISTED_IN_FULL:
        return ", ".join(names)
    return ", ".join([*names[:SHOWN_EXAMPLES], "..."])


def _place_of(own: OwnData, text: str) -> int:
    digest = hashlib.sha256(f"val/{own.split_seed}/{text}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")


def empty_split(own: OwnData, train: int, val: int, texts: Iterable[str]) -> UsageError:
    """Return the error for a share that leaves no image in train or val; it names a share that works."""
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
    """Value with a name for messages."""

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
        self.count += 1
        if self.count <= SHOWN_EXAMPLES:
            self._first.append(picture.shown)

    def __str__(self) -> str:
        return ", ".join(self._first) + (", ..." if self.count > SHOWN_EXAMPLES else "")
