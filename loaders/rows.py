"""The index of one split in memory, shard by shard: where every sample lies, its label, its size and its key."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.checks.manifest import image_root
from dataprep.checks.shard import class_name_of
from dataprep.errors import FormatError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import image_file
from dataprep.index import ParquetTable, open_index
from dataprep.records import Manifest, SplitManifest
from dataprep.sources import DATASETS
from dataprep.storage import Storage
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.gcs_client import Impatience

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

MAX_INDEX_BYTES = 256 * 2**20
"""Some 2.5 million samples with keys of 30 characters; all of ImageNet takes a half."""
DEADLINE_S = 5.0
"""A server that does not answer is an error after this time."""
# Each keeps the file's footer of some 5 kB a shard.
MAX_TABLES = 8


@dataclass(frozen=True, slots=True)
class Texts:
    """Strings without an object for each."""

    stops: NDArray[np.int64]
    """Where in `joined` each of them ends, shape (strings,)."""
    joined: bytes
    """One after the other, UTF-8."""

    def __getitem__(self, number: int) -> str:
        return self.joined[self._start(number) : self.stops[number]].decode()

    def part(self, first: int, stop: int) -> Texts:
        """Those from `first` to `stop`."""
        start = self._start(first)
        stops = self.stops[first:stop] - start
        return Texts(stops, self.joined[start:][: stops[-1] if len(stops) else 0])

    @property
    def num_bytes(self) -> int:
        """Of memory."""
        return self.stops.nbytes + len(self.joined)

    def _start(self, number: int) -> int:
        return int(self.stops[number - 1]) if number else 0


@dataclass(frozen=True, slots=True)
class ShardRows:
    """Consecutive samples of one shard, all of them or a part; every array has shape (samples,)."""

    record_offset: NDArray[np.int64]
    """From the start of the stored object, bytes."""
    record_bytes: NDArray[np.int64]
    image_offset: NDArray[np.int64]
    image_bytes: NDArray[np.int64]
    image_crc32c: NDArray[np.uint32] | None
    """None where nobody computed them."""
    label: NDArray[np.int64]
    """-1 where there is none."""
    height: NDArray[np.int32]
    """Pixels; 0 where unknown, as is the width."""
    width: NDArray[np.int32]
    keys: Texts
    files: Texts | None
    """Of an adopted image folder the object that is each image; None where it follows from the shard or the key."""

    def __len__(self) -> int:
        return len(self.label)

    def key(self, row: int) -> str:
        """The sample's name, unique in its split."""
        return self.keys[row]

    def part(self, first: int, stop: int) -> ShardRows:
        """Rows `first` to `stop` on their own, so that the others can be forgotten."""
        cut: dict[str, Any] = {}
        for name in _COLUMNS:
            column = getattr(self, name)
            cut[name] = None if column is None else column[first:stop].copy()
        files = None if self.files is None else self.files.part(first, stop)
        return ShardRows(**cut, keys=self.keys.part(first, stop), files=files)

    @property
    def num_bytes(self) -> int:
        """Of memory."""
        arrays: list[NDArray[Any] | None] = [getattr(self, name) for name in _COLUMNS]
        texts = self.keys.num_bytes + (0 if self.files is None else self.files.num_bytes)
        return texts + sum(array.nbytes for array in arrays if array is not None)


_COLUMNS: dict[str, type[np.generic]] = {
    "record_offset": np.int64,
    "record_bytes": np.int64,
    "image_offset": np.int64,
    "image_bytes": np.int64,
    "image_crc32c": np.uint32,
    "label": np.int64,
    "height": np.int32,
    "width": np.int32,
}


