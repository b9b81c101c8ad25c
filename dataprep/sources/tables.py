"""Tables in parquet, CSV, TSV or JSON lines: read in parts of many rows, or row by row as metadata of a user's images.

In parts, for tables of any length: a file is divided into parts with the same number of rows; the last one is shorter.
The footer of a parquet file has the number of rows, and a part is read from the row groups that hold it. A text file is
streamed once, to count the rows and note the byte where each part begins. At most one part is in memory.

Row by row: `metadata.csv`, `.jsonl` or `.parquet`, as Hugging Face's ImageFolder reads them, and a user's own tables.
Each row describes one image, whose path is in the column `file_name`. Rows are read once, in order, and the size of
values is checked before they are kept. A file is hostile input: no field, line or row may be larger than a sample's
annotations, and no name may lead out of the folder.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

from dataprep.arrays import NDArray, np, pa, pq
from dataprep.dataset.documents import JsonObject
from dataprep.dataset.features import MAX_ANNOTATION_BYTES, MAX_FEATURES, Values
from dataprep.errors import SourceError, UsageError
from dataprep.host.heartbeat import beat
from dataprep.messages import one_line, quoted, shown
from dataprep.sources.archives import Progress, refuse_pointer
from dataprep.sources.keys import Refuse, at_once, name_parts
from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.checksums import digests_of
from dataprep.storage.parquet import ParquetFile, open_parquet

Kind = Literal["int", "float", "string"]
Value: TypeAlias = str | int | float | None
"""A value of a table; None if it is missing."""
TABLES = (".parquet", ".csv", ".tsv", ".jsonl")
MAX_PART_BYTES = 2**30
"""Maximum size of one part of a text file, which is held in memory. 10,000 rows of LAION have 3 MB."""
MAX_HEADER_BYTES = 2**20
MAX_FOOTER_BYTES = 2**28
"""Maximum size of the footer of a parquet file."""
FOOTER_TAIL_BYTES = 8
"""Size of the end of a parquet file: the footer's length and the magic bytes."""
# Bytes of a chunk; the position of each line end and quote in it takes 8 bytes.
_SCAN_BYTES = 2**20
# One request reads this much of a parquet column in a bucket.
TABLE_WINDOW_BYTES = 2**22
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
FILE_NAMES = frozenset({"metadata.csv", "metadata.jsonl", "metadata.parquet"})
FILE_COLUMN = "file_name"
MAX_LINE_BYTES = 4 * MAX_ANNOTATION_BYTES
"""Maximum size of a line of text: JSON may need several bytes for each stored byte."""
_ROW_BYTES = 2**26
"""Maximum bytes of a batch of rows if each row is as large as its row group: a single value can be that large."""
_LEAST_ROWS, _LEAST_BYTES = 8, 2**30
"""Minimum number of rows of a batch, unless they could take more bytes than this."""
_MOST_ROWS = 1024
BUFFER_BYTES = 2**22
"""Bytes of a column's pages that are read at a time."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_UNPARQUET = "write it again with pyarrow or pandas"


class Column(NamedTuple):
    name: str
    kind: Kind
    """Type of the values; columns of text files are strings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFile:
    """One file of a table, as measured for a plan."""

    name: str
    """Relative to the source root."""
    num_bytes: int
    rows: int
    part_rows: int
    columns: tuple[Column, ...]
    sha256: str
    """Hexadecimal digest of a parquet file's footer, or of a text file's bytes."""
    part_starts: tuple[int, ...] = ()
    """Byte at which each part of a text file begins, and the file's size; empty for parquet."""

    @property
    def parts(self) -> int:
        return -(-self.rows // self.part_rows)

    def rows_of(self, part: int) -> int:
        return min(self.part_rows, self.rows - part * self.part_rows)


def is_table(name: str) -> bool:
    """Return whether a file is a table by its suffix."""
    return _suffix(name) in TABLES


def measure_table(storage: Storage, name: str, part_rows: int, progress: Progress | None = None) -> TableFile:
    """Measure a file for a plan, in parts of `part_rows` rows. Raises SourceError if the file is absent, damaged or not
    UTF-8 (text files), or has no columns or the same one twice, and UsageError if it is not a table by its suffix."""
    if not is_table(name):
        raise UsageError(
            f"{storage.url_of(name)} is not a table by its name; expected one of {', '.join(TABLES)}, uncompressed "
            "(parquet is compressed inside)"
        )
    info = storage.stat(name)
    if info is None:
        raise SourceError(f"{storage.url_of(name)} does not exist; check `source`")
    refuse_pointer(storage, name, info.num_bytes)
    table = (
        _measure_parquet(storage, info, part_rows)
        if _suffix(name) == ".parquet"
        else _measure_text(storage, name, part_rows, progress)
    )
    names = [column.name for column in table.columns]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice or not names:
        what = f"the column {twice[0]!r} twice" if twice else "no columns"
        raise SourceError(f"{storage.url_of(name)} has {what}; expected a header that names every column once")
    return table


def read_part(storage: Storage, table: TableFile, part: int) -> list[tuple[Any, ...]]:
    """Read the rows of one part in order: for each column a value, which is str, int, float, or None if absent. Raises
    SourceError if the file is not the one that was measured, or a row cannot be read."""
    info = storage.stat(table.name)
    if info is None or info.num_bytes != table.num_bytes:
        found = "gone" if info is None else f"{info.num_bytes:,} bytes long"
        raise SourceError(
            f"{storage.url_of(table.name)} is {found}, it had {table.num_bytes:,} bytes when the build was planned; "
            "put it back and run the same command again"
        )
    read = {".parquet": _read_parquet, ".jsonl": _read_jsonl}.get(_suffix(table.name), _read_csv)
    rows = read(storage, table, part)
    expected = table.rows_of(part)
    if len(rows) != expected:
        raise SourceError(
            f"{storage.url_of(table.name)}: part {part} has {len(rows):,} rows, expected {expected:,}; it has "
            "unpaired quotes (RFC 4180), or it has changed: convert it to parquet"
        )
    return rows


def table_sha256(storage: Storage, name: str, num_bytes: int) -> str:
    """Return the hexadecimal digest of a table, as in `TableFile.sha256`. Raises SourceError if the file is absent, or
    its end is not a parquet file's."""
    try:
        if _suffix(name) == ".parquet":
            return hashlib.sha256(_footer(storage, name, num_bytes)).hexdigest()
        with storage.open(name) as stream:
            return digests_of(stream).sha256
    except FileNotFoundError as error:
        raise SourceError(f"{storage.url_of(name)} does not exist; check `source`") from error


@contextmanager
def parquet_errors(url: str, advice: str = "download it again") -> Iterator[None]:
    """Turn the errors of a parquet file that is missing or damaged into SourceError."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{url} does not exist; check `source`") from error
    # Damaged thrift, pages, offsets and dictionaries raise any of these.
    except (pa.ArrowException, ValueError, OSError, IndexError, KeyError, MemoryError, OverflowError) as error:
        raise SourceError(f"{url}: not a readable parquet file ({one_line(error)}); {advice}") from error


def largest_group(metadata: Any) -> int:
    """Return the uncompressed size of a parquet file's largest row group, as the file claims it.

    Only the sizes of row groups are read: if the metadata of a column are damaged, pyarrow ends the process.
    """
    groups = (metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(groups, default=0)


def parquet_rows(
    url: str,
    num_bytes: int,
    file: ParquetFile,
    columns: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Values]:
    """Yield the rows of a parquet file, a few at a time; `progress` gets the bytes read and the total bytes. Raises
    SourceError if a small file claims to have many rows."""
    metadata, done = file.metadata, 0
    if metadata.num_rows > num_bytes:
        raise SourceError(
            f"{url}: {metadata.num_rows:,} rows in a file of {num_bytes:,} bytes; expected a byte for each row at "
            f"least: {_UNPARQUET}"
        )
    if columns is not None and not columns:
        yield from ({} for _ in range(metadata.num_rows))
        return
    largest = max(1, largest_group(metadata))
    rows = max(1, min(_LEAST_ROWS, _LEAST_BYTES // largest), min(_MOST_ROWS, _ROW_BYTES // largest))
    for group in range(metadata.num_row_groups):  # in a bucket, one group is in memory at a time
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
            batch.validate(full=True)
            beat()
            yield from batch.to_pylist()
            done += batch.num_rows
        if progress is not None:
            progress(num_bytes * done // max(1, metadata.num_rows), num_bytes)


class MetadataFile(NamedTuple):
    folder: tuple[str, ...]
    """Path of the base folder of its file names."""
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
    """Whether all values are texts, as in a CSV file; their types are found over all rows."""


def rows_of(file: MetadataFile, refuse: Refuse = at_once) -> Iterator[Row]:
    """Yield the rows of a file of metadata. Raises SourceError if the file cannot be read; `refuse` gets each row that
    cannot be, or whose `file_name` leads out of the folder, and at the end one problem for all rows without it."""
    if _suffix(file.url) == ".parquet":
        with file.open() as stream:
            yield from _named_rows(file, _metadata_parquet_rows(file, stream), refuse, is_text=False)
    else:
        yield from _named_rows(file, text_rows(file, refuse), refuse, is_text=holds_texts(file.url))


def holds_texts(url: str) -> bool:
    """Return whether a table file stores every value as text, as CSV and TSV do, judging by its suffix."""
    return _suffix(url) in _DELIMITERS


def numbered(url: str, number: int) -> str:
    """Return a row's name for messages: `line 3` of a text file (the header is line 1), or `row 3` of parquet."""
    return f"{'row' if _suffix(url) == '.parquet' else 'line'} {number}"


def text_rows(file: MetadataFile, refuse: Refuse = at_once) -> Iterator[tuple[int, Values]]:
    """Yield the rows of a CSV, TSV or JSON lines file, each with the number of its line. Raises SourceError if the file
    cannot be read, or a line is too large; `refuse` gets each row with another number of fields than the header, and
    each line that is not a JSON object."""
    read = _csv_rows if holds_texts(file.url) else _jsonl_rows
    with file.open() as stream:
        yield from read(file, stream, refuse)


def _footer(storage: Storage, name: str, num_bytes: int) -> bytes:
    tail = storage.read_range(name, max(0, num_bytes - FOOTER_TAIL_BYTES), min(num_bytes, FOOTER_TAIL_BYTES))
    footer_bytes = int.from_bytes(tail[:4], "little") + FOOTER_TAIL_BYTES
    if tail[4:] != b"PAR1" or footer_bytes > min(num_bytes, MAX_FOOTER_BYTES):
        raise SourceError(
            f"{storage.url_of(name)} is not a readable parquet file (no footer at its end); download it again"
        )
    return storage.read_range(name, num_bytes - footer_bytes, footer_bytes)


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2].lower()


