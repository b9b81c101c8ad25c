"""Rows of a table whose images cannot be used: they do not exist, have no byte, or are of a type that is not read.

Such rows are problems, unless `--max-reject-ratio` allows as many as each split has: then the build rejects the images,
and lists them as any others that are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from dataprep.dataset.paths import OTHER_PICTURES
from dataprep.dataset.spill import Codec, SpilledItems
from dataprep.errors import SourceError
from dataprep.messages import counted, shown, sufficient_ratio
from dataprep.sources.image_tables import ImageTable, row_name
from dataprep.sources.metadata import numbered
from dataprep.sources.pictures import SHOWN_EXAMPLES, Examples, Shown
from dataprep.sources.problems import SHOWN_PROBLEMS, Problems
from dataprep.sources.tree import unpack_command
from dataprep.storage.base import Storage

_MISSING_IMAGES = Codec(
    msgspec.msgpack.encode, msgspec.msgpack.Decoder(tuple[str, str]).decode, "the list of missing images"
)


class NamedRow(NamedTuple):
    """A row of a table with its image, for messages."""

    table: ImageTable
    number: int
    image: str
    """Name of the image below the source; empty if the row names none."""

    @property
    def shown(self) -> str:
        return f"{shown(self.image) if self.image else 'no path'} ({numbered(self.table.name, self.number)})"


class UnusableImages:
    """Notes the rows of tables whose images cannot be used.

    Args:
        root: The source.
        image_column: Column of the paths.
        max_ratio: Share of a split's rows that may be rejected.
    """

    def __init__(self, root: Storage, image_column: str, max_ratio: float) -> None:
        self._root, self._image_column, self._max_ratio = root, image_column, max_ratio
        self._where = root.url
        self._all_missing = SpilledItems(_MISSING_IMAGES)
        self._rows, self._missing = 0, Examples()
        """Rows of the table that is read, and its images that do not exist."""
        self._lacking: list[tuple[ImageTable, Examples, int]] = []
        """Tables of which images do not exist, with these images and the number of rows."""
        self._unread: list[NamedRow] = []
        """First rows with a file of a type that is not read."""
        self._num_unread = 0
        self._empty = Examples()

    @property
    def are_some(self) -> bool:
        """Whether there are images that cannot be used."""
        return bool(self._lacking or self._num_unread or self._empty.count)

    @property
    def missing(self) -> Iterable[tuple[str, str]]:
        """All images that do not exist, each with its row."""
        return self._all_missing

    def add(self, row: NamedRow, num_bytes: int | None) -> None:
        """Note a row of a table with paths if its image cannot be used.

        Args:
            row: The row.
            num_bytes: Size of its file; None if there is no such file.
        """
        self._rows += 1
        if num_bytes is None:
            self._missing.add(row)
            self._all_missing.append((row.image, row_name(row.table, row.number)))
        elif not is_read(row.image):
            self._num_unread += 1
            self._unread += [row] if self._num_unread <= SHOWN_PROBLEMS else []
        elif not num_bytes:
            self.add_empty(row)

    def add_empty(self, row: Shown) -> None:
        """Note a row whose image has no byte, or that has none."""
        self._empty.add(row)

    def end_table(self, table: ImageTable) -> None:
        """Note the images of a table that do not exist."""
        if self._missing.count:
            self._lacking.append((table, self._missing, self._rows))
        self._rows, self._missing = 0, Examples()

    def refuse(self, splits: Mapping[str, tuple[Examples, int]], problems: Problems, *, are_final: bool) -> list[str]:
        """Return a line for each split with images that will be rejected; add problems if they are too many.

        Args:
            splits: Images of each split that cannot be used, and the number of all its images.
            problems: Takes the problems.
            are_final: Whether the splits are those of the build, so that a sufficient ratio is known.
        """
        odd = {split: found for split, found in splits.items() if found[0].count > self._max_ratio * found[1]}
        if not odd:
            return [
                f"warning: {_what(split, examples, rows)}, and will be rejected and listed: {examples}"
                for split, (examples, rows) in splits.items()
                if examples.count
            ]
        ratio = max(sufficient_ratio(examples.count, rows) for examples, rows in splits.values())
        if self._max_ratio:
            remedy = f"--max-reject-ratio {ratio:g} suffices for these" if are_final else "a larger ratio allows them"
            errors = self._too_many(odd, remedy)
        else:
            option = f"--max-reject-ratio {ratio:g}" if are_final else "--max-reject-ratio"
            errors = self._mendable(f"or have them rejected and listed with {option}")
        for error in errors:
            problems.add(SourceError(error))
        if not self._max_ratio:
            problems.count += self._num_unread - len(self._unread)
        return []

    def _too_many(self, splits: Mapping[str, tuple[Examples, int]], remedy: str) -> Iterator[str]:
        """Yield an error for each split that has more of these images than the ratio allows."""
        for split, (examples, rows) in splits.items():
            yield (
                f"{self._where}: {_what(split, examples, rows)}, more than --max-reject-ratio {self._max_ratio:g} "
                f"allows, so a build would end without a dataset: {examples}; mend the files, or remove the rows; "
                f"{remedy}"
            )
        yield from self._elsewhere()

    def _mendable(self, reject: str) -> Iterator[str]:
        """Yield errors about all images that cannot be used, each with what helps; `reject` is how to go without."""
        for table, number, image in self._unread:
            yield (
                f"{row_name(table, number)}: {shown(image)}: a picture of type {_suffix(image)}, which is not read; "
                f"convert such files to JPEG or PNG, {reject}"
            )
        for table, missing, rows in self._lacking:
            if 2 * missing.count < rows:
                yield (
                    f"{self._lack(table, missing, rows)}; put them there, or remove the rows, {reject}; paths are "
                    "relative to the table or to --source"
                )
        yield from self._elsewhere()
        if self._empty.count:
            mend = "replace it, or remove the row" if self._empty.count == 1 else "replace them, or remove the rows"
            images = f"{counted(self._empty.count, 'image')} without a byte"
            yield f"{self._where}: {images}: {self._empty}; {mend}, {reject}"

    def _elsewhere(self) -> Iterator[str]:
        """Yield an error for each table of which most images do not exist, so that its paths begin elsewhere."""
        for table, missing, rows in self._lacking:
            if 2 * missing.count >= rows:
                yield (
                    f"{self._lack(table, missing, rows)}; expected paths relative to the table or to --source: name "
                    f"their column with --image-column (now {self._image_column}), or put the table into the folder in "
                    f"which the paths begin{self._in_archive()}"
                )

    def _in_archive(self) -> str:
        """Return what to do if the images are in an archive beside the table."""
        if not self._root.is_local:
            return ""
        beside = sorted(path.name for path in Path(self._root.url).iterdir() if path.suffix.lower() in (".zip", ".tar"))
        if not beside:
            return ""
        unpack = (unpack_command(self._root.url_of(name), self._root.url) for name in beside[:SHOWN_EXAMPLES])
        return f"; if they are in {shown(beside[0])}, unpack first: {' && '.join(unpack)}"

    def _lack(self, table: ImageTable, missing: Examples, rows: int) -> str:
        where = f"{table.url}: {missing.count:,} of {rows:,} images are not below {self._where}: {missing}"
        return where + (" (--json lists all)" if missing.count > SHOWN_EXAMPLES else "")


def is_read(image: str) -> bool:
    """Return whether files of this type are read, by the name of the file."""
    return _suffix(image) not in OTHER_PICTURES


def _what(split: str, examples: Examples, rows: int) -> str:
    return (
        f"{split}: {examples.count:,} of {counted(rows, 'image')} cannot be used (missing, empty or of a type that is "
        "not read)"
    )


def _suffix(image: str) -> str:
    return image.rpartition(".")[2].lower()