class SplitRows:
    """The index of one split, read by shards as they are needed; safe in many threads.

    Args:
        storage: Where the index is; the data may be elsewhere.
        manifest: The dataset's.
        split: One of its splits.
        max_bytes: Of rows kept; those longest unused go first.
        deadline_s: Without an answer from the bucket, reading fails within this time.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        split: SplitManifest,
        *,
        max_bytes: int = MAX_INDEX_BYTES,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._storage = impatient(storage, deadline_s)
        self._manifest, self._split, self._max_bytes = manifest, split, max_bytes
        self.is_folder = FORMATS[manifest.format] is None
        """Every image is an object of its own."""
        self.digest = f"{manifest.plan_hash} {split.index['sha256']}"
        """Another one means other bytes at the same places."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Future[ShardRows]] = OrderedDict()
        self._kept_bytes = 0
        self._tables: list[ParquetTable] = []
        self._free_tables = threading.Semaphore(MAX_TABLES)

    def rows(self, shard: int) -> ShardRows:
        """The rows of one shard; several threads that ask for the same one wait for one read.

        Raises:
            FormatError: The index is missing or damaged, or is not that of the manifest.
            StorageError: It cannot be read.
        """
        with self._lock:
            found = self._kept.get(shard)
            if found is not None:
                self._kept.move_to_end(shard)
            else:
                mine = self._kept[shard] = Future()
        if found is not None:
            return found.result()
        try:
            rows = self._read(shard)
        except BaseException as error:
            with self._lock:
                del self._kept[shard]
            mine.set_exception(error)
            raise
        mine.set_result(rows)
        self._keep(rows)
        return rows

    def file(self, shard: int, row: int) -> str:
        """The stored object that holds a sample."""
        return self.file_of(shard, self.rows(shard), row) if self.is_folder else self._shard_file(shard)

    def file_of(self, shard: int, rows: ShardRows, row: int) -> str:
        """The stored object that holds one of these rows of a shard. Raises FormatError for a row that none can."""
        if not self.is_folder:
            return self._shard_file(shard)
        if rows.files is not None:
            return rows.files[row]
        key, label = rows.key(row), int(rows.label[row])
        class_name = class_name_of(label, self._manifest.classes)
        if class_name is None:
            raise FormatError(
                f"{self._index_url}: {key} has label {label}, expected one of {len(self._manifest.classes)} classes; "
                'run "dataprep verify" to see what else is wrong, and build it again'
            )
        suffix = DATASETS[self._manifest.name].image_suffix
        return image_file(image_root(self._manifest, self._split), key, class_name, suffix)

    def mean_image_bytes(self) -> float:
        """Of the first shard that has samples: the same for every format and place of the same data."""
        for shard, entry in enumerate(self._split.shards):
            if entry["samples"]:
                rows = self.rows(shard)
                return int(rows.image_bytes.sum()) / len(rows)
        raise FormatError(f"{self._index_url}: no sample in {len(self._split.shards)} shards; build it again")

    @property
    def _index_url(self) -> str:
        return self._storage.url_of(self._split.index["file"])

    def _shard_file(self, shard: int) -> str:
        file: str = self._split.shards[shard]["file"]
        return file

    def _keep(self, rows: ShardRows) -> None:
        with self._lock:
            self._kept_bytes += rows.num_bytes
            for shard, other in list(self._kept.items())[:-1]:
                if self._kept_bytes <= self._max_bytes:
                    break
                if other.done():
                    del self._kept[shard]
                    self._kept_bytes -= other.result().num_bytes

    def _read(self, shard: int) -> ShardRows:
        with self._table() as table:
            if len(table.group_rows) < len(self._split.shards):  # more: shards that a later revision added
                raise FormatError(
                    f"{self._index_url}: {len(table.group_rows):,} row groups, the manifest lists "
                    f"{len(self._split.shards):,} shards; build it again"
                )
            columns = [name for name in table.columns if name != "shard"]
            rows = _rows_of(table.read_group(shard, columns))
        expected = self._split.shards[shard]["samples"]
        if len(rows) != expected or not _is_sound(rows):
            raise FormatError(
                f"{self._index_url}: row group {shard} of {len(rows):,} samples does not describe "
                f"{self._shard_file(shard)} of {expected:,}; build it again"
            )
        return rows

    @contextmanager
    def _table(self) -> Iterator[ParquetTable]:
        """One that nobody else reads from: pyarrow keeps a row group's bytes in the file while it is read."""
        with self._free_tables:
            try:
                table = self._tables.pop()
            except IndexError:
                table = self._open()
            yield table
            self._tables.append(table)

    def _open(self) -> ParquetTable:
        try:
            return open_index(self._storage, self._split.name)
        except FileNotFoundError as error:
            raise FormatError(
                f"{self._index_url}: missing, the manifest lists it; restore it or build again"
            ) from error


def impatient(storage: Storage, deadline_s: float) -> Storage:
    """The same storage, whose reads fail within `deadline_s` when the server is gone."""
    return GCSStorage(storage.url, Impatience(deadline_s)) if isinstance(storage, GCSStorage) else storage


def _rows_of(table: pa.Table) -> ShardRows:
    columns: dict[str, Any] = {name: _numbers(table.column(name), kind) for name, kind in _COLUMNS.items()}
    if table.column("image_crc32c").null_count:
        columns["image_crc32c"] = None
    files = _texts(table.column("file")) if "file" in table.column_names else None
    return ShardRows(**columns, keys=_texts(table.column("key")), files=files)


def _texts(column: pa.ChunkedArray) -> Texts:
    values = column.combine_chunks()
    if not len(values):
        return Texts(np.empty(0, np.int64), b"")
    _, offsets, text = values.buffers()
    stops = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return Texts(stops[1:] - stops[0], text[stops[0] : stops[-1]].to_pybytes())


def _numbers(column: pa.ChunkedArray, kind: type[np.generic]) -> NDArray[Any]:
    """The values, 0 for null. Not by `to_numpy` or `fill_null`: those import pandas."""
    values = column.combine_chunks()
    if not len(values):
        return np.empty(0, kind)
    valid, data = values.buffers()
    stop = values.offset + len(values)
    numbers = np.frombuffer(data, np.dtype(str(values.type)), stop)[values.offset :].astype(kind)
    if valid is not None:
        bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=stop, bitorder="little")
        numbers[bits[values.offset :] == 0] = 0
    return numbers


def _is_sound(rows: ShardRows) -> bool:
    """Whether every image has bytes and lies in its record."""
    image_stop, record_stop = rows.image_offset + rows.image_bytes, rows.record_offset + rows.record_bytes
    inside = (rows.record_offset >= 0) & (rows.image_offset >= rows.record_offset) & (image_stop <= record_stop)
    return bool((inside & (rows.image_bytes > 0)).all())
