"""A user's own table of images: parquet files with image bytes, or tables with paths of images.

    tables ─▶ splits, by names ─▶ rows ─▶ images: unpacked bytes, or files ─▶ labels ─▶ a share of train becomes val

A table may come from a stranger: its paths never leave the source that the user named (`image_tables.py`).

Rows whose images are missing, empty or of an unsupported type are problems. If `max_reject_ratio` allows their number
in each split, the build rejects and lists the images instead. Pictures in the same folders that no row names are
counted.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from dataprep.dataset.features import RESERVED
from dataprep.dataset.paths import OTHER_PICTURES
from dataprep.dataset.records import ALL_FILES, MISSING, SourceFile
from dataprep.dataset.spill import Codec, SpilledItems
from dataprep.errors import SourceError, UsageError
from dataprep.messages import counted, human_bytes, quoted, shown, sufficient_ratio
from dataprep.sources import base, image_tables, keys
from dataprep.sources import pictures as own_pictures
from dataprep.sources.archives import refuse_pointer
from dataprep.sources.image_tables import columns_of
from dataprep.sources.tables import Row, numbered
from dataprep.sources.tree import unpack_command
from dataprep.sources.unpacked import unpacking_note
from dataprep.storage.base import Storage

FROM_PATH, FROM_ROW = "path", "row"
_DECODER = msgspec.msgpack.Decoder(tuple[str, int, tuple[str, int, int, int | None], str, bytes])
_MISSING_IMAGES = Codec(
    msgspec.msgpack.encode, msgspec.msgpack.Decoder(tuple[str, str]).decode, "the list of missing images"
)
MAX_NAMED = 100_000
"""Maximum number of pictures for comparing a table with its folders: their names take about 15 MB of memory."""
MAX_LISTED = 2 * MAX_NAMED
"""Maximum number of files in folders that are listed."""


@dataclass(frozen=True, kw_only=True)
class Table(base.OwnDataset):
    """Dataset `table`: images in, or listed by, the user's own tables."""

    def opened(self, root: Storage, reading: base.Reading = base.READ_ALL) -> own_pictures.OpenedDataset:
        reader = _TableReader(root, self.own or base.OwnData(name=self.name), reading.progress)
        return reader.opened(self, reading)


TABLE = Table(
    name="table",
    description="Images in the user's own table: their bytes in parquet files, or paths in a table of any kind.",
    facts={name: base.SplitFacts(samples=None) for name in base.SPLITS},
)


class NamedRow(NamedTuple):
    """A row of a table with its image, for messages."""

    table: image_tables.ImageTable
    number: int
    image: str
    """Name of the image below the source; empty if the row names none."""

    @property
    def shown(self) -> str:
        return f"{shown(self.image) if self.image else 'no path'} ({numbered(self.table.name, self.number)})"