def _measure_parquet(storage: Storage, info: ObjectInfo, part_rows: int) -> TableFile:
    with _parquet(storage, info.name) as file:
        return TableFile(
            name=info.name,
            num_bytes=info.num_bytes,
            rows=file.metadata.num_rows,
            part_rows=part_rows,
            columns=tuple(Column(field.name, _kind_of(field.type)) for field in file.schema_arrow),
            sha256=table_sha256(storage, info.name, info.num_bytes),
        )


def _read_parquet(storage: Storage, table: TableFile, part: int) -> list[tuple[Any, ...]]:
    """Read a part from the row groups that hold it; rows of these groups before the part are decoded and dropped."""
    skip, wanted = part * table.part_rows, table.rows_of(part)
    rows: list[tuple[Any, ...]] = []
    with _parquet(storage, table.name) as file:
        counts = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        first = 0
        while skip >= counts[first]:
            skip -= counts[first]
            first += 1
        last = first
        while sum(counts[first : last + 1]) < skip + wanted:
            last += 1
        names = [column.name for column in table.columns]
        groups = list(range(first, last + 1))
        for batch in file.iter_batches(table.part_rows, row_groups=groups, columns=names):
            taken = batch.slice(skip, wanted - len(rows))
            skip = max(0, skip - batch.num_rows)
            rows += _tuples(taken, table.columns)
            if len(rows) == wanted:
                break
    return rows


