"""Metadata of a user's images: `metadata.csv`, `.jsonl` or `.parquet`, as Hugging Face's ImageFolder reads them.

Each row describes one image, whose path is in the column `file_name`. Rows are read once, in order, and the size of
values is checked before they are kept. A file is hostile input: no field, line or row may be larger than a sample's
annotations, and no name may lead out of the folder.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from dataprep.dataset.features import MAX_ANNOTATION_BYTES, MAX_FEATURES, Values
from dataprep.errors import SourceError
from dataprep.messages import one_line, quoted, shown
from dataprep.sources.keys import Refuse, at_once, name_parts

FILE_NAMES = frozenset({"metadata.csv", "metadata.jsonl", "metadata.parquet"})
FILE_COLUMN = "file_name"
MAX_LINE_BYTES = 4 * MAX_ANNOTATION_BYTES
"""Maximum size of a line of text: JSON may need several bytes for one that is kept."""
MAX_GROUP_BYTES = 2**29
"""Maximum size of a row group of a parquet file, uncompressed."""
_BATCH_BYTES = 2**26
"""Maximum memory of a batch of rows, if each row is as large as its row group: a single value can be so large."""
_BATCH_ROWS = 1024
_LEAST_ROWS = 8
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_UNPARQUET = "write it again with pyarrow or pandas"


class MetadataFile(NamedTuple):
    """One file of metadata."""

    folder: tuple[str, ...]
    """Path of the folder to which its file names are relative."""
    url: str
    """URL or path, for messages."""
    num_bytes: int
    open: Callable[[], BinaryIO]
    """Opens the file as a seekable stream."""


class Row(NamedTuple):
    """One row of a metadata file."""

    parts: tuple[str, ...]
    """Path of the image, below the root."""
    where: str
    """File and row, for messages."""
    values: Values
    is_text: bool
    """Whether all values are texts, as in a CSV file; only all rows together show their types."""


def rows_of(file: MetadataFile, refuse: Refuse = at_once) -> Iterator[Row]:
    """Yield the rows of a file of metadata.

    Args:
        file: The file.
        refuse: Takes each row that cannot be read, or whose `file_name` leads out of the folder, and at the end one
            problem for all rows without `file_name`.

    Raises:
        SourceError: The file cannot be read.
    """
    if PurePosixPath(file.url).suffix.lower() == ".parquet":
        with file.open() as stream:
            yield from _named_rows(file, _parquet_rows(file, stream), refuse, is_text=False)
    else:
        yield from _named_rows(file, text_rows(file, refuse), refuse, is_text=holds_texts(file.url))


def holds_texts(url: str) -> bool:
    """Return whether all values of a file are texts, by its suffix."""
    return PurePosixPath(url).suffix.lower() in _DELIMITERS


def numbered(url: str, number: int) -> str:
    """Return the name of a row in messages: `line 3` of a text, in which a header is line 1, or `row 3` of parquet."""
    return f"{'row' if PurePosixPath(url).suffix.lower() == '.parquet' else 'line'} {number}"


def text_rows(file: MetadataFile, refuse: Refuse = at_once) -> Iterator[tuple[int, Values]]:
    """Yield the rows of a CSV, TSV or JSON lines file, each with the number of its line.

    Args:
        file: The file.
        refuse: Takes each row with another number of fields than the header, or a line that is no JSON object.

    Raises:
        SourceError: The file cannot be read, or a line is too large.
    """
    read = _csv_rows if holds_texts(file.url) else _jsonl_rows
    with file.open() as stream:
        yield from read(file, stream, refuse)


def _named_rows(
    file: MetadataFile, rows: Iterator[tuple[int, Values]], refuse: Refuse, *, is_text: bool
) -> Iterator[Row]:
    nameless, first = 0, ""
    for number, values in rows:
        row = numbered(file.url, number)
        where = f"{file.url} {row}"
        name = values.pop(FILE_COLUMN, None)
        if not isinstance(name, str) or not name:
            nameless += 1
            if nameless == 1:
                columns = ", ".join(sorted(map(str, values)))[:200]
                first = f"{row} has no {FILE_COLUMN}, the path of the image relative to the folder of this file"
                first += f"; it has {columns or 'nothing'}: rename the column with the path"
            continue
        try:
            parts = name_parts(name)
        except SourceError as error:
            refuse(SourceError(f"{where}: {FILE_COLUMN} {shown(name)}: {error}"))
            continue
        yield Row((*file.folder, *parts), where, values, is_text)
    if nameless:
        refuse(SourceError(f"{file.url}: {f'{nameless:,} rows like this: ' if nameless > 1 else ''}{first}"))


def _csv_rows(file: MetadataFile, stream: BinaryIO, refuse: Refuse) -> Iterator[tuple[int, Values]]:
    delimiter = _DELIMITERS[PurePosixPath(file.url).suffix.lower()]
    # strict: else a quote that is not closed takes the rows up to the next one, or to the end, into its field.
    reader = csv.reader(_text_lines(file, stream), delimiter=delimiter, strict=True)
    with _parsed(file, 1):
        header = next(reader, [])
    names = [name.strip() for name in header]
    is_spaced = names != header  # "path, label": values have blanks, too
    _refuse_columns(file, names)
    while True:
        with _parsed(file, reader.line_num + 1):
            fields = next(reader, None)
        if fields is None:
            return
        if not fields:
            continue
        if len(fields) != len(header):
            refuse(
                SourceError(
                    f"{file.url} line {reader.line_num}: {len(fields):,} fields, the header names {len(header):,}; put "
                    "fields with commas into double quotes"
                )
            )
            continue
        yield reader.line_num, dict(zip(names, map(str.strip, fields) if is_spaced else fields, strict=True))


def _jsonl_rows(file: MetadataFile, stream: BinaryIO, refuse: Refuse) -> Iterator[tuple[int, Values]]:
    for number, line in enumerate(_text_lines(file, stream), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line, object_pairs_hook=_object)
        except SourceError as error:
            refuse(SourceError(f"{file.url} line {number}: {error}"))
            continue
        except (ValueError, RecursionError) as error:
            refuse(SourceError(f"{file.url} line {number}: not JSON ({one_line(error)}); expected an object"))
            continue
        if not isinstance(values, dict):
            refuse(SourceError(f"{file.url} line {number}: {type(values).__name__}, expected an object: {{...}}"))
            continue
        _refuse_columns(file, list(values))
        yield number, values


def _object(pairs: list[tuple[str, Any]]) -> Values:
    """Return the fields of a JSON object. Raises SourceError if one occurs twice; the message is a clause."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise SourceError(f"the field {quoted(twice)} occurs twice; remove one")
    return values


