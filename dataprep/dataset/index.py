"""The index of a split: its columns, its files, a reader and a writer; and the events in the same folder.

    index/train.parquet                                          up to MAX_ROWS_IN_ONE rows
    index/train-00000-of-00395.parquet  …                        more: about PART_ROWS rows in each part
    index/train-events.parquet                                   every repair and rejection, in the order of the shards
    index/train.r3.parquet, train-00007.r3-of-00395.parquet  …   written by revision 3, because samples were removed

A row group has the rows of one shard, and every part the row groups of consecutive shards. The number of parts depends
on the shards' samples alone. Readers open only the parts and row groups that they need.

The bytes of an index are not trusted before their digest is compared. Every error of pyarrow about a damaged file
becomes a FormatError that names the file.
"""

from __future__ import annotations

import hashlib
import re
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Self, cast

from dataprep.arrays import NDArray, np, pa, pq
from dataprep.dataset.columns import from_numpy, numbers, table_of
from dataprep.dataset.documents import json_text
from dataprep.dataset.paths import CHANGE_JSON, PLAN_JSON
from dataprep.dataset.records import Event, FileEntry, IndexEntry, IndexPart, Placement, SplitManifest, ViewedSplit
from dataprep.errors import ConflictError, FormatError
from dataprep.messages import one_line
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import TooLargeError
from dataprep.storage.checksums import HashingWriter, crc32c_of, digests_of
from dataprep.storage.copies import stored_crc32c
from dataprep.storage.errors import GO_ON, disk_errors
from dataprep.storage.parquet import ParquetFile, open_parquet, path_of

BATCH_ROWS = 1 << 16
"""Rows in a batch, where an index is not read shard by shard; with 10 columns they take about 10 MB."""
MAX_COMPARED_BYTES = 2**30
"""Size of the largest index on disk whose digest is compared: 18 million samples. ImageNet's 77 MB take 0.07 s."""
MAX_BUFFERED_BYTES = 2**28
"""Size of the largest index in a bucket whose digest is compared: 4 million samples. It is kept in memory."""
MAX_READERS = 8
"""Maximum number of readers of an index at work, and of idle ones; each keeps a footer, some 10 kB a shard."""
_BLOCK_BYTES = 1 << 22
_MAX_PLAN_BYTES = 64 << 20
_RANGES_IN_FLIGHT = 8
ANNOTATIONS = "annotations_crc32c"
"""Column of the CRC32C of each sample's annotations."""
MAX_ROWS_IN_ONE = 1 << 24
"""Maximum number of rows of an index that is one file; all of ImageNet-21k has 14 million."""
PART_ROWS = 1 << 20
"""Approximate number of rows of a part; its file has some 60 MB, and the footer of 100 shards takes 3 ms to read."""
MAX_PARTS = 99_999
_REVISED = re.compile(r"(\.r[1-9]\d*)?((-of-\d+)?\.parquet)\Z")
"""End of the name of a file of an index: the revision that wrote it, unless that is the first."""