@contextmanager
def _parquet(storage: Storage, name: str) -> Iterator[ParquetFile]:
    buffer_bytes = _SCAN_BYTES if storage.is_local else TABLE_WINDOW_BYTES
    with (
        parquet_errors(storage.url_of(name)),
        open_parquet(storage, name, window_bytes=FOOTER_TAIL_BYTES * 2**13, buffer_bytes=buffer_bytes) as file,
    ):
        yield file


def _kind_of(arrow: pa.DataType) -> Kind:
    if pa.types.is_boolean(arrow) or (pa.types.is_integer(arrow) and not pa.types.is_uint64(arrow)):
        return "int"  # fits in a signed integer of 64 bits, as records need
    return "float" if pa.types.is_floating(arrow) else "string"


def _tuples(batch: pa.RecordBatch, columns: tuple[Column, ...]) -> list[tuple[Any, ...]]:
    values = [
        [_CAST[column.kind](value) for value in array.to_pylist()]
        for column, array in zip(columns, batch.columns, strict=True)
    ]
    return list(zip(*values, strict=True))


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _real(value: Any) -> float | None:
    """Return a finite number; None for infinities and for NaN, which pandas writes for a missing value."""
    return float(value) if value is not None and math.isfinite(value) else None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # JSON can contain half of a surrogate pair
    return json.dumps(value, default=str, ensure_ascii=False)