def _parquet_rows(file: MetadataFile, stream: BinaryIO) -> Iterator[tuple[int, Values]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.PythonFile(stream, mode="r"), pre_buffer=False)
        rows = _refuse_bomb(file, table.metadata)
        _refuse_columns(file, list(table.schema_arrow.names))
        number = 0
        for batch in table.iter_batches(rows, use_threads=False):
            batch.validate(full=True)
            for values in batch.to_pylist():
                number += 1
                yield number, values
    except SourceError:
        raise
    # Damaged thrift, pages, offsets and dictionaries raise any of these.
    except (pa.ArrowException, ValueError, OSError, KeyError, MemoryError, OverflowError) as error:
        raise SourceError(f"{file.url}: no readable parquet file ({one_line(error)}); {_UNPARQUET}") from error


def _refuse_bomb(file: MetadataFile, metadata: Any) -> int:
    """Return how many rows may be read at once. Raises SourceError for a small file that claims to be large.

    Only the sizes of row groups are read: if the metadata of a column are damaged, pyarrow ends the process.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size for group in groups), default=0)
    if largest > MAX_GROUP_BYTES or metadata.num_rows > file.num_bytes:
        raise SourceError(
            f"{file.url}: {metadata.num_rows:,} rows, a row group of {largest:,} bytes, in a file of "
            f"{file.num_bytes:,}; expected row groups of at most {MAX_GROUP_BYTES:,}: write it again with smaller ones"
        )
    return max(_LEAST_ROWS, min(_BATCH_ROWS, _BATCH_BYTES // max(1, largest)))


def _text_lines(file: MetadataFile, stream: BinaryIO) -> Iterator[str]:
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise SourceError(f"{file.url} line {number}: over {MAX_LINE_BYTES:,} bytes; expected the row of an image")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"{file.url} line {number}: not UTF-8; save the file as UTF-8") from error


@contextmanager
def _parsed(file: MetadataFile, number: int) -> Iterator[None]:
    """Turn errors of the row that begins at a line into one that names it."""
    try:
        yield
    except csv.Error as error:  # a field over 131,072 characters, a quote that is not closed
        raise SourceError(
            f"{file.url} line {number}: {one_line(error)}; expected a CSV file with a header, in which a field that "
            'begins with a quote ends with one, and quotes inside are doubled: "5"" disc"'
        ) from error


def _refuse_columns(file: MetadataFile, names: list[str]) -> None:
    if len(names) > MAX_FEATURES:
        raise SourceError(f"{file.url}: {len(names):,} columns, expected at most {MAX_FEATURES:,}")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SourceError(f"{file.url}: the column {quoted(twice[0])} occurs twice; rename one")