class UnusableImages:
    """Collects the rows of tables whose images cannot be used; `max_ratio` of a split's rows may be rejected."""

    def __init__(self, root: Storage, max_ratio: float) -> None:
        self._root, self._where, self._max_ratio = root, root.url, max_ratio
        self.image_column = ""
        self.missing = SpilledItems(_MISSING_IMAGES)
        """All images that do not exist, each with its row."""
        self._rows = Counter[image_tables.ImageTable]()
        self._lacking = defaultdict[image_tables.ImageTable, own_pictures.Examples](own_pictures.Examples)
        """Tables with images that do not exist, and these images."""
        self._unread: list[NamedRow] = []
        """First rows whose file has an unsupported type."""
        self._num_unread = 0
        self.empty = own_pictures.Examples()
        """Rows whose image has no bytes."""

    @property
    def are_some(self) -> bool:
        """Whether any images cannot be used."""
        return bool(self._lacking or self._num_unread or self.empty.count)

    def add(self, row: NamedRow, num_bytes: int | None) -> None:
        """Note a row of a table with paths if its image cannot be used; `num_bytes` is None if there is no file."""
        self._rows[row.table] += 1
        if num_bytes is None:
            self._lacking[row.table].add(row)
            self.missing.append((row.image, image_tables.row_name(row.table, row.number)))
        elif not is_read(row.image):
            self._num_unread += 1
            self._unread += [row] if self._num_unread <= keys.SHOWN_PROBLEMS else []
        elif not num_bytes:
            self.empty.add(row)

    def refuse(
        self, splits: Mapping[str, tuple[own_pictures.Examples, int]], problems: keys.Problems, *, are_final: bool
    ) -> list[str]:
        """Return a line for each split with images that will be rejected; add problems if they are too many.

        Args:
            splits: Images of each split that cannot be used, and the number of all its images.
            are_final: Whether these are the build's splits, so that the message can name a sufficient ratio.
        """
        odd = {split: found for split, found in splits.items() if found[0].count > self._max_ratio * found[1]}
        if not odd:
            return [
                f"warning: {_what(split, examples, rows)}, and will be rejected and listed: {examples}"
                for split, (examples, rows) in splits.items()
                if examples.count
            ]
        ratio = max(sufficient_ratio(examples.count, rows) for examples, rows in splits.values())
        if self._max_ratio:
            remedy = f"`max_reject_ratio` {ratio:g} suffices for these" if are_final else "a larger ratio allows them"
            errors = self._too_many(odd, remedy)
        else:
            option = f"`max_reject_ratio` {ratio:g}" if are_final else "`max_reject_ratio`"
            errors = self._repairable(f"or have them rejected and listed with {option}")
        for error in errors:
            problems.note(error)
        if not self._max_ratio:
            problems.count += self._num_unread - len(self._unread)
        return []

    def _too_many(self, splits: Mapping[str, tuple[own_pictures.Examples, int]], remedy: str) -> Iterator[str]:
        """Yield an error for each split that has more of these images than the ratio allows."""
        for split, (examples, rows) in splits.items():
            yield (
                f"{self._where}: {_what(split, examples, rows)}, more than `max_reject_ratio` {self._max_ratio:g} "
                f"allows, so a build would end without a dataset: {examples}; repair the files, or remove the rows; "
                f"{remedy}"
            )
        yield from self._elsewhere()

    def _repairable(self, reject: str) -> Iterator[str]:
        """Yield an error with advice for each kind of unusable images; `reject` is the advice for rejecting them."""
        for table, number, image in self._unread:
            yield (
                f"{image_tables.row_name(table, number)}: {shown(image)}: a picture of type {_suffix(image)}, which is "
                f"not read; convert such files to JPEG or PNG, {reject}"
            )
        for table, missing in self._lacking.items():
            if 2 * missing.count < self._rows[table]:
                yield (
                    f"{self._lack(table)}; put them there, or remove the rows, {reject}; paths are relative to the "
                    "table or to `source`"
                )
        yield from self._elsewhere()
        if self.empty.count:
            repair = "replace it, or remove the row" if self.empty.count == 1 else "replace them, or remove the rows"
            images = f"{counted(self.empty.count, 'image')} without a byte"
            yield f"{self._where}: {images}: {self.empty}; {repair}, {reject}"

    def _elsewhere(self) -> Iterator[str]:
        """Yield an error for each table that lacks most of its images: its paths probably start in another folder."""
        for table, missing in self._lacking.items():
            if 2 * missing.count >= self._rows[table]:
                yield (
                    f"{self._lack(table)}; expected paths relative to the table or to `source`: name "
                    f"their column with `image_column` (now {self.image_column}), or put the table into the folder "
                    f"where the paths begin{self._found_elsewhere()}"
                )

    def _found_elsewhere(self) -> str:
        """Return advice in case the images are in a folder or an archive next to the table."""
        if not self._root.is_local:
            return ""
        near, (first, _) = sorted(Path(self._root.url).iterdir()), next(iter(self.missing))
        for folder in near:
            if (folder / first).is_file():
                return f", such as {shown(folder.name)}, which has {shown(first)}"
        beside = [path.name for path in near if path.suffix.lower() in (".zip", ".tar")]
        if not beside:
            return ""
        return f"; if they are in {shown(beside[0])}, unpack first: {unpack_command(*map(self._root.url_of, beside))}"

    def _lack(self, table: image_tables.ImageTable) -> str:
        missing, rows = self._lacking[table], self._rows[table]
        where = f"{table.url}: {missing.count:,} of {rows:,} images are not below {self._where}: {missing}"
        return where + (" (the JSON output lists all)" if missing.count > own_pictures.SHOWN_EXAMPLES else "")


