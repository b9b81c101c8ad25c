"""The rows of `index/<split>.parquet`: their columns, and how they are made from a writer's placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dataprep.dataset.columns import numbers, table_of
from dataprep.dataset.records import Placement
from dataprep.storage.checksums import crc32c_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

ANNOTATIONS = "annotations_crc32c"
"""Column of the CRC32C of each sample's annotations."""


def index_schema(*, with_files: bool = False, with_annotations: bool = False) -> pa.Schema:
    """Return the columns of `index/<split>.parquet`; height and width are null where images were not checked.

    Args:
        with_files: Append a column `file`, the image's path below the data's root. Adopted image folders need it,
            because the path does not follow from the key. The image_crc32c of adopted data may be null.
        with_annotations: Append a column `annotations_crc32c`, the checksum of the annotations as canonical JSON.
            Datasets with features have it.
    """
    import pyarrow as pa

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
    """Return whether every image has bytes and lies inside its record, and the record inside its shard."""
    columns = (record_offset, record_bytes, image_offset, image_bytes)
    if any(len(column) and (column.min() < 0 or column.max() > shard_bytes) for column in columns):
        return False  # and so no sum below can overflow
    image_stop, record_stop = image_offset + image_bytes, record_offset + record_bytes
    inside = (image_offset >= record_offset) & (image_stop <= record_stop) & (record_stop <= shard_bytes)
    return bool((inside & (image_bytes > 0)).all())


class IndexRow(NamedTuple):
    """Where one sample lies; offsets and sizes are bytes of the stored object that holds it."""

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
    """Return the rows of one shard as a row group of the index.

    Args:
        rows: The rows, in the order of the shard's samples.
        shard: Position of the shard in its split.
        with_files: Add the column `file`; see `index_schema`.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(IndexRow._fields)
    key, *rest, file = columns
    values = [key, (shard,) * len(rows), *rest]
    return table_of([*values, file] if with_files else values, index_schema(with_files=with_files))


class IndexRows:
    """Collects the index rows of one shard, in the order of its samples.

    Args:
        split_index: Position of the shard in its split.
        with_annotations: Whether every sample is annotated.
    """

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
        self._rows.append(
            IndexRow(
                key,
                place.record_offset,
                place.record_bytes,
                place.image_offset,
                place.image_bytes,
                crc32c_of(image),
                label,
                height or None,
                width or None,
            )
        )

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
