"""A table of images: its image column, its class names, its rows, and the places of the images.

Parquet files hold image bytes in a column, as the Hugging Face Hub writes them (`image: {bytes, path}`), or paths; text
files hold paths. A table is hostile input. Rows of a parquet file are read a few at a time, and fewer if its row groups
claim to be large, so that a value repeated by a dictionary stays bounded as long as the sizes in the footer are true.
Only sizes of row groups are read here: if the metadata of a column are damaged, pyarrow ends the process.

Image bytes are unpacked below the output (`unpacked.py`). Paths never leave the source: a relative path begins at the
folder of the table, or at the source if the first image is only there, and `..` never leads above the source; an
absolute path or a bucket's URL must begin with the source's own; on disk a link must lead to a file inside the source,
or inside the target of a link directly in the source.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from dataprep.arrays import pa
from dataprep.dataset.features import MAX_FEATURES, Values
from dataprep.dataset.records import MISSING, SourceFile
from dataprep.errors import SourceError, StorageError, UsageError
from dataprep.messages import did_you_mean, one_line, quoted, shell_words, shown
from dataprep.sources import tables as table_files
from dataprep.sources.archives import Progress, refuse_pointer
from dataprep.sources.base import MAX_IMAGE_BYTES, SPLITS
from dataprep.sources.folders import MAX_DEPTH, folder_files, tree_files
from dataprep.sources.keys import IMAGE_SUFFIXES, Problems, Refuse, at_once, is_hidden, name_parts
from dataprep.sources.unpacked import NO_IMAGE, PARQUET, unpacked_list, unpacked_name, unpacking
from dataprep.storage.base import Storage
from dataprep.storage.checksums import crc32c_of
from dataprep.storage.parquet import ParquetFile, open_parquet

Kind = Literal["bytes", "struct", "path", "other"]
"""Content of a column: bytes, a struct of bytes and path, texts, or anything else."""
PATH_COLUMNS = frozenset(
    (
        *("file", "file_name", "file_path", "filename", "filepath", "image", "image_file", "image_name"),
        *("image_path", "img", "img_path", "path", "picture"),
    )
)
"""Names, in lower case, of text columns that are read as paths of images."""
_OTHER_DELIMITERS = (";", "\t", "|", ",")
"""Separators of columns. In a column's name they show that the file uses the wrong one."""
MAX_CLASSES = 1_000_000
MAX_HUB_METADATA_BYTES = 2**26
"""Maximum size of the description of columns that the Hub's libraries store in a parquet file."""
_PREFETCH_BYTES = 2**26
"""Maximum size of a row group that is read from a bucket in one request."""
_WEB = ("http://", "https://", "ftp://")
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""Split by a word in the name of a table or of its folder, in lower case, as on the Hugging Face Hub."""
_LISTED = 10_000
"""Maximum number of file names that `other_data` looks at."""
_NO_LETTERS = re.compile(r"[^a-z]+")


class TableRow(NamedTuple):
    number: int
    """Number, from 1, of the line in a text file or the row in a parquet file, as messages name it."""
    image: Any
    """Value of the image column: bytes, a path, or a dictionary of both."""
    values: Values


@dataclass(frozen=True, slots=True)
class ImageTable:
    root: Storage
    name: str
    """Relative to the root."""
    num_bytes: int

    @property
    def url(self) -> str:
        return self.root.url_of(self.name)

    @property
    def is_parquet(self) -> bool:
        return self.name.lower().endswith(PARQUET)

    @property
    def holds_texts(self) -> bool:
        """Whether all values are texts, as in a CSV file."""
        return table_files.holds_texts(self.name)


@dataclass(frozen=True, slots=True)
class TableColumns:
    kinds: Mapping[str, Kind]
    types: Mapping[str, str]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def columns_of(table: ImageTable) -> TableColumns:
    """Read the columns of a table from its schema, its header or its first row. Raises SourceError if it cannot be
    read, has too many columns or the same one twice, or is a text file without a row."""
    if not table.is_parquet:
        row = next(table_files.text_rows(_text_file(table)), None)
        if row is None:
            raise SourceError(f"{table.url}: no rows; expected one for each image")
        first = row[1]
        kinds: dict[str, Kind] = {name: "path" if isinstance(value, str) else "other" for name, value in first.items()}
        return TableColumns(kinds, {name: type(value).__name__ for name, value in first.items()})
    with _opened(table) as file:
        schema = file.schema_arrow
        names = list(schema.names)
        if len(names) > MAX_FEATURES or len(set(names)) < len(names):
            raise SourceError(
                f"{table.url}: {len(names):,} columns, {len(set(names)):,} different names; expected at most "
                f"{MAX_FEATURES:,}, each once"
            )
        hub = _hub_features(table, schema)
        classes = {name: found for name in names if (found := _class_names(table, name, hub.get(name)))}
        return TableColumns(
            {item.name: _kind_of(item.type) for item in schema},
            {item.name: str(item.type)[:80] for item in schema},
            classes,
        )


def choose_image_column(
    table: ImageTable, columns: TableColumns, chosen: str | None, drop: frozenset[str] = frozenset(), *, only: str = ""
) -> str:
    """Return the column of images. Raises SourceError if none or several may be it, or the chosen one has none."""
    known = ", ".join(f"{name} ({columns.types[name]})" for name in columns.kinds) or "no columns"
    if chosen is not None:
        if columns.kinds.get(chosen, "other") == "other":
            hint = did_you_mean(chosen, columns.kinds) if chosen not in columns.kinds else ""
            raise SourceError(
                f"{table.url}: `image_column` {chosen}: expected a column of image bytes, or of paths; it has "
                f"{known}{hint}"
            )
        return chosen
    kinds = {name: kind for name, kind in columns.kinds.items() if name not in drop}
    found = [name for name, kind in kinds.items() if kind == "struct"]
    found = found or [name for name, kind in kinds.items() if kind == "bytes"]
    found = found or [name for name, kind in kinds.items() if kind == "path" and name.lower() in PATH_COLUMNS]
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(
            f"{table.url}: the columns {', '.join(found)} may all hold the images, expected one such column: name it "
            f"with `image_column` {shell_words(found[0])}, and leave others out with `drop` {shell_words(found[1])}"
        )
    if table.holds_texts and any(mark in name for name in kinds for mark in _OTHER_DELIMITERS):
        expected = "tabs" if table.name.lower().endswith(".tsv") else "commas"
        what = f"its columns are not separated by {expected}: it has {known}"
        raise SourceError(f"{table.url}: {what}; save it as CSV with commas, or as .tsv with tabs")
    raise SourceError(
        f"{table.url}: no column of images: it has {known}; expected image bytes, or paths: name their column with "
        "`image_column` NAME; a table of URLs is built by "
        f"dataprep build laion `source` {shell_words(named_url(table.root, only))} `name` NAME"
    )


def named_url(root: Storage, only: str) -> str:
    """Return the URL of the table, or folder of tables, that the user named; the source's URL if `only` is empty."""
    return root.url_of(only) if only else root.url