def is_read(image: str) -> bool:
    """Return whether a file is, by its name, of a type that is read."""
    return _suffix(image) not in OTHER_PICTURES


def unnamed_pictures(root: Storage, names: set[str]) -> str:
    """Return a line about the pictures in the folders of `names`, the pictures of rows, that no row names; empty if
    there are none, or too many to compare."""
    entries = list(islice(_entries(root, names), MAX_LISTED + 1)) if len(names) <= MAX_NAMED else []
    if len(entries) > MAX_LISTED:
        return ""
    named = {name.lower() for name in names}  # because keys, and some disks, ignore case
    unnamed = sorted(name for name in entries if name and name.lower() not in named)
    if not unnamed:
        return ""
    verb, them = ("is", "it is") if len(unnamed) == 1 else ("are", "they are")
    return (
        f"note: {counted(len(unnamed), 'picture')} next to the table's {verb} in no row, so {them} left out: "
        f"{own_pictures.listed([*map(shown, unnamed)])}"
    )


def _entries(root: Storage, names: set[str]) -> Iterator[str]:
    """Yield the name below the source of each picture in the folders of some pictures; an empty one for other files."""
    for folder in sorted({name.rpartition("/")[0] for name in names}):
        with suppress(OSError), os.scandir(root.url_of(folder)) as entries:
            for entry in entries:
                suffix = entry.name.rpartition(".")[2].lower()
                is_picture = suffix in keys.IMAGE_SUFFIXES | OTHER_PICTURES and not keys.is_hidden((entry.name,))
                name = f"{folder}/{entry.name}" if folder else entry.name
                yield name if is_picture and entry.is_file() else ""


@dataclass(slots=True)
class _Picture:
    """One row of a table."""

    table: image_tables.ImageTable
    number: int
    """Number of the row, as messages name it."""
    source: str
    """File that holds the image, relative to the root."""
    offset: int
    num_bytes: int
    crc32c: int | None = None
    """CRC32C of an unpacked image."""
    key: str = ""
    row: bytes = b""

    @property
    def shown(self) -> str:
        return image_tables.row_name(self.table, self.number)

    @property
    def place(self) -> tuple[str, int, int, int | None]:
        return self.source, self.offset, self.num_bytes, self.crc32c


_Splits: TypeAlias = Mapping[str, SpilledItems[_Picture]]