class ParquetTable:
    """One parquet file of a dataset; only the requested row groups and columns are read.

    Args:
        schemas: Accepted schemas: the file must have the columns of one of them.
        nullable: Columns that may lack values.
        source: The file's bytes, if they are open already.
        max_rows: Maximum number of rows; by default one for each byte, because each takes several.

    Raises FileNotFoundError, and FormatError if the file is not a parquet file, or has other columns.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        *schemas: pa.Schema,
        nullable: frozenset[str] = frozenset(),
        source: pa.NativeFile | None = None,
        max_rows: int | None = None,
    ) -> None:
        self._url, self._nullable = storage.url_of(name), nullable
        with self._readable():
            self._file = open_parquet(storage, name) if source is None else ParquetFile(pq.ParquetFile(source))
            found = self._file.schema_arrow.remove_metadata()
            info, rows = storage.stat(name), self._file.metadata.num_rows
            if info is not None and rows > (info.num_bytes if max_rows is None else max_rows):
                raise ValueError(f"{rows:,} rows in {info.num_bytes:,} bytes")
        if not any(found.equals(schema) for schema in schemas):
            columns = ", ".join(f"{field.name} {field.type}" for field in found)[:200]
            raise FormatError(f"{self._url}: columns {columns}; expected {', '.join(schemas[0].names)}; build it again")
        self.columns: tuple[str, ...] = tuple(found.names)

    @property
    def group_rows(self) -> list[int]:
        """Number of rows of each row group."""
        metadata = self._file.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one row group. Raises FormatError."""
        with self._readable():
            table = self._file.read_row_group(group, columns)
            self._check(table)
            return table

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, BATCH_ROWS at a time. Raises FormatError."""
        batches = self._file.iter_batches(BATCH_ROWS, columns=columns)
        while True:
            with self._readable():
                batch = next(batches, None)
                if batch is not None:
                    self._check(batch)
            if batch is None:
                return
            yield batch

    def _check(self, rows: pa.Table | pa.RecordBatch) -> None:
        rows.validate(full=True)  # offsets, dictionaries, UTF-8
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if column.null_count and name not in self._nullable:
                raise ValueError(f"values of {name} are missing")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        # Damaged thrift, pages and dictionaries raise any of these.
        except (pa.ArrowException, ValueError, OSError, KeyError, MemoryError, OverflowError) as error:
            raise FormatError(
                f"{self._url}: not the parquet file of a build ({one_line(error)}); build it again"
            ) from error


def open_index_file(storage: Storage, name: str, source: pa.NativeFile | None = None) -> ParquetTable:
    """Open one file of an index; see `index_schema` for its columns. Raises FileNotFoundError and FormatError."""
    nullable = frozenset({"image_crc32c", "height", "width"})
    schemas = index_schema(), index_schema(with_files=True), index_schema(with_annotations=True)
    return ParquetTable(storage, name, *schemas, nullable=nullable, source=source)


class Index:
    """The index of a split, shard by shard: one file, or parts that are opened when one of their shards is read.

    Safe in many threads: each borrows a reader, because pyarrow keeps a row group's bytes in the file while it is read.

    Args:
        storage: Place of the index.
        split: The split; of a view, only the kept samples have rows.
        compare: Compare the digest and the row groups of each file with the manifest before its rows are used. On disk
            the file stays open then; from a bucket it is kept in memory. So the bytes that were compared are the bytes
            that are read, also after `retry-failed` has published a longer index. Of a large index only the size is
            compared, and while a retry is under way, the index may be newer than the manifest.

    Raises:
        FileNotFoundError: The first file that a method opens does not exist.
        FormatError: A file that a method opens is damaged, or not the one that the manifest lists.
    """

    def __init__(self, storage: Storage, split: SplitManifest, *, compare: bool = False) -> None:
        self._storage, self._split, self._compare = storage, split, compare
        self._kept = split.kept if isinstance(split, ViewedSplit) else None
        self._files = index_files(split)
        counts = [part["shards"] for part in split.index["parts"]] if "parts" in split.index else [len(split.shards)]
        self._first = [0, *accumulate(counts)]
        """First shard of each file, and the number of shards."""
        self._borrowing = threading.Semaphore(MAX_READERS)
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._idle: list[tuple[int, ParquetTable]] = []
        """Idle readers, each with the number of its file; the one used last is at the end."""
        self._sources: dict[int, pa.NativeFile | None] = {}
        """Bytes of the files that were compared; None for those that are too large."""
        self._columns: tuple[str, ...] = ()
        """Columns of all files; empty until one of them is open."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; the first file is opened for them, unless a file is open."""
        if not self._columns:
            self.open_first()
        return self._columns

    def open_first(self) -> None:
        """Open the first file, so that errors of an index that is missing or damaged are raised now."""
        with self._reader(0):
            pass

    @property
    def group_rows(self) -> list[int]:
        """Number of rows of each row group; this opens all parts."""
        if self._kept is not None:
            return [shard["samples"] for shard in self._split.shards]
        return [rows for number in range(len(self._files)) for rows in self._rows_of(number)]

    def read_group(self, shard: int, columns: Sequence[str] | None = None, *, without: str = "") -> pa.Table:
        """Read the rows of one shard: the named columns, or all except `without`."""
        number = self._number(shard)
        with self._reader(number) as table:
            chosen = [name for name in table.columns if name != without] if without else columns
            rows = table.read_group(shard - self._first[number], chosen)
        return rows if self._kept is None else rows.take(from_numpy(self._kept.numbers(shard)))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, at most BATCH_ROWS at a time."""
        for shard in range(len(self._split.shards)) if self._kept is not None else ():
            yield from self.read_group(shard, columns).to_batches(BATCH_ROWS)
        for number in range(len(self._files)) if self._kept is None else ():
            with self._reader(number) as table:
                yield from table.batches(columns)

    def place(self, shard: int) -> tuple[str, int]:
        """Return the name of the file with a shard's rows, and the number of their row group in it."""
        number = self._number(shard)
        return self._files[number]["file"], shard - self._first[number]

    def _number(self, shard: int) -> int:
        return min(bisect_right(self._first, shard), len(self._files)) - 1

    def _rows_of(self, number: int) -> list[int]:
        with self._reader(number) as table:
            return table.group_rows

    @contextmanager
    def _reader(self, number: int) -> Iterator[ParquetTable]:
        """Lend a reader of a file to one thread at a time; one that failed is not used again."""
        with self._borrowing:
            table = self._taken(number) or self._opened(number)
            yield table
            with self._lock:
                self._idle = [*self._idle[1 - MAX_READERS :], (number, table)]

    def _taken(self, number: int) -> ParquetTable | None:
        with self._lock:
            at = next((at for at, (file, _) in enumerate(self._idle) if file == number), None)
            return None if at is None else self._idle.pop(at)[1]

    def _opened(self, number: int) -> ParquetTable:
        try:
            with self._opening:
                if number not in self._sources:
                    self._sources[number] = self._source(self._files[number]) if self._compare else None
            table = open_index_file(self._storage, self._files[number]["file"], self._sources[number])
        except FileNotFoundError as error:
            if not self._columns:
                raise
            raise FormatError(f"{error}: missing, but the manifest lists it; restore it or build again") from error
        if self._compare or len(self._files) > 1:
            self._compare_groups(number, table)
        if self._columns not in ((), table.columns):
            where = self._storage.url_of(self._files[number]["file"])
            raise FormatError(f"{where}: its columns differ from those in another part of the index; build it again")
        self._columns = table.columns
        return table

    def _source(self, entry: FileEntry) -> pa.NativeFile | None:
        """Open a file and compare its digest with the manifest's; None if only its size was compared."""
        storage, name = self._storage, entry["file"]
        info = storage.stat(name)
        if info is None:
            raise FileNotFoundError(storage.url_of(name))
        if info.num_bytes != entry["bytes"]:
            found, due = f"{info.num_bytes:,} bytes", f"{entry['bytes']:,}"
        elif self._split.index["bytes"] > (MAX_COMPARED_BYTES if storage.is_local else MAX_BUFFERED_BYTES):
            return None
        else:
            source = _opened(storage, name) if storage.is_local else pa.BufferReader(_downloaded(storage, info))
            found, due = f"sha256 {_sha256(source)}", entry["sha256"]
            if found == f"sha256 {due}":
                return source
        if is_changing(storage):
            return None
        raise FormatError(
            f"{storage.url_of(name)}: {found[:23]}, the manifest has {due[:16]}: it is damaged, or belongs to another "
            "dataset; restore it, or build it again"
        )

    def _compare_groups(self, number: int, table: ParquetTable) -> None:
        """Raise FormatError if a file does not have the shards of the manifest; no count is used before this check."""
        where, found = self._storage.url_of(self._files[number]["file"]), table.group_rows
        shards = self._split.shards[self._first[number] : self._first[number + 1]]
        stored = self._kept.stored[self._first[number] :] if self._kept else [shard["samples"] for shard in shards]
        is_last = number == len(self._files) - 1
        if len(found) < len(shards) or (len(found) > len(shards) and not is_last):  # a later revision adds shards
            raise FormatError(
                f"{where}: {len(found):,} row groups, the manifest lists {len(shards):,} shards; build it again"
            )
        for group, (rows, due, shard) in enumerate(zip(found, stored, shards, strict=False)):
            if rows != due:
                raise FormatError(
                    f"{where}: row group {group} has {rows:,} samples, but {shard['file']} has {due:,}; build it again"
                )


