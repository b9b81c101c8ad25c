"""Columns as a fetcher reads them: the values of consecutive samples as one range of a column's file.

So values are read ahead, hedged, cached and counted as images are. They are compared with no digest while they are
read: `column.json` has one for each file, which `dataprep verify` compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataprep.arrays import NDArray, np
from dataprep.dataset.column_files import ColumnType, OpenedColumn, value_bounds, value_of, value_shapes
from dataprep.dataset.records import SplitManifest, ViewedSplit
from dataprep.errors import FormatError
from dataprep.storage import Storage
from loaders.fetch.index import DEADLINE_S, MAX_INDEX_BYTES, ShardCache, with_deadline
from loaders.order import Piece


@dataclass(frozen=True, slots=True)
class _Places:
    """Places of a column's values in the file of one shard; in a view, of kept samples only."""

    starts: NDArray[np.int64]
    """First byte of each value in the file, shape (samples,)."""
    sizes: NDArray[np.int64]
    """Bytes of each value, shape (samples,)."""
    shapes: NDArray[np.int32] | None
    """(samples, dimensions): shapes of arrays that differ in them; None for other values."""

    @property
    def num_bytes(self) -> int:
        return self.starts.nbytes + self.sizes.nbytes + (0 if self.shapes is None else self.shapes.nbytes)


class FixedValues:
    """Bytes of values of one size: one array of many takes less time than an array for each."""

    __slots__ = ("_data", "_size")

    def __init__(self, size: int, data: bytes) -> None:
        self._size, self._data = size, memoryview(data)

    def __getitem__(self, number: int) -> memoryview:
        start = number * self._size
        return self._data[start : start + self._size]


class FreeValues:
    """Values that differ in size, each cut out of the bytes of a range when it is needed."""

    def __init__(self, name: str, kind: ColumnType, data: bytes, offset: int, places: _Places) -> None:
        self._name, self._kind, self._data, self._offset, self._places = name, kind, data, offset, places

    def __getitem__(self, number: int) -> Any:
        """Return a value. Raises FormatError for a text that is not UTF-8."""
        places, start = self._places, int(self._places.starts[number]) - self._offset
        cut = self._data[start : start + int(places.sizes[number])]
        try:
            return value_of(self._kind, cut, None if places.shapes is None else places.shapes[number])
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._name}: a text that is not UTF-8: {cut[:40]!r}; make the column again") from error


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Values of consecutive samples, as one range of a column's file."""

    column: ColumnIndex
    file: str
    file_bytes: int
    offset: int
    num_bytes: int
    places: _Places | None
    """None for values of one size, one after the other."""

    def opened(self, data: bytes) -> FixedValues | FreeValues:
        """Return the values by their numbers, from all bytes of the range."""
        kind, places = self.column.kind, self.places
        if kind.is_free and places is not None:
            return FreeValues(self.column.name, kind, data, self.offset, places)
        if places is not None:  # of a view, which needs memory for its own values only
            each = np.frombuffer(data, np.uint8).reshape(-1, kind.item_bytes)
            data = each[(places.starts - self.offset) // kind.item_bytes].tobytes()
        return FixedValues(kind.item_bytes, data)


class ColumnIndex:
    """Reader of the places of a column's values in one split; safe in many threads.

    The column has values for every shard of the split; in a view, only the values of kept samples are found. Only
    values that differ in size, and views, need `max_bytes` of memory for places.
    """

    def __init__(
        self,
        storage: Storage,
        column: OpenedColumn,
        split: SplitManifest,
        deadline_s: float = DEADLINE_S,
        max_bytes: int = MAX_INDEX_BYTES,
    ) -> None:
        self.storage, self.digest = with_deadline(storage, deadline_s), column.sha256
        self.name, self.kind = column.column.name, column.type
        self._files = [column.shard(split.name, number) for number in range(len(split.shards))]
        self._kept = split.kept if isinstance(split, ViewedSplit) else None
        self.mean_bytes = mean_value_bytes(column, split)
        """Mean size of a value."""
        self._samples = [entry["samples"] for entry in split.shards]
        self._places = ShardCache[_Places](max_bytes)

    def samples(self, shard: int) -> int:
        """Return the number of a shard's samples."""
        return self._samples[shard]

    def load(self, shard: int) -> None:
        """Read the places of a shard's values now, if there are any to read."""
        if self.kind.is_free or self._kept is not None:
            self._places.get(shard, self._read)

    def range_of(self, piece: Piece) -> ValueRange:
        """Return the range with the values of a piece; the range of a view has values between them, too. Raises
        FormatError if the file's offsets or shapes, or the view, are damaged."""
        file, first, stop = self._files[piece.shard], piece.first, piece.stop
        if not self.kind.is_free and self._kept is None:
            size = self.kind.item_bytes
            offset, num_bytes = file.values + first * size, (stop - first) * size
            return ValueRange(self, file.file, file.bytes, offset, num_bytes, None)
        of_shard = self._places.get(piece.shard, self._read)
        shapes = None if of_shard.shapes is None else of_shard.shapes[first:stop].copy()
        places = _Places(of_shard.starts[first:stop].copy(), of_shard.sizes[first:stop].copy(), shapes)
        offset = int(places.starts[0])
        num_bytes = int(places.starts[-1] + places.sizes[-1]) - offset
        return ValueRange(self, file.file, file.bytes, offset, num_bytes, places)

    def _read(self, shard: int) -> _Places:
        kind, found = self.kind, self._files[shard]
        bounds = value_bounds(self.storage, kind, found)
        shapes = value_shapes(self.storage, kind, found, bounds)
        places = _Places(bounds[:-1], np.diff(bounds), shapes)
        if self._kept is None:
            return places
        kept = self._kept.numbers(shard)
        return _Places(places.starts[kept], places.sizes[kept], None if shapes is None else shapes[kept])


def mean_value_bytes(column: OpenedColumn, split: SplitManifest) -> float:
    """Return the mean size of a column's values in a split, including their share of the rest of the files."""
    files = [column.shard(split.name, number) for number in range(len(split.shards))]
    return sum(file.bytes for file in files) / max(1, split.samples)