class _TableReader(own_pictures.PictureReader[_Picture]):
    columns_of = "the table"

    def opened(self, dataset: Table, reading: base.Reading) -> own_pictures.OpenedDataset:
        self._unusable = UnusableImages(self._root, reading.max_reject_ratio)
        try:
            with self._problems.together():
                return self._opened(dataset, reading)
        except SourceError as error:
            error.missing = self._unusable.missing
            faults = self._columns.faults
            if faults and self._problems.count == self._columns.num_faults:
                labels = {own_pictures.LABEL_COLUMN, *self._table_columns.classes}
                error.columns = faults if labels.isdisjoint(faults) else {}
            raise

    def _opened(self, dataset: Table, reading: base.Reading) -> own_pictures.OpenedDataset:
        wanted = reading.splits
        tables = image_tables.tables_by_split(self._root, self._own.archive, self._notes)
        self._tables = {table.name: table for found in tables.values() for table in found}
        self._choose_columns(list(self._tables.values()))
        self._keys = _Keys(self._own, self._table_columns, self._image_column)
        self._unpack_to = reading.unpack_to
        self._drop = frozenset(self._own.drop)
        self._sources: dict[str, list[SourceFile]] = {name: [] for name in tables}
        built = set(wanted) | ({"train"} if self._own.val_fraction else set()) if wanted else set(tables)
        self._in_rows: set[str] | None = set() if self._root.is_local and built >= set(tables) else None
        splits: _Splits = {name: self._pictures(name, found, is_built=name in built) for name, found in tables.items()}
        self._take_columns()
        self._are_typed = not self._problems.count
        if self._holds_bytes:
            num_bytes = sum(picture.num_bytes for pictures in splits.values() for picture in pictures)
            self._notes.append(unpacking_note(human_bytes(num_bytes)))
        if self._in_rows is not None:
            self._notes += filter(None, [unnamed_pictures(self._root, self._in_rows)])
        classes = self._label(splits, built)
        if self._are_typed:
            with self._problems.noted():
                splits = self._with_val(splits)
        known = [name for name in base.SPLITS if name in splits]
        to_build = [name for name in known if name in (wanted or known)]
        other_problems = self._problems.count
        self._refuse_unusable({name: splits[name] for name in to_build})
        if other_problems:
            self._problems.refuse()
        found = {}
        for name in to_build:
            with self._problems.noted():
                enumeration = self._enumeration(name, splits[name], classes)
                found[name] = replace(enumeration, is_checked=self._holds_bytes)
        self._problems.refuse()
        for name, enumeration in found.items():
            enumeration.sources.extend(self._sources.get(name) or self._sources["train"])
        return self._dataset(dataset, found, known)

    # Columns

    def _choose_columns(self, tables: Sequence[image_tables.ImageTable]) -> None:
        """Find the column of the images; all tables must have the same columns."""
        first, own = tables[0], self._own
        self._table_columns = columns = columns_of(first)
        for table in tables[1:] if first.is_parquet or first.holds_texts else ():
            with self._problems.noted():
                _refuse_other_columns(first, columns, table)
        self._problems.refuse()
        self._image_column = self._unusable.image_column = image_tables.choose_image_column(
            first, columns, own.image_column, frozenset(own.drop), only=own.archive
        )
        kind = columns.kinds[self._image_column]
        if kind == "struct":
            kind = "bytes" if any(image_tables.any_bytes(table, self._image_column) for table in tables) else "path"
        self._holds_bytes = kind == "bytes"

    # Rows

    def _collected(self, pictures: Iterable[_Picture]) -> SpilledItems[_Picture]:
        return SpilledItems(Codec(self._encode, self._decode, "the list of images"), pictures)

    def _encode(self, picture: _Picture) -> bytes:
        fields = (picture.table.name, picture.number, picture.place, picture.key, picture.row)
        return msgspec.msgpack.encode(fields)

    def _decode(self, data: bytes) -> _Picture:
        table, number, place, key, row = _DECODER.decode(data)
        return _Picture(self._tables[table], number, *place, key, row)

    def _pictures(
        self, split: str, tables: Sequence[image_tables.ImageTable], *, is_built: bool
    ) -> SpilledItems[_Picture]:
        short, pictures = image_tables.stems(tables), self._collected(())
        for table in tables:
            source = image_tables.packed_source(table, is_unpacked=self._holds_bytes)
            self._sources[split].append(source)
            with self._problems.noted():
                for ordinal, (row, picture) in enumerate(self._rows(table, source, is_built=is_built)):
                    if len(pictures) >= base.MAX_SAMPLES:
                        most = f"{base.MAX_SAMPLES:,}"
                        raise SourceError(f"{table.url}: more than {most} images; build its tables one by one")
                    if self._has_key(row, picture, f"{short[table.name]}-{ordinal}", is_built=is_built):
                        pictures.append(picture)
            if self._holds_bytes:  # report a damaged table before the others are unpacked
                self._problems.refuse()
        if not len(pictures) and not self._problems.count:
            raise SourceError(f"{tables[0].url}: no rows; expected one for each image")
        if is_built:
            self._refuse_same_keys(pictures)
            if not self._holds_bytes:
                self._sources[split].append(SourceFile(ALL_FILES, sum(each.num_bytes for each in pictures)))
        return pictures

    def _has_key(self, row: image_tables.TableRow, picture: _Picture, ordinal: str, *, is_built: bool) -> bool:
        """Store the values of a row, and its key if its split is built; return False if no key can be made."""
        where = f"{picture.table.url} {numbered(picture.table.name, row.number)}"
        values = {name: value for name, value in row.values.items() if name != self._keys.reserved_column}
        picture.row = self._columns.add(Row((), where, values, picture.table.holds_texts))
        if is_built:
            try:
                file = "" if self._holds_bytes else picture.source
                picture.key = self._keys.key(row, where, ordinal, file, is_missing=picture.offset == MISSING)
            except SourceError as error:
                self._problems.add(error)
                return False
        return True

    def _rows(
        self, table: image_tables.ImageTable, source: SourceFile, *, is_built: bool
    ) -> Iterator[tuple[image_tables.TableRow, _Picture]]:
        if not is_built:
            for row in image_tables.table_rows(table, self._image_column, self._drop, only_paths=True):
                yield row, _Picture(table, row.number, "", 0, 0)
        elif self._holds_bytes:
            for row, offset, num_bytes, crc32c in image_tables.packed_images(
                table,
                source,
                image_column=self._image_column,
                drop=self._drop,
                unpack_to=self._unpack_to,
                progress=self._progress,
            ):
                picture = _Picture(table, row.number, table.name, offset, num_bytes, crc32c)
                if not num_bytes:
                    self._unusable.empty.add(picture)
                yield row, picture
        else:
            yield from self._rows_with_files(table)

    def _rows_with_files(self, table: image_tables.ImageTable) -> Iterator[tuple[image_tables.TableRow, _Picture]]:
        """Yield the rows of a table with paths, with the sizes of the files."""
        named = image_tables.named_url(self._root, self._own.archive)
        located, sizes = image_tables.LocatedImages(self._root, table.name, named), dict[str, int]()
        if located.are_listed:
            found = self._named_rows(table, located, lambda _: None)  # refused below
            sizes |= located.sizes([name for _, name in found if name])
        for row, name in self._named_rows(table, located, self._problems.add):
            try:
                size = sizes.get(name) if located.are_listed or not name else located.size_on_disk(name)
                picture = _Picture(table, row.number, name, MISSING if size is None else 0, size or 0)
                _refuse_large(picture)
                refuse_pointer(self._root, name, size or 0)
            except SourceError as error:
                self._problems.add(error)
                continue
            self._unusable.add(NamedRow(table, row.number, name), size)
            if self._in_rows is not None and name and len(self._in_rows) <= MAX_NAMED:
                self._in_rows.add(name)
            yield row, picture

    def _named_rows(
        self, table: image_tables.ImageTable, located: image_tables.LocatedImages, refuse: keys.Refuse
    ) -> Iterator[tuple[image_tables.TableRow, str]]:
        """Yield the rows of a table, each with the name of its file below the source; empty if it has no file."""
        for row in image_tables.table_rows(
            table, self._image_column, self._drop, progress=self._progress, refuse=refuse
        ):
            path = image_tables.image_path(row)
            try:
                name = "" if path is None else located.name_of(path)
            except SourceError as error:
                refuse(SourceError(f"{table.url} {numbered(table.name, row.number)}: {error}"))
                continue
            yield row, name

    def _refuse_same_keys(self, pictures: Iterable[_Picture]) -> None:
        for first, second, _ in keys.same_items(pictures, lambda picture: picture.key.lower()):
            self._problems.note(
                f"{self._root.url}: {first.shown} and {second.shown} have the same key {first.key}, ignoring "
                "case: keys are the images' paths, unless `key_from` is row, or a column whose values differ"
            )

    def _refuse_unusable(self, splits: _Splits) -> None:
        """Refuse images that cannot be used, or note that they will be rejected."""
        if not self._unusable.are_some:
            return
        found = {
            name: (own_pictures.Examples(map(self._named, filter(_is_unusable, pictures))), len(pictures))
            for name, pictures in splits.items()
        }
        self._notes += self._unusable.refuse(
            found, self._problems, are_final=self._are_typed or not self._own.val_fraction
        )

    def _named(self, picture: _Picture) -> own_pictures.Shown:
        return picture if self._holds_bytes else NamedRow(picture.table, picture.number, picture.source)

    # Labels

    def _label(self, splits: _Splits, built: set[str]) -> tuple[str, ...]:
        """Find the source of the classes, remove its column from the features, and return the sorted classes."""
        if not self._are_typed:
            return ()
        column = self._own.label_from or self._label_source()
        if column == own_pictures.FOLDER_LABELS:
            raise UsageError("`label_from` folder: a table has its labels in a column; expected its name, or none")
        classes: tuple[str, ...] = ()
        with self._problems.noted():
            if column in self._table_columns.classes and column in self._features:
                classes = self._label_by_position(
                    column, own_pictures.AllSplits(splits[name] for name in splits if name in built)
                )
            else:
                pictures = own_pictures.AllSplits(splits.values())
                if column != own_pictures.NO_LABELS:
                    self._label_by_column(pictures, column)
                classes = self._checked_classes(map(self._class_of, pictures))
            self._check_features()
        return classes

    def _label_source(self) -> str:
        """Choose the column of the labels when the user has not named one."""
        named = [name for name in self._table_columns.classes if name in self._features]
        if own_pictures.LABEL_COLUMN in self._features or len(named) == 1:
            column = own_pictures.LABEL_COLUMN if own_pictures.LABEL_COLUMN in self._features else named[0]
            self._notes.append(f"classes from the column {column} of the table")
            return column
        self._note_near_labels()
        if named:
            self._notes.append(f"warning: no labels: {', '.join(named)} have classes; choose one with `label_from`")
        return own_pictures.NO_LABELS

    def _label_by_position(self, column: str, pictures: Iterable[_Picture]) -> tuple[str, ...]:
        """Take classes from a column of positions in a list of names, and return the sorted names."""
        del self._features[column]
        names = [name.replace("/", "-").replace("\\", "-").strip() for name in self._table_columns.classes[column]]
        classes = self._checked_classes(names)
        if len(classes) < len(names):
            raise SourceError(
                f"{self._root.url}: the names of the classes of {quoted(column)} are not unique, ignoring slashes and "
                "blanks around; build with `label_from` none"
            )
        if list(classes) != names:
            self._notes.append(
                f"classes are sorted by name, so labels differ from the numbers in {column}: {quoted(names[0])} is "
                f"{classes.index(names[0])} in place of 0"
            )
        odd, first = 0, ""
        for picture in pictures:
            position = self._values(picture)[column]
            if not isinstance(position, int) or not 0 <= position < len(names):
                odd += 1
                first = first or f"{picture.shown}: {column} is {position!r}"
        if odd:
            more = f" (one of {odd:,} such rows)" if odd > 1 else ""
            self._problems.note(
                f"{first}{more}, expected 0 to {len(names) - 1}, a position in the names of the classes; a split "
                "without labels is left out by naming the others, as in `split` train and val, or built with "
                "`label_from` none"
            )
        self._class_of = lambda picture: names[self._values(picture)[column]]
        return classes