def table_rows(
    table: ImageTable,
    image_column: str,
    drop: frozenset[str] = frozenset(),
    *,
    only_paths: bool = False,
    progress: Progress | None = None,
    refuse: Refuse = at_once,
) -> Iterator[TableRow]:
    """Yield the rows of a table. Raises SourceError if the file cannot be read.

    Args:
        only_paths: Read only the paths of the images, and not their bytes.
        refuse: Takes each line of a text file that is not a row.
    """
    if not table.is_parquet:
        for number, values in table_files.text_rows(_text_file(table), refuse):
            image = values.pop(image_column, None)
            yield TableRow(number, image, {name: value for name, value in values.items() if name not in drop})
        return
    with _opened(table) as file:
        schema = file.schema_arrow
        selected = [name for name in schema.names if name != image_column and name not in drop]
        selected += _selected(schema, image_column, only_paths=only_paths)
        told = None if progress is None else partial(progress, table.name)
        for number, row in enumerate(table_files.parquet_rows(table.url, table.num_bytes, file, selected, told), 1):
            yield TableRow(number, row.pop(image_column, None), row)


def any_bytes(table: ImageTable, image_column: str) -> bool:
    """Return whether any row of a table has the bytes of an image; otherwise paths name the images."""
    rows = table_rows(table, image_column, frozenset(columns_of(table).kinds) - {image_column})
    return any(image_bytes(row) is not None for row in rows)