_CAST: dict[Kind, Callable[[Any], Any]] = {"int": _integer, "float": _real, "string": _text}


def _measure_text(storage: Storage, name: str, part_rows: int, progress: Progress | None) -> TableFile:
    quoted = holds_texts(name)
    header = int(quoted)
    scan = _LineScan(part_rows, header_rows=header, quoted=quoted)
    digest, utf8 = hashlib.sha256(), _Utf8Check(storage.url_of(name))
    head = b""
    with storage.open(name) as stream:
        while chunk := stream.read(_SCAN_BYTES):
            head = head or chunk
            digest.update(chunk)
            utf8.add(chunk)
            scan.add(chunk)
            if progress is not None:
                progress(name, scan.num_bytes, scan.num_bytes)
    utf8.add(b"", is_last=True)
    scan.close()
    if scan.in_quotes:
        raise SourceError(
            f"{storage.url_of(name)} ends inside a quoted field; download it again or convert it to parquet"
        )
    with _parsed(storage, name):
        columns = _csv_columns(head, name) if quoted else _jsonl_columns(head)
    return TableFile(
        name=name,
        num_bytes=scan.num_bytes,
        rows=scan.rows - header,
        part_rows=part_rows,
        columns=columns,
        sha256=digest.hexdigest(),
        part_starts=(*scan.starts, scan.num_bytes),
    )


class _Utf8Check:
    """Raises SourceError for the first line of a stream of bytes that is not UTF-8."""

    def __init__(self, url: str) -> None:
        self._url, self._lines, self._decoder = url, 0, codecs.getincrementaldecoder("utf-8")()

    def add(self, chunk: bytes, *, is_last: bool = False) -> None:
        try:
            self._decoder.decode(chunk, is_last)
        except UnicodeDecodeError as error:
            number = self._lines + error.object.count(b"\n", 0, error.start) + 1
            raise SourceError(f"{self._url} line {number:,}: not UTF-8; save the file as UTF-8") from error
        self._lines += chunk.count(b"\n")