class _Keys:
    """Makes the keys of samples from paths, a column, or row numbers."""

    def __init__(self, own: base.OwnData, columns: image_tables.TableColumns, image_column: str) -> None:
        self._from = own.key_from
        self._column: str | None = None
        if own.key_from not in (None, FROM_PATH, FROM_ROW):
            self._column = own.key_from
            if self._column not in columns.kinds or self._column in own.drop:
                raise UsageError(
                    f"`key_from` {self._column}: expected path, row, or a column of {', '.join(columns.kinds)}"
                )
        elif columns.kinds[image_column] == "bytes" and own.key_from != FROM_ROW:
            paths = [
                name
                for name, kind in columns.kinds.items()
                if kind == "path" and name.lower() in image_tables.PATH_COLUMNS
            ]
            self._column = paths[0] if len(paths) == 1 and paths[0] not in own.drop else None
        self.reserved_column = self._column if self._column in RESERVED else None
        """Column that is only in the key, because its name is not valid for a feature."""

    def key(self, row: image_tables.TableRow, where: str, ordinal: str, file: str, *, is_missing: bool) -> str:
        """Return the key of a row from its path, its column, or its `ordinal`: the name of the table and the number in
        it. The image's own `file` is empty if it has none; a row without an image may have no path either."""
        path = self._path(row, file)
        has_neither = is_missing and path is None
        if self._from is None and not has_neither:
            self._from = FROM_ROW if path is None else FROM_PATH
        if self._from == FROM_ROW or has_neither:
            return keys.key_of((*ordinal.split("/")[:-1], f"{ordinal.rpartition('/')[2]}.jpg"))
        if path is None:
            raise SourceError(f"{where}: no path to make a key of, unlike other rows; number them with `key_from` row")
        try:
            return keys.key_of(keys.name_parts(_with_suffix(path)))
        except SourceError as error:
            raise SourceError(f"{where}: {shown(path)}: {error}; number the samples with `key_from` row") from error

    def _path(self, row: image_tables.TableRow, file: str) -> str | None:
        if self._column is not None:
            value = row.values.get(self._column)
            return None if value is None or value == "" else str(value)
        return file or (image_tables.image_path(row) if isinstance(row.image, dict) else None)