def image_bytes(row: TableRow) -> bytes | None:
    image = row.image.get("bytes") if isinstance(row.image, dict) else row.image
    return image if isinstance(image, bytes) else None


def image_path(row: TableRow) -> str | None:
    path = row.image.get("path") if isinstance(row.image, dict) else row.image
    return path if isinstance(path, str) and path else None


def row_name(table: ImageTable, number: int) -> str:
    """Return the name of a row, as messages show it."""
    return f"{shown(table.name)} {table_files.numbered(table.name, number)}"


class PackedImage(NamedTuple):
    """One row, and the place of its image among the images of its file."""

    row: TableRow
    offset: int
    """First byte among the images of its file; MISSING if the row has no image."""
    num_bytes: int
    crc32c: int
    """CRC32C of the image when it was measured or unpacked."""


def packed_images(
    table: ImageTable,
    source: SourceFile,
    *,
    image_column: str,
    drop: frozenset[str],
    unpack_to: Storage | None,
    progress: Progress | None,
) -> Iterator[PackedImage]:
    """Yield the rows of a parquet file, without the columns in `drop`. Its images are unpacked below the output after
    the last row, unless an earlier run unpacked them; without an output they are measured. Raises SourceError if the
    file cannot be read, or an image is too large, and StorageError if the images cannot be unpacked."""
    name, offset, ordinal = unpacked_name(source), 0, -1
    listed = None if unpack_to is None else unpacked_list(unpack_to, name)
    rows = partial(table_rows, table, image_column, drop, progress=progress)
    if unpack_to is not None and listed is not None:
        for ordinal, row in enumerate(rows(only_paths=True)):
            if ordinal < len(listed.sizes):
                yield _packed(row, offset, listed.sizes[ordinal], listed.crc32cs[ordinal])
                offset += max(0, listed.sizes[ordinal])
        if ordinal + 1 != len(listed.sizes):
            raise StorageError(
                f"{unpack_to.url_of(name)} has {len(listed.sizes):,} images, {table.url} has {ordinal + 1:,} rows: it "
                "was unpacked from another table; remove it, and run the same command again"
            )
        return
    with nullcontext() if unpack_to is None else unpacking(unpack_to, name) as add:
        for row in rows():
            image = image_bytes(row)
            num_bytes = NO_IMAGE if image is None else len(image)
            if num_bytes > MAX_IMAGE_BYTES:
                raise SourceError(
                    f"{table.url} row {row.number}: an image of {num_bytes:,} bytes; at most {MAX_IMAGE_BYTES:,} for "
                    "one image: remove the row"
                )
            yield _packed(row, offset, num_bytes, crc32c_of(image or b"") if add is None else add(image))
            offset += max(0, num_bytes)


def packed_source(table: ImageTable, *, is_unpacked: bool) -> SourceFile:
    return SourceFile(
        table.name, table.num_bytes, table_files.table_sha256(table.root, table.name, table.num_bytes), is_unpacked
    )