def is_changing(storage: Storage) -> bool:
    """Return whether a change is running or was interrupted, so that the index may be newer than the manifest."""
    if storage.stat(CHANGE_JSON) is not None:
        return True
    try:
        return b'"grows": "' in storage.read(PLAN_JSON, _MAX_PLAN_BYTES)
    except (FileNotFoundError, TooLargeError):
        return False


def open_index(storage: Storage, split: SplitManifest, *, compare: bool = False) -> Index:
    """Open the index of a split, and the first of its files; see `Index`. Raises FileNotFoundError and FormatError."""
    index = Index(storage, split, compare=compare)
    index.open_first()
    return index


def _sha256(source: pa.NativeFile) -> str:
    found = hashlib.sha256()
    while block := source.read_buffer(_BLOCK_BYTES):
        found.update(block)
    source.seek(0)
    return found.hexdigest()


def _opened(storage: Storage, name: str) -> pa.NativeFile:
    with storage.open(name) as file:
        return pa.OSFile(path_of(file))


def _downloaded(storage: Storage, info: ObjectInfo) -> bytes:
    """Read an index in ranges, so that each response arrives within the storage's deadline even on a slow network."""
    ranges = [(at, min(_BLOCK_BYTES, info.num_bytes - at)) for at in range(0, info.num_bytes, _BLOCK_BYTES)]
    with ThreadPoolExecutor(min(len(ranges), _RANGES_IN_FLIGHT) or 1, thread_name_prefix="dataprep-index") as threads:
        return b"".join(threads.map(lambda found: storage.read_range(info.name, *found), ranges))