def _with_suffix(path: str) -> str:
    """Return a path with a suffix, which a key leaves out."""
    suffix = path.rpartition(".")[2].lower()
    return path if suffix in keys.IMAGE_SUFFIXES | OTHER_PICTURES else f"{path}.jpg"


def _is_unusable(picture: _Picture) -> bool:
    return not picture.num_bytes or not is_read(picture.source)


def _refuse_large(picture: _Picture) -> None:
    num_bytes = picture.num_bytes
    if num_bytes > base.MAX_IMAGE_BYTES:
        raise SourceError(
            f"{picture.shown}: {shown(picture.source)} has {num_bytes:,} bytes; at most {base.MAX_IMAGE_BYTES:,} for "
            "one image: remove the row"
        )


def _refuse_other_columns(
    first: image_tables.ImageTable, columns: image_tables.TableColumns, table: image_tables.ImageTable
) -> None:
    others = columns_of(table)
    if others.types == columns.types and others.classes == columns.classes:
        return
    odd = [f"{name} ({kind})" for name, kind in sorted(set(columns.types.items()) ^ set(others.types.items()))]
    more = f" and {len(odd) - keys.SHOWN_PROBLEMS:,} more" if len(odd) > keys.SHOWN_PROBLEMS else ""
    named = f"{', '.join(odd[: keys.SHOWN_PROBLEMS])}{more} {'is' if len(odd) == 1 else 'are'} only in one"
    what = named if odd else "the names of their classes differ"
    raise SourceError(
        f"{first.url} and {table.url} have different columns: {what}; expected the same in all tables: name the table, "
        "or the folder of tables, to build with `table`"
    )


def _what(split: str, examples: own_pictures.Examples, rows: int) -> str:
    return (
        f"{split}: {examples.count:,} of {counted(rows, 'image')} cannot be used (missing, empty or of a type that is "
        "not read)"
    )


def _suffix(image: str) -> str:
    return image.rpartition(".")[2].lower()
