"""Images whose bytes are in a column of parquet files: measured, and unpacked below the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from dataprep.dataset.records import MISSING, SourceFile
from dataprep.errors import SourceError, StorageError
from dataprep.sources.archives import Progress
from dataprep.sources.base import MAX_IMAGE_BYTES
from dataprep.sources.image_tables import ImageTable, TableRow, image_bytes, table_rows
from dataprep.sources.tables import table_sha256
from dataprep.sources.unpacked import NO_IMAGE, unpacked_list, unpacked_name, unpacking
from dataprep.storage.base import Storage
from dataprep.storage.checksums import crc32c_of


class PackedImage(NamedTuple):
    """One row, and where its image is among those of its file."""

    row: TableRow
    offset: int
    """First byte among the images of its file; MISSING where the row has no image."""
    num_bytes: int
    crc32c: int
    """CRC32C of the image when it was measured or unpacked."""


@dataclass(frozen=True, kw_only=True)
class PackedImages:
    """Reader of the images in parquet files."""

    image_column: str
    drop: frozenset[str]
    """Other columns to leave out."""
    unpack_to: Storage | None
    """Output below which images are unpacked; None to measure them only."""
    progress: Progress | None

    def rows(self, table: ImageTable, source: SourceFile) -> Iterator[PackedImage]:
        """Yield the rows of a file. Its images are unpacked once the last row was taken, unless an earlier run did.

        Raises:
            SourceError: The file cannot be read, or an image is too large.
            StorageError: The images cannot be unpacked.
        """
        name, unpack_to = unpacked_name(source), self.unpack_to
        listed = None if unpack_to is None else unpacked_list(unpack_to, name)
        if listed is None:
            yield from self._read(table, nullcontext() if unpack_to is None else unpacking(unpack_to, name))
            return
        offset, ordinal = 0, -1
        for ordinal, row in enumerate(self._rows(table, only_paths=True)):
            if ordinal < len(listed.sizes):
                yield _packed(row, offset, listed.sizes[ordinal], listed.crc32cs[ordinal])
                offset += max(0, listed.sizes[ordinal])
        if unpack_to is not None and ordinal + 1 != len(listed.sizes):
            raise StorageError(
                f"{unpack_to.url_of(name)} has {len(listed.sizes):,} images, {table.url} has {ordinal + 1:,} rows: it "
                "was not unpacked from this table; remove it, and run the same command again"
            )

    def _read(
        self, table: ImageTable, unpacked: AbstractContextManager[Callable[[bytes | None], int] | None]
    ) -> Iterator[PackedImage]:
        offset = 0
        with unpacked as add:
            for row in self._rows(table, only_paths=False):
                image = image_bytes(row)
                num_bytes = NO_IMAGE if image is None else len(image)
                if num_bytes > MAX_IMAGE_BYTES:
                    raise SourceError(
                        f"{table.url} row {row.number}: an image of {num_bytes:,} bytes; at most {MAX_IMAGE_BYTES:,} "
                        "for one image: remove the row"
                    )
                crc32c = crc32c_of(image or b"") if add is None else add(image)
                yield _packed(row, offset, num_bytes, crc32c)
                offset += max(0, num_bytes)

    def _rows(self, table: ImageTable, *, only_paths: bool) -> Iterator[TableRow]:
        return table_rows(table, self.image_column, self.drop, only_paths=only_paths, progress=self.progress)


def _packed(row: TableRow, offset: int, num_bytes: int, crc32c: int) -> PackedImage:
    if num_bytes == NO_IMAGE:
        return PackedImage(row, MISSING, 0, crc32c)
    return PackedImage(row, offset, num_bytes, crc32c)


def packed_source(table: ImageTable, *, is_unpacked: bool) -> SourceFile:
    """Return a table as a source of a plan."""
    return SourceFile(table.name, table.num_bytes, table_sha256(table.root, table.name, table.num_bytes), is_unpacked)
