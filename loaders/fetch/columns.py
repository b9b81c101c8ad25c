"""Values of a column as a fetcher reads them: the place of each value in the column's files, as an index has images.

So values are read ahead, hedged, cached and counted as images are. They are compared with no digest while they are
read: `column.json` has one for each file, which `dataprep verify` compares.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from dataprep.arrays import NDArray, np
from dataprep.dataset.column_files import ColumnType, OpenedColumn, value_bounds, value_of, value_shapes
from dataprep.dataset.records import NO_LABEL, Manifest, SplitManifest, ViewedSplit
from dataprep.errors import FormatError
from dataprep.storage import Storage
from loaders.fetch.index import ShardIndex, SplitIndex, Texts


@dataclass(frozen=True, slots=True)
class ValueEntries(ShardIndex):
    """Places of a column's values in the file of one shard, of all or some of its samples, as images of an index."""

    kind: ColumnType
    shapes: NDArray[np.int32] | None
    """(samples, dimensions): shapes of arrays that differ in them; None for other values."""

    def part(self, first: int, stop: int) -> ValueEntries:
        """Return a copy of entries `first` to `stop`."""
        found = ShardIndex.part(self, first, stop)
        shapes = None if self.shapes is None else self.shapes[first:stop].copy()
        return ValueEntries(
            **{each.name: getattr(found, each.name) for each in _ENTRIES}, kind=self.kind, shapes=shapes
        )

    def value(self, entry: int, data: bytes) -> Any:
        """Return a value from its bytes. Raises FormatError for a text that is not UTF-8."""
        try:
            return value_of(self.kind, data, None if self.shapes is None else self.shapes[entry])
        except UnicodeDecodeError as error:
            raise FormatError(f"a text that is not UTF-8: {data[:40]!r}; make the column again") from error


_ENTRIES = fields(ShardIndex)


class ColumnIndex(SplitIndex):
    """Reader of the places of a column's values in one split; safe in many threads.

    Args:
        storage: Storage of the column.
        column: A column with values for every shard of the split.
        manifest: Manifest of the dataset.
        split: One of its splits; of a view, only the values of kept samples are found.
        deadline_s: Seconds without an answer from the bucket after which reading fails.
    """

    def __init__(
        self, storage: Storage, column: OpenedColumn, manifest: Manifest, split: SplitManifest, deadline_s: float
    ) -> None:
        super().__init__(storage, manifest, split, deadline_s=deadline_s)
        self._column, self._is_large, self.one_file_per_image = column, False, False
        self.values, self.digest = self._storage, column.sha256
        self._files = [column.shard(split.name, number) for number in range(len(split.shards))]

    def shard_file(self, shard: int) -> str:
        """Return the file with the values of a shard."""
        return self._files[shard].file

    def file_bytes(self, shard: int, entries: ShardIndex, entry: int) -> int:
        """Return the size of the file with the values of a shard."""
        return self._files[shard].bytes

    def mean_image_bytes(self) -> float:
        """Return the mean size of a value."""
        return mean_value_bytes(self._column, self._split)

    def _read(self, shard: int) -> ValueEntries:
        """Return the places of a shard's values. Raises FormatError if the file's offsets or shapes are damaged."""
        kind, found = self._column.type, self._files[shard]
        bounds = value_bounds(self._storage, kind, found)
        shapes = value_shapes(self._storage, kind, found, bounds)
        starts, sizes = bounds[:-1], np.diff(bounds)
        if isinstance(self._split, ViewedSplit):
            kept = self._split.kept.numbers(shard)
            starts, sizes = starts[kept], sizes[kept]
            shapes = None if shapes is None else shapes[kept]
        none = np.zeros(len(starts), np.int32)
        return ValueEntries(
            record_offset=starts,
            record_bytes=sizes,
            image_offset=starts,
            image_bytes=sizes,
            image_crc32c=None,
            label=np.full(len(starts), NO_LABEL, np.int64),
            height=none,
            width=none,
            keys=Texts(np.zeros(len(starts), np.int64), b""),
            files=None,
            kind=kind,
            shapes=shapes,
        )


def mean_value_bytes(column: OpenedColumn, split: SplitManifest) -> float:
    """Return the mean size of a column's values in a split, with what surrounds them in the files."""
    files = [column.shard(split.name, number) for number in range(len(split.shards))]
    return sum(file.bytes for file in files) / max(1, sum(file.samples for file in files))