class LocatedImages:
    """The images that one table names; `named` is the URL of the tables as the user named them, for a message."""

    def __init__(self, root: Storage, table: str, named: str) -> None:
        self._root, self._folder, self._named = root, PurePosixPath(table).parent, named
        self._base: PurePosixPath | None = None
        self._folders: dict[str, tuple[Path, ...]] = {}

    @property
    def are_listed(self) -> bool:
        """Whether sizes come from a listing, as in a bucket; on disk each file is checked."""
        return not self._root.is_local

    def name_of(self, path: str) -> str:
        """Resolve a path from the table: return its name below the source. The file need not exist. Raises SourceError
        if the path leads out of the source; the error's text is a clause."""
        inside = f"{self._root.url}/"
        if path.startswith(inside):
            return self._normal(PurePosixPath(), path.removeprefix(inside))
        if path.lower().startswith(_WEB):
            raise SourceError(
                f"{shown(path)} is on the web; expected a file below {self._root.url}: a table of URLs is built by "
                f"dataprep build laion `source` {shell_words(self._named)} `name` NAME"
            )
        if path.startswith("/") or "://" in path:
            raise SourceError(
                f"{shown(path)} is not below {self._root.url}: give as `source` a folder or prefix that holds both "
                "table and images, and the table below it as `table`"
            )
        if self._base is None:
            self._base = self._found_base(path)
        return self._normal(self._base, path)

    def _found_base(self, path: str) -> PurePosixPath:
        """Find the base folder of the paths, from the first path."""
        for base in (self._folder, PurePosixPath()):
            try:
                if self._root.stat(self._normal(base, path)) is not None:
                    return base
            except (SourceError, UsageError):
                continue
        return self._folder

    def _normal(self, base: PurePosixPath, path: str) -> str:
        parts = [part for part in base.parts if part != "."]
        for part in path.split("/"):
            if part == "..":
                if not parts:
                    raise SourceError(f"{shown(path)} climbs out of {self._root.url}; expected a file below it")
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        try:
            return "/".join(name_parts("/".join(parts)))
        except SourceError as error:
            raise SourceError(f"{shown(path)}: {error}") from error

    def sizes(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the sizes of the files that exist in a bucket, by name."""
        return {info.name: info.num_bytes for info in self._root.stats(list(names)) if info is not None}

    def size_on_disk(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist. Raises SourceError for a link that leads out."""
        try:
            info = self._root.stat(name)
        except UsageError as error:
            raise SourceError(f"{shown(name)}: {error}") from error
        if info is None:
            return None
        path = Path(self._root.url_of(name))
        if path.is_symlink():
            target = path.resolve()
            if not any(target.is_relative_to(folder) for folder in self._inside(name)):
                raise SourceError(
                    f"{self._root.url}: {shown(name)}: a link that leads outside the source; expected a file"
                )
        return info.num_bytes

    def _inside(self, name: str) -> tuple[Path, ...]:
        """Return the folders that a link may lead into."""
        top, slash, _ = name.partition("/")
        if top not in self._folders:
            root = Path(self._root.url)
            self._folders[top] = (root.resolve(), (root / top).resolve()) if slash else (root.resolve(),)
        return self._folders[top]


def tables_by_split(root: Storage, only: str, notes: list[str]) -> dict[str, list[ImageTable]]:
    """Find all tables, or `only` one or a folder of them, and sort them into splits by their names; all into train if
    no name contains the word for a split. Messages for the user are appended to `notes`. Raises SourceError if there is
    no table, the tables are of different kinds, or only some of their names contain a split."""
    tables = _tables(root, only, notes)
    for table in tables:
        refuse_pointer(root, table.name, table.num_bytes)
    suffixes = sorted({PurePosixPath(table.name).suffix.lower() for table in tables})
    if len(suffixes) > 1:
        raise SourceError(
            f"{root.url}: tables of different kinds, {' and '.join(suffixes)}; expected one: name the table, or the "
            f"folder of tables, to build with `table`, such as `table` {shell_words(tables[0].name)}"
        )
    splits: dict[str, set[str]] = {}
    for name in (table.name for table in tables):
        words = _NO_LETTERS.split(PurePosixPath(name).with_suffix("").as_posix().lower())
        splits[name] = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    if not any(splits.values()):
        return {"train": tables}
    found: dict[str, list[ImageTable]] = {}
    problems = Problems(root.url)
    for table in tables:
        if len(splits[table.name]) != 1:
            which = " and ".join(sorted(splits[table.name])) or "none"
            problems.note(
                f"{table.url}: its name says {which} of the splits train, val and test, where other tables name "
                "one; rename it, or name the table, or the folder of tables, to build with `table`"
            )
            continue
        (split,) = splits[table.name]
        found.setdefault(split, []).append(table)
    problems.refuse()
    return {split: found[split] for split in SPLITS if split in found}


def other_data(root: Storage) -> str:
    """Describe other tools' data in a source without readable files, and the command that reads them."""
    names = [info.name for info in islice(root.list(), _LISTED)]
    kinds = {_suffix(name) for name in names}
    saved = [name for name in names if f"/{name}".endswith("/state.json")]
    if saved and ".arrow" in kinds:
        folder = (
            root.url if {"state.json", "dataset_dict.json"} & set(names) else root.url_of(saved[0].rpartition("/")[0])
        )
        name, quoted = folder.rstrip("/").rpartition("/")[2], json.dumps(folder, ensure_ascii=False)
        if "dataset_dict.json" in names:
            code = f'[data.to_parquet(f"{{split}}.parquet") for split, data in load_from_disk({quoted}).items()]'
            where, table = "in an empty folder with", "."
        else:
            where, table = "with", f"{name}.parquet"
            code = f"load_from_disk({quoted}).to_parquet({json.dumps(table, ensure_ascii=False)})"
        code = shell_words("python", "-c", f"from datasets import load_from_disk; {code}")
        return (
            f"what save_to_disk of datasets wrote is not read; write parquet files {where}: {code}; then: "
            f"dataprep build table reads {shell_words(table)}"
        )
    if ".mds" in kinds:
        return (
            "shards of MosaicML's streaming (.mds) are not read; write their rows as parquet for dataprep build table"
        )
    if PARQUET in kinds:
        return "dataprep build table reads tables"
    return ""


def stems(tables: Sequence[ImageTable]) -> dict[str, str]:
    """Return a short name for each table, by its name: without suffix and without the folders that hold all tables."""
    paths = {table.name: PurePosixPath(table.name).with_suffix("") for table in tables}
    folders = [path.parts[:-1] for path in paths.values()]
    depth = 0
    while depth < min(map(len, folders)) and len({parts[depth] for parts in folders}) == 1:
        depth += 1
    return {name: "/".join(path.parts[depth:]) for name, path in paths.items()}


def _kind_of(arrow: pa.DataType) -> Kind:
    types = pa.types
    if types.is_dictionary(arrow):
        arrow = arrow.value_type
    if types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow):
        return "path"
    if _is_binary(arrow):
        return "bytes"
    if types.is_struct(arrow):
        inner = {arrow.field(number).name: arrow.field(number).type for number in range(arrow.num_fields)}
        if "bytes" in inner and inner.keys() <= {"bytes", "path"} and _is_binary(inner["bytes"]):
            return "struct"
    return "other"