def index_schema(*, with_files: bool = False, with_annotations: bool = False) -> pa.Schema:
    """Return the columns of `index/<split>.parquet`; height and width are null where images were not checked.

    Args:
        with_files: Append a column `file`, the image's path below the data's root. Adopted image folders need it,
            because the path does not follow from the key. The image_crc32c of adopted data may be null.
        with_annotations: Append a column `annotations_crc32c`, the checksum of the annotations as canonical JSON.
            Datasets with features have it.
    """
    fields = [
        ("key", pa.string()),
        ("shard", pa.int32()),
        ("record_offset", pa.int64()),
        ("record_bytes", pa.int64()),
        ("image_offset", pa.int64()),
        ("image_bytes", pa.int64()),
        ("image_crc32c", pa.uint32()),
        ("label", pa.int32()),
        ("height", pa.int32()),
        ("width", pa.int32()),
    ]
    if with_files:
        fields.append(("file", pa.string()))
    if with_annotations:
        fields.append((ANNOTATIONS, pa.uint32()))
    return pa.schema(fields)


def are_ranges_inside(
    record_offset: NDArray[np.int64],
    record_bytes: NDArray[np.int64],
    image_offset: NDArray[np.int64],
    image_bytes: NDArray[np.int64],
    *,
    shard_bytes: int,
) -> bool:
    """Return whether every image has bytes and is inside its record, and the record inside its shard."""
    columns = (record_offset, record_bytes, image_offset, image_bytes)
    if any(len(column) and (column.min() < 0 or column.max() > shard_bytes) for column in columns):
        return False  # and so no sum below can overflow
    image_stop, record_stop = image_offset + image_bytes, record_offset + record_bytes
    inside = (image_offset >= record_offset) & (image_stop <= record_stop) & (record_stop <= shard_bytes)
    return bool((inside & (image_bytes > 0)).all())


class IndexRow(NamedTuple):
    """Place of one sample; offsets and sizes are bytes of the stored object that holds it."""

    key: str
    record_offset: int
    record_bytes: int
    image_offset: int
    image_bytes: int
    image_crc32c: int | None
    label: int
    height: int | None
    width: int | None
    file: str = ""
    """Name of the object that holds the image, in an adopted image folder; empty elsewhere."""


