"""Turns columns of metadata into features: finds the type of each column over all rows, and converts each row to them.

A type is never guessed from a part of the rows, and no value is left out or filled in unless the user says how: a
column with a missing value, or with values of two kinds, is an error that names the row.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dataprep.dataset.features import MAX_ANNOTATION_BYTES, Feature, Kind, Values, shown_value
from dataprep.errors import SourceError
from dataprep.messages import quoted, shell_words
from dataprep.sources.keys import Refuse, at_once
from dataprep.sources.tables import Row

_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,18})")
_REAL = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?")
_WHOLE = re.compile(r"[+-]?\d{1,400}")
_NO_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT64 = range(-(2**63), 2**63)
_AS_TEXT = "write it as one text, with json.dumps for example"


_NO_VALUES = msgspec.msgpack.encode({})
LEAVE_OUT = "leave the column out with `drop` {words}"
"""Advice for leaving out a column."""


class ColumnError(SourceError):
    """A column that cannot be a feature.

    Args:
        reason: Which row of the column shows it, and why; one clause.
        remedy: What would keep a column that is left out without being asked for; empty if nothing would.
    """

    def __init__(self, column: str, reason: str, advice: str, *, mark: str = "; ", remedy: str = "") -> None:
        super().__init__(f"{reason}{mark}{advice}")
        self.column, self.reason = column, f"{reason}; {remedy}" if remedy else reason


class Columns:
    """Takes all rows, then returns the features and the values of each row.

    Args:
        defaults: Value for rows without one, as JSON or as plain text, by column.
        leave_out: What a user does to leave a column out, with {words} for its name.
        refuse: Takes each value and column that no feature can have, as a ColumnError; such a column is left out.
    """

    def __init__(
        self,
        defaults: Mapping[str, str],
        drop: frozenset[str],
        *,
        leave_out: str = LEAVE_OUT,
        refuse: Refuse = at_once,
    ) -> None:
        self._refuse = refuse
        self._refused: set[str] = set()
        """Columns that cannot be features."""
        self._defaults, self._drop, self._leave_out = dict(defaults), drop, leave_out
        self._types: dict[str, _Types | _TextTypes] = {}
        self._missing: dict[str, str] = {}
        """First row without a value, by column."""
        self._first_row = ""

    def add(self, row: Row) -> bytes:
        """Take a row, and return it encoded; `values` decodes it once all rows are known.

        A value that no feature can have, and a row that is too large, are refused.
        """
        values = {name: value for name, value in row.values.items() if name not in self._drop}
        for name, value in values.items():
            if name not in self._types:
                self._types[name] = _TextTypes() if row.is_text else _Types()
                if self._first_row:
                    self._missing.setdefault(name, self._first_row)
            if _is_missing(value):
                self._missing.setdefault(name, row.where)
            else:
                self._add(name, value, row.where)
        for name in self._types.keys() - values.keys():
            self._missing.setdefault(name, row.where)
        self._first_row = self._first_row or row.where
        used = {name: value for name, value in values.items() if not _is_missing(value) and name not in self._refused}
        kept = msgspec.msgpack.encode(used)
        if len(kept) > MAX_ANNOTATION_BYTES:
            self._refuse(
                SourceError(
                    f"{row.where}: {len(kept):,} bytes of values, expected at most {MAX_ANNOTATION_BYTES:,} for an "
                    f"image; {self._leave_out.format(words='NAME')}"
                )
            )
            return _NO_VALUES
        return kept

    def _add(self, name: str, value: Any, where: str) -> None:
        try:
            self._types[name].add(value, _Place(name, where, self._leave_out))
        except ColumnError as error:
            self._refused.add(name)
            self._refuse(error)

    def features(self) -> dict[str, Feature]:
        """Return the type of every column that has one.

        A column that has values of two kinds, or rows without a value and no default, is refused.
        """
        unknown = sorted((self._defaults.keys() | self._drop) - self._types.keys() - self._drop)
        if unknown:
            self._refuse(
                SourceError(
                    f"`default` {unknown[0]}: the metadata has no such column; it has {', '.join(sorted(self._types))}"
                )
            )
        found = {}
        for name in sorted(self._types.keys() - self._refused):
            try:
                found[name] = self._feature(name)
            except ColumnError as error:
                self._refuse(error)
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
    """Place of a value, for messages."""

    column: str
    row: str
    leave_out: str = LEAVE_OUT

    def error(self, what: str, advice: str = "") -> ColumnError:
        step = f"{advice or 'correct it'}, or {self.leave_out.format(words=shell_words(self.column))}"
        return ColumnError(self.column, f"{self.row}: column {quoted(self.column)}: {what}", step)


class _TextTypes:
    """The type of a column whose values are all texts, as in a CSV file."""

    def __init__(self) -> None:
        self._fits: dict[Kind, Callable[[str], bool]] = dict(_TEXT_KINDS)
        self._empty: str = ""
        self._no_number: str = ""
        self._has_values = False

    def add(self, value: str, place: _Place) -> None:
        """Take one value."""
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
        """Return the type of all values."""
        kind = next(iter(self._fits)) if self._fits and self._has_values else "text"
        if kind != "text" and self._empty and not has_default:
            raise _no_value(name, self._empty, leave_out)
        if kind in ("int64", "float64") and self._no_number:
            raise _Place(name, self._no_number, leave_out).error("a number that is not finite")
        if kind == "bool" and self._no_number:
            kind = "text"
        return Feature(kind)

    def typed(self, value: str, feature: Feature) -> Any:
        """Return a value in its type."""
        return _FROM_TEXT[feature.kind](value)


_TEXT_KINDS: dict[Kind, Callable[[str], bool]] = {
    "int64": lambda text: _INTEGER.fullmatch(text) is not None and int(text) in _INT64,
    "float64": lambda text: _REAL.fullmatch(text) is not None and _is_kept(text),
    "bool": lambda text: text in _TRUTH,
}
"""Kinds that a column of texts may have; the first that fits all values is used. Numbers with leading zeros, and
integers that would be rounded, are texts."""
_FROM_TEXT: dict[Kind, Callable[[str], Any]] = {"int64": int, "float64": float, "bool": _TRUTH.__getitem__, "text": str}


def _is_kept(text: str) -> bool:
    """Return whether a float of 64 bits holds a number: any fraction, to its precision, but an integer exactly, because
    it may be an identifier."""
    number = float(text)
    return math.isfinite(number) and (not _WHOLE.fullmatch(text) or int(number) == int(text))


@dataclass(slots=True)
class _Types:
    """The type of a column of typed values, from those seen so far; each fact maps to the first row that shows it."""

    kinds: dict[Kind, str] = field(default_factory=dict)
    depths: dict[int, str] = field(default_factory=dict)
    lengths: dict[int, str] = field(default_factory=dict)
    """Lengths of lists inside lists."""
    empty: str = ""
    """First row with an empty list, which does not show the type of its elements."""
    rounded: str = ""
    """First row with an integer that a float of 64 bits does not hold exactly."""
    columns: dict[str, _Types] = field(default_factory=dict)
    """Columns of records."""

    def add(self, value: Any, place: _Place) -> None:
        """Take one value. Raises SourceError for one that no feature can have."""
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
        """Return the value of a text: parsed if it is JSON, else the text itself."""
        try:
            return json.loads(text)
        except ValueError:
            return text

    def feature(self, name: str, *, has_default: bool = False, leave_out: str = LEAVE_OUT) -> Feature:
        """Return the type of all values."""
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
        depth = next(iter(self.depths))
        if depth < 2:
            return (None,) * depth
        if len(self.lengths) > 1 or 0 in self.lengths or kind in ("text", "bytes"):
            rows = ", ".join(f"{length} in {row}" for length, row in list(self.lengths.items())[:2])
            raise place.error(f"lists in lists of {kind}, of different lengths or of text ({rows})", _AS_TEXT)
        return (None, next(iter(self.lengths)))

    def typed(self, value: Any, feature: Feature) -> Any:
        """Return a value in its type."""
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