class _LineScan:
    """Finds rows in a stream of bytes: lines that are not blank. A line end inside quotes does not end a row. A quote
    inside a quoted field is doubled, so a line end ends a row if the number of quotes before it is even.
    """

    def __init__(self, part_rows: int, *, header_rows: int, quoted: bool) -> None:
        self._part_rows, self._header_rows, self._quoted = part_rows, header_rows, quoted
        self._line_start, self._last_byte = 0, _NEWLINE
        self.num_bytes, self.rows, self.in_quotes = 0, 0, False
        self.starts: list[int] = []

    def add(self, chunk: bytes) -> None:
        data = np.frombuffer(chunk, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if self._quoted:
            quotes = np.flatnonzero(data == _QUOTE)
            ends = ends[(np.searchsorted(quotes, ends) + self.in_quotes) % 2 == 0]
            self.in_quotes = bool((len(quotes) + self.in_quotes) % 2)
        if len(ends):
            before = data[ends - 1]
            if ends[0] == 0:
                before[0] = self._last_byte
            self._take(ends + self.num_bytes, before)
        self._last_byte = int(data[-1])
        self.num_bytes += len(chunk)

    def close(self) -> None:
        """Count the last row, which may have no line end."""
        if self.num_bytes > self._line_start:
            self._take(np.array([self.num_bytes]), np.array([self._last_byte]))

    def _take(self, ends: NDArray[np.int64], before: NDArray[np.uint8]) -> None:
        """Note the lines that end at these bytes, each with the byte before its end."""
        starts = np.concatenate(([self._line_start], ends[:-1] + 1))
        lengths = ends - starts
        starts = starts[(lengths > 1) | ((lengths == 1) & (before != _RETURN))]
        numbers = np.arange(self.rows, self.rows + len(starts)) - self._header_rows
        self.starts += starts[(numbers >= 0) & (numbers % self._part_rows == 0)].tolist()
        self.rows += len(starts)
        self._line_start = int(ends[-1]) + 1


@contextmanager
def _parsed(storage: Storage, name: str) -> Iterator[None]:
    try:
        yield
    except (csv.Error, ValueError, RecursionError) as error:
        raise SourceError(f"{storage.url_of(name)}: {one_line(error)}; correct the row") from error


def _csv_columns(head: bytes, name: str) -> tuple[Column, ...]:
    lines = io.StringIO(head[:MAX_HEADER_BYTES].decode("utf-8-sig", "replace"), newline="")
    header = next((row for row in csv.reader(lines, delimiter=_DELIMITERS[_suffix(name)], strict=False) if row), [])
    return tuple(Column(column.strip(), "string") for column in header)


def _jsonl_columns(head: bytes) -> tuple[Column, ...]:
    """Return the first row's names as columns; other rows may lack some of them, but may have no others."""
    first = next((line for line in head.decode("utf-8-sig", "replace").split("\n") if line.strip("\r")), "{}")
    return tuple(Column(str(name), "string") for name in _object(first, 0))


def _read_csv(storage: Storage, table: TableFile, part: int) -> list[tuple[Any, ...]]:
    width = len(table.columns)
    rows: list[tuple[Any, ...]] = []
    with _parsed(storage, table.name):
        for fields in csv.reader(
            _part_text(storage, table, part), delimiter=_DELIMITERS[_suffix(table.name)], strict=True
        ):
            if not fields:
                continue
            if len(fields) != width:
                number = part * table.part_rows + len(rows)
                raise ValueError(f"row {number:,} has {len(fields)} fields, the header {width}")
            rows.append(tuple(field or None for field in fields))
    return rows


def _read_jsonl(storage: Storage, table: TableFile, part: int) -> list[tuple[Any, ...]]:
    names = [column.name for column in table.columns]
    rows: list[tuple[Any, ...]] = []
    with _parsed(storage, table.name):
        for line in _part_text(storage, table, part):
            if not line.strip("\r\n"):
                continue
            number = part * table.part_rows + len(rows)
            values = _object(line, number)
            if unknown := sorted(values.keys() - set(names)):
                raise ValueError(f"row {number:,} has a field {unknown[0]!r} that the first row lacks")
            rows.append(tuple(_text(values.get(name)) for name in names))
    return rows


def _object(line: str, number: int) -> JsonObject:
    values = json.loads(line)
    if not isinstance(values, dict):
        raise ValueError(f"row {number:,} is not a JSON object")
    return values


def _part_text(storage: Storage, table: TableFile, part: int) -> io.StringIO:
    start, stop = islice(table.part_starts, part, part + 2)
    if stop - start > MAX_PART_BYTES:
        raise SourceError(
            f"{storage.url_of(table.name)}: {stop - start:,} bytes from byte {start:,} on hold {table.rows_of(part):,} "
            f"rows; at most {MAX_PART_BYTES:,}: ask for fewer rows a shard"
        )
    text = storage.read_range(table.name, start, stop - start).decode("utf-8-sig", "replace")
    return io.StringIO(text, newline="" if not table.name.lower().endswith(".jsonl") else "\n")


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
    records = _csv_records(file, stream)
    _, header = next(records, (0, []))
    names = [name.strip() for name in header]
    is_spaced = names != header  # "path, label": values have blanks, too
    _refuse_columns(file.url, names)
    for number, fields in records:
        if fields and len(fields) != len(header):
            refuse(
                SourceError(
                    f"{file.url} line {number}: {len(fields):,} fields, the header names {len(header):,}; put fields "
                    "with commas into double quotes"
                )
            )
        elif fields:
            yield number, dict(zip(names, map(str.strip, fields) if is_spaced else fields, strict=True))


def _csv_records(file: MetadataFile, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each record, with the number of its last line; the error of a damaged one names its first."""
    # strict: otherwise an unclosed quote would take the rows up to the next quote, or to the end, into its field.
    reader, number = csv.reader(_text_lines(file, stream), delimiter=_DELIMITERS[_suffix(file.url)], strict=True), 0
    try:
        for fields in reader:
            number = reader.line_num
            yield number, fields
    except csv.Error as error:  # a field over 131,072 characters, a quote that is not closed
        raise SourceError(
            f"{file.url} line {number + 1}: {one_line(error)}; expected a CSV file with a header, in which a field "
            'that begins with a quote ends with one, and quotes inside are doubled: "5"" disc"'
        ) from error


def _jsonl_rows(file: MetadataFile, stream: BinaryIO, refuse: Refuse) -> Iterator[tuple[int, Values]]:
    for number, line in enumerate(_text_lines(file, stream), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line, object_pairs_hook=_json_object)
        except SourceError as error:
            refuse(SourceError(f"{file.url} line {number}: {error}"))
            continue
        except (ValueError, RecursionError) as error:
            refuse(SourceError(f"{file.url} line {number}: not JSON ({one_line(error)}); expected an object"))
            continue
        if not isinstance(values, dict):
            refuse(SourceError(f"{file.url} line {number}: {type(values).__name__}, expected an object: {{...}}"))
            continue
        _refuse_columns(file.url, list(values))
        yield number, values


def _json_object(pairs: list[tuple[str, Any]]) -> Values:
    """Return the fields of a JSON object. Raises SourceError if one occurs twice; the message is a clause."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise SourceError(f"the field {quoted(twice)} occurs twice; remove one")
    return values


def _metadata_parquet_rows(file: MetadataFile, stream: BinaryIO) -> Iterator[tuple[int, Values]]:
    with parquet_errors(file.url, _UNPARQUET):
        table = pq.ParquetFile(pa.PythonFile(stream, mode="r"), buffer_size=BUFFER_BYTES, pre_buffer=False)
        _refuse_columns(file.url, list(table.schema_arrow.names))
        yield from enumerate(parquet_rows(file.url, file.num_bytes, ParquetFile(table)), 1)


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


def _refuse_columns(url: str, names: list[str]) -> None:
    if len(names) > MAX_FEATURES:
        raise SourceError(f"{url}: {len(names):,} columns, expected at most {MAX_FEATURES:,}")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SourceError(f"{url}: the column {quoted(twice[0])} occurs twice; rename one")