def index_table(rows: Sequence[IndexRow], shard: int, *, with_files: bool = False) -> pa.Table:
    """Return the rows of one shard, by its position in the split, as a row group of the index; see `index_schema`."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(IndexRow._fields)
    key, *rest, file = columns
    values = [key, (shard,) * len(rows), *rest]
    return table_of([*values, file] if with_files else values, index_schema(with_files=with_files))


class IndexRows:
    """Collects the index rows of one shard, by its position in the split, in the order of its samples."""

    def __init__(self, split_index: int, *, with_annotations: bool = False) -> None:
        self._split_index = split_index
        self._rows: list[IndexRow] = []
        self._annotations: list[int] | None = [] if with_annotations else None

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, key: str, image: bytes, place: Placement, *, label: int, height: int | None, width: int | None
    ) -> None:
        """Add the row of one sample; a side of 0 pixels is unknown, and becomes null."""
        self._rows.append(IndexRow(key, *place, crc32c_of(image), label, height or None, width or None))

    def annotate(self, annotations: bytes) -> None:
        """Add the checksum of the last sample's annotations; do nothing if samples have none."""
        if self._annotations is not None:
            self._annotations.append(crc32c_of(annotations))

    def table(self) -> pa.Table:
        """Return the rows as a table of `index_schema()`, with the checksums of annotations if samples have some."""
        table = index_table(self._rows, self._split_index)
        if self._annotations is None:
            return table
        field = index_schema(with_annotations=True).field(ANNOTATIONS)
        return table.append_column(field, numbers(self._annotations, field.type))