def _is_binary(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_binary_view(arrow))


def _hub_features(table: ImageTable, schema: pa.Schema) -> dict[str, Any]:
    """Return the description of columns that Hugging Face's libraries stored; empty if there is none."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        if len(text) > MAX_HUB_METADATA_BYTES:
            raise ValueError(f"{len(text):,} bytes")
        features = json.loads(text).get("info", {}).get("features", {})
        return features if isinstance(features, dict) else {}
    except (ValueError, RecursionError, AttributeError) as error:
        raise SourceError(
            f"{table.url}: the entry 'huggingface' of its schema cannot be read ({one_line(error)}); write the file "
            "again with datasets or pyarrow"
        ) from error


def _class_names(table: ImageTable, column: str, feature: Any) -> tuple[str, ...]:
    """Return the class names of a column of type ClassLabel; empty for other columns."""
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return ()
    names = feature.get("names")
    if not isinstance(names, list):  # a ClassLabel may have only a number of classes
        return ()
    if len(names) > MAX_CLASSES or not all(isinstance(name, str) for name in names):
        raise SourceError(
            f"{table.url}: column {quoted(column)} has {len(names):,} classes, expected at most {MAX_CLASSES:,} names"
        )
    return tuple(names)


def _selected(schema: pa.Schema, image_column: str, *, only_paths: bool) -> list[str]:
    """Return the image column, or the part of it without bytes."""
    kind = _kind_of(schema.field(image_column).type)
    if not only_paths or kind == "path":
        return [image_column]
    if kind == "bytes":
        return []
    arrow = schema.field(image_column).type
    return [f"{image_column}.path"] if arrow.get_field_index("path") >= 0 else []


@contextmanager
def _opened(table: ImageTable) -> Iterator[ParquetFile]:
    with table_files.parquet_errors(table.url):
        buffer_bytes = table_files.BUFFER_BYTES
        with open_parquet(table.root, table.name, window_bytes=buffer_bytes, buffer_bytes=buffer_bytes) as file:
            if table.root.is_local or table_files.largest_group(file.metadata) > _PREFETCH_BYTES:
                yield file
                return
        with open_parquet(table.root, table.name) as file:
            yield file


def _text_file(table: ImageTable) -> table_files.MetadataFile:
    return table_files.MetadataFile((), table.url, table.num_bytes, partial(table.root.open, table.name))


def _packed(row: TableRow, offset: int, num_bytes: int, crc32c: int) -> PackedImage:
    if num_bytes == NO_IMAGE:
        return PackedImage(row, MISSING, 0, crc32c)
    return PackedImage(row, offset, num_bytes, crc32c)


def _tables(root: Storage, only: str, notes: list[str]) -> list[ImageTable]:
    info = root.stat(only) if only else None
    if info is not None:
        if not table_files.is_table(only):
            raise UsageError(
                f"{root.url_of(only)} is not a table by its name; expected one of {', '.join(table_files.TABLES)}"
            )
        return [ImageTable(root, only, info.num_bytes)]
    odd: Counter[str] = Counter()

    def is_odd(name: str) -> bool:
        odd["hidden or of the system" if is_hidden((name,)) else _suffix(name)] += not table_files.is_table(name)
        return not table_files.is_table(name)

    files = folder_files(root, only, depth=MAX_DEPTH) if only else tree_files(root, is_odd)
    prefix = (only,) if only else ()
    tables = [
        ImageTable(root, "/".join((*prefix, *file.parts)), file.num_bytes)
        for file in files
        if table_files.is_table(file.parts[-1])
    ]
    others = odd + Counter(_suffix(file.parts[-1]) for file in files if not table_files.is_table(file.parts[-1]))
    if not tables:
        if other := "" if only else other_data(root):
            raise SourceError(f"{root.url}: no table: {other}")
        where, known = root.url_of(only) if only else root.url, _counts(others.most_common(5))
        raise SourceError(
            f"{where}: no table (found {known or 'no file'}); expected one of {', '.join(table_files.TABLES)}: check "
            "`source`"
            + (f", or build the pictures with: dataprep build folder `source` {shell_words(root.url)}" if known else "")
        )
    if passed := _counts((suffix, others[suffix]) for suffix in sorted(others) if suffix[1:] not in IMAGE_SUFFIXES):
        notes.append(f"skipped, because they are not tables: {passed}")
    return tables


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower() or "without suffix"


def _counts(found: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count:,} {suffix}" for suffix, count in found)
