"""Rows of a table whose images cannot be used, because they do not exist or are of a type that is not read.

Such a row is a problem, unless `--max-reject-ratio` allows as many as a split has: then the build rejects the image,
and lists it as any other that is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dataprep.dataset.spilled_items import Codec, SpilledItems
from dataprep.errors import SourceError
from dataprep.messages import counted, shown
from dataprep.sources.image_tables import ImageTable, row_name
from dataprep.sources.metadata import numbered
from dataprep.sources.pictures import SHOWN_EXAMPLES, Examples
from dataprep.sources.problems import Problems
from dataprep.sources.tree import OTHER_PICTURES

_MISSING_IMAGES = Codec(
    msgspec.msgpack.encode, msgspec.msgpack.Decoder(tuple[str, str]).decode, "the list of missing images"
)


class UnusableImages:
    """Counts the rows of tables, split by split, and those whose images cannot be used.

    Args:
        where: The source, as messages name it.
        image_column: Column of the paths.
        max_ratio: Share of a split's rows that may be rejected.
    """

    _rows: int
    """Number of rows of the split."""
    _rows_before: int
    """Number of them in earlier tables."""
    _missing: Examples
    """Images of the table that do not exist."""
    _lacking: list[tuple[ImageTable, Examples, int]]
    """Tables of which images do not exist, with these images and the number of rows."""
    _examples: Examples
    """Images of the split that cannot be used."""
    _problems: Problems

    def __init__(self, where: str, image_column: str, max_ratio: float) -> None:
        self._where, self._image_column, self._max_ratio = where, image_column, max_ratio
        self._all_missing = SpilledItems(_MISSING_IMAGES)
        self._begin_split()

    @property
    def missing(self) -> Iterable[tuple[str, str]]:
        """All images that do not exist, each with its row."""
        return self._all_missing

    def takes(self, table: ImageTable, number: int, image: str, *, exists: bool) -> bool:
        """Count a row; return False if its image cannot be used, and none may be rejected.

        Args:
            table: The table.
            number: Number of the row, as messages name it.
            image: Name of the image below the source.
            exists: Whether there is such a file.
        """
        self._rows += 1
        suffix = image.rpartition(".")[2].lower()
        if exists and suffix not in OTHER_PICTURES:
            return True
        named = NamedRow(table, number, image)
        self._examples.add(named)
        if exists:
            self._problems.add(
                SourceError(
                    f"{row_name(table, number)}: {shown(image)}: a picture of type {suffix}, which is not read; "
                    "convert such files to JPEG or PNG, or have them rejected and listed with --max-reject-ratio"
                )
            )
        else:
            self._missing.add(named)
            self._all_missing.append((image, row_name(table, number)))
        return self._max_ratio > 0

    def end_table(self, table: ImageTable) -> None:
        """Note the images of a table that do not exist."""
        if self._missing.count:
            self._lacking.append((table, self._missing, self._rows - self._rows_before))
        self._missing, self._rows_before = Examples(), self._rows

    def _refuse_missing(self, table: ImageTable, missing: Examples, rows: int) -> None:
        """Make one problem of all images of a table that do not exist."""
        where = f"{table.url}: {missing.count:,} of {rows:,} images are not below {self._where}: {missing}"
        where += " (--json lists all)" if missing.count > SHOWN_EXAMPLES else ""
        if 2 * missing.count < rows:
            ratio = math.ceil(self._examples.count / self._rows * 10_000) / 10_000
            advice = (
                "put them there, or remove the rows, or have them rejected and listed with --max-reject-ratio "
                f"{ratio:g}; paths are relative to the table or to --source"
            )
        else:
            advice = (
                "expected paths relative to the table or to --source: name their column with --image-column (now "
                f"{self._image_column}), or put the table into the folder in which the paths begin"
            )
        self._problems.add(SourceError(f"{where}; {advice}"))

    def end_split(self, problems: Problems) -> str:
        """Return a line about the images of a split that will be rejected; add problems if they are too many."""
        for table, missing, rows_of_table in self._lacking:
            self._refuse_missing(table, missing, rows_of_table)
        rows, examples, found = self._rows, self._examples, self._problems
        self._begin_split()
        if examples.count > self._max_ratio * rows:
            problems.take(found)
            return ""
        if not examples.count:
            return ""
        return (
            f"warning: {examples.count:,} of {counted(rows, 'image')} do not exist or are of a type that is not read, "
            f"so the build rejects and lists them: {examples}"
        )

    def _begin_split(self) -> None:
        self._rows = self._rows_before = 0
        self._missing, self._examples, self._lacking = Examples(), Examples(), []
        self._problems = Problems(self._where)


class NamedRow(NamedTuple):
    """A row of a table with its image, for messages."""

    table: ImageTable
    number: int
    image: str
    """Name of the image below the source."""

    @property
    def shown(self) -> str:
        return f"{shown(self.image)} ({numbered(self.table.name, self.number)})"
