"""Temporary files for what does not fit into memory while a command runs.

Such a file has no name: the system removes it when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from typing import NamedTuple

from dataprep.errors import FullError
from dataprep.storage.disk_errors import FULL, disk_errors


class Extent(NamedTuple):
    """Place of a piece of data in a scratch file."""

    offset: int
    num_bytes: int


class ScratchFile:
    """A temporary file that grows at its end and is read anywhere, by one process.

    Args:
        content: What is written, for messages, e.g. `the list of samples`.
        expected_bytes: Bytes that will be written, if known, for messages.
    """

    def __init__(self, content: str, expected_bytes: int = 0) -> None:
        self._content, self._expected_bytes = content, expected_bytes
        self._descriptor = -1
        self._end = 0

    def append(self, data: bytes | memoryview) -> Extent:
        """Write a piece of data.

        Raises:
            StorageError: The temporary folder cannot be written to; the error names it and how to choose another.
        """
        view = memoryview(data).cast("B")
        place = Extent(self._end, len(view))
        folder = tempfile.gettempdir()
        try:
            if self._descriptor < 0:
                with tempfile.TemporaryFile(prefix="dataprep-") as file:
                    self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
            written = 0
            while written < len(view):
                written += os.pwrite(self._descriptor, view[written:], self._end + written)
        except OSError as error:
            if error.errno in FULL:
                raise FullError(self._full(folder, len(view))) from error
            with disk_errors(f"{folder} (choose another temporary folder with TMPDIR)"):
                raise
        self._end += len(view)
        return place

    def read(self, place: Extent) -> bytes:
        """Return a piece of data. Raises StorageError if the disk does not return it."""
        if self._descriptor < 0:
            raise ValueError(f"nothing was written yet, expected {place}")
        pieces, offset, left = [], place.offset, place.num_bytes
        with disk_errors(tempfile.gettempdir()):
            while left:
                piece = os.pread(self._descriptor, left, offset)
                if not piece:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                pieces.append(piece)
                offset, left = offset + len(piece), left - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _full(self, folder: str, num_bytes: int) -> str:
        free = ""
        with suppress(OSError):
            free = f" ({shutil.disk_usage(folder).free:,} bytes free)"
        due = self._end + num_bytes
        needed = f"about {self._expected_bytes:,}" if self._expected_bytes > due else f"more than {due:,}"
        return (
            f"{folder}: no space left on device{free}: {self._content} needs {needed} bytes there while it is planned; "
            "free some space, or choose another temporary folder with TMPDIR=FOLDER, and run the same command again"
        )
