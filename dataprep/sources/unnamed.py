"""Pictures on a disk that lie in the folders of a table's pictures, and that no row of the table names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from dataprep.dataset.paths import OTHER_PICTURES
from dataprep.messages import counted, shown
from dataprep.sources.keys import IMAGE_SUFFIXES, is_hidden
from dataprep.sources.pictures import listed
from dataprep.storage.base import Storage

MAX_NAMED = 100_000
"""Number of pictures up to which a table is compared with its folders: their names take about 15 MB of memory."""
MAX_LISTED = 2 * MAX_NAMED
"""Number of files up to which the folders are listed."""


class UnnamedPictures:
    """Compares the pictures that rows name with those in the same folders.

    Args:
        root: The source, on a disk.
    """

    def __init__(self, root: Storage) -> None:
        self._root = root
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        """Take the name below the source of a picture that a row names."""
        if len(self._names) <= MAX_NAMED:
            self._names.add(name)

    def line(self) -> str:
        """Return a line about the pictures that no row names; empty if there are none, or too many to compare."""
        entries = list(islice(self._entries(), MAX_LISTED + 1)) if len(self._names) <= MAX_NAMED else []
        if len(entries) > MAX_LISTED:
            return ""
        named = {name.lower() for name in self._names}  # as keys, and some disks, ignore case
        unnamed = sorted(name for name in entries if name and name.lower() not in named)
        if not unnamed:
            return ""
        verb, them = ("is", "it is") if len(unnamed) == 1 else ("are", "they are")
        return (
            f"note: {counted(len(unnamed), 'picture')} beside those of the table {verb} in no row, so {them} left out: "
            f"{listed([*map(shown, unnamed)])}"
        )

    def _entries(self) -> Iterator[str]:
        """Yield the name below the source of each picture in the folders of those that rows name; an empty name for
        anything else in them."""
        for folder in sorted({name.rpartition("/")[0] for name in self._names}):
            with suppress(OSError), os.scandir(self._root.url_of(folder)) as entries:
                for entry in entries:
                    suffix = entry.name.rpartition(".")[2].lower()
                    is_picture = suffix in IMAGE_SUFFIXES | OTHER_PICTURES and not is_hidden((entry.name,))
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    yield name if is_picture and entry.is_file() else ""