def index_ranges(shard_samples: Sequence[int]) -> list[range]:
    """Return the shards in each file of an index, one range for a single file, from the samples of each shard as
    planned, or of adopted data as found."""
    rows, shards = sum(shard_samples), len(shard_samples)
    parts = 1 if rows <= MAX_ROWS_IN_ONE else max(1, min(-(-rows // PART_ROWS), shards, MAX_PARTS))
    return [range(number * shards // parts, (number + 1) * shards // parts) for number in range(parts)]


def index_names(split: str, parts: int) -> list[str]:
    """Return the names of the files of an index."""
    if parts == 1:
        return [f"index/{split}.parquet"]
    return [f"index/{split}-{number:05d}-of-{parts:05d}.parquet" for number in range(parts)]


def revised_name(file: str, revision: int) -> str:
    """Return the name of a file of an index, or of events, that a revision writes in its place."""
    return _REVISED.sub(rf".r{revision}\2", file)


def publish_index(split: str, shard_samples: Sequence[int], put: Callable[[str, range], FileEntry]) -> IndexEntry:
    """Publish the files of an index with `put`, which gets a file's name and its shards, and return the index's entry
    for the manifest; `index_ranges` has the parts."""
    ranges = index_ranges(shard_samples)
    names = index_names(split, len(ranges))
    entries = [(put(name, shards), shards) for name, shards in zip(names, ranges, strict=True)]
    if len(entries) == 1:
        return cast(IndexEntry, {**entries[0][0]})
    return joined_entry(split, [{**entry, "shards": len(shards)} for entry, shards in entries])


def joined_entry(split: str, parts: Sequence[IndexPart]) -> IndexEntry:
    """Return the manifest's entry for an index of several parts."""
    return {
        "file": f"index/{split}-*-of-{len(parts):05d}.parquet",
        "bytes": sum(part["bytes"] for part in parts),
        "sha256": hashlib.sha256("".join(part["sha256"] for part in parts).encode()).hexdigest(),
        "parts": list(parts),
    }


def grown_entry(split: SplitManifest, last: FileEntry, new_shards: int) -> IndexEntry:
    """Return the entry of an index whose only or last file was replaced by one with so many new shards."""
    if "parts" not in split.index:
        return cast(IndexEntry, {**last})
    *parts, before = split.index["parts"]
    return joined_entry(split.name, [*parts, {**last, "shards": before["shards"] + new_shards}])


def index_files(split: SplitManifest) -> tuple[FileEntry, ...]:
    """Return the files of a split's index, with their sizes and digests."""
    return tuple(split.index["parts"]) if "parts" in split.index else (split.index,)


def index_faults(split: SplitManifest) -> Iterator[str]:
    """Yield faults in the manifest's entries for index and events of a split: file names that no build or revision
    gives, or parts that do not match the split's shards."""
    yield from _name_faults(split.events, events_file(split.name), "events.file")
    if "parts" not in split.index:
        yield from _name_faults(split.index, f"index/{split.name}.parquet", "index.file")
        return
    parts = split.index["parts"]
    if not 1 < len(parts) <= MAX_PARTS:
        yield f"index.parts: expected 2 to {MAX_PARTS:,}, got {len(parts):,}"
        return
    for number, (part, due) in enumerate(zip(parts, index_names(split.name, len(parts)), strict=True)):
        yield from _name_faults(part, due, f"index.parts[{number}].file")
    shards = sum(part["shards"] for part in parts)
    if shards != len(split.shards) or not all(part["shards"] for part in parts):
        yield f"index.parts: {shards:,} shards, expected the split's {len(split.shards):,}, at least one in each"
    found: dict[str, object] = {**split.index}
    for name, joined in joined_entry(split.name, parts).items():
        if name != "parts" and found[name] != joined:
            yield f"index.{name}: expected {joined}, as in its parts, got {json_text(found[name])}"


def _name_faults(entry: FileEntry, due: str, where: str) -> Iterator[str]:
    if _REVISED.sub(r"\2", entry["file"]) != due:  # its name in the first revision
        yield f"{where}: expected {due}, got {json_text(entry['file'])}"


class PublishingRows:
    """Publishes parquet files like `publish_row_groups`, two at a time: while one is published, the next is written.

    All files exist when the `with` block has ended without an error.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.replaces = False
        """Whether existing files are replaced: they belong to a dataset whose manifest is gone."""
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="dataprep-publish")
        self._under_way: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._threads:
            if error is None:
                self.wait()

    def wait(self) -> None:
        """Wait until all files that were put so far exist."""
        while self._under_way:
            self._under_way.popleft().result()

    def put(self, name: str, groups: Iterator[pa.Table], schema: pa.Schema) -> FileEntry:
        """Write a file, and return its entry for the manifest; an earlier file's error may be raised here."""
        spool, digests = spool_row_groups(self._storage, name, groups, schema)
        while len(self._under_way) > 1 or (self._under_way and self._under_way[0].done()):
            self._under_way.popleft().result()
        self._under_way.append(self._threads.submit(self._publish, spool, name, digests.crc32c))
        return {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}

    def _publish(self, spool: Path, name: str, crc32c: str) -> None:
        existing = self._storage.stat(name) if self.replaces else None
        if existing is None:
            self._storage.publish(spool, name, crc32c)
            return
        expected = replace(existing, crc32c=stored_crc32c(self._storage, existing))
        if not self._storage.replace_file(spool, name, crc32c, expected):
            raise ConflictError(f"{self._storage.url_of(name)}: another process has replaced it; {GO_ON}")


def publish_row_groups(storage: Storage, name: str, groups: Iterator[pa.Table], schema: pa.Schema) -> FileEntry:
    """Write a parquet file with one row group a table, empty tables included, publish it, and return its entry."""
    spool, digests = spool_row_groups(storage, name, groups, schema)
    storage.publish(spool, name, digests.crc32c)
    return {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}


def spool_row_groups(
    storage: Storage, name: str, groups: Iterator[pa.Table], schema: pa.Schema
) -> tuple[Path, HashingWriter]:
    """Write a parquet file with one row group a table to a spool file, from which `storage.publish` takes it; return
    the spool's path, and the digests of its content."""
    spool = storage.spool_path(name)
    try:
        with disk_errors(spool), pq.ParquetWriter(spool, schema) as writer:
            for table in groups:
                writer.write_table(table, row_group_size=max(1, table.num_rows))
        with disk_errors(spool), spool.open("rb") as stream:
            return spool, digests_of(stream)
    except BaseException:
        spool.unlink(missing_ok=True)
        raise


def events_file(split: str) -> str:
    """Return the name of the file with a split's events."""
    return f"index/{split}-events.parquet"


def events_schema() -> pa.Schema:
    """Return the columns of `index/<split>-events.parquet`."""
    return pa.schema([(name, pa.string()) for name in Event.__dataclass_fields__])


def events_table(events: Sequence[Event]) -> pa.Table:
    """Return events as columns, in their order."""
    schema = events_schema()
    return table_of(([getattr(event, name) for event in events] for name in schema.names), schema)


def open_events(storage: Storage, file: str) -> ParquetTable:
    """Open the events of a split. Raises FileNotFoundError and FormatError."""
    return ParquetTable(storage, file, events_schema())


def read_events(storage: Storage, file: str) -> list[Event]:
    """Read every repair and rejection of a split. Raises FileNotFoundError and FormatError."""
    names = list(Event.__dataclass_fields__)
    return [Event(**row) for batch in open_events(storage, file).batches(names) for row in batch.to_pylist()]
