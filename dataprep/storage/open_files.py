"""A bounded number of files kept open for reading, shared by all threads."""

from __future__ import annotations

import os
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dataprep.storage.messages import missing

# A reader of shards has two windows of blocks in flight; 64 leaves room under the usual limit of 1,024.
MAX_OPEN_FILES = 64


@dataclass(slots=True)
class _OpenFile:
    descriptor: int
    identity: tuple[int, int]
    """Device and inode, by which a file that was replaced is noticed and opened again."""
    readers: int = 0
    retired: bool = False


class OpenFiles:
    """Open descriptors by path. The least recently used is closed first; one in use is closed by its last reader."""

    def __init__(self) -> None:
        self._files: dict[str, _OpenFile] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._files)

    @contextmanager
    def reading(self, path: str) -> Iterator[tuple[int, int]]:
        """Yield a descriptor for `os.pread` and the file's size in bytes.

        Raises:
            FileNotFoundError: There is no such file.
            OSError: It cannot be opened.
        """
        try:
            status = os.stat(path)  # noqa: PTH116  a Path costs as much as the call
        except NotADirectoryError:
            raise missing(path) from None
        if not stat.S_ISREG(status.st_mode):
            raise missing(path)
        with self._lock:
            file = self._opened(path, (status.st_dev, status.st_ino))
            file.readers += 1
        try:
            yield file.descriptor, status.st_size
        finally:
            with self._lock:
                file.readers -= 1
                _close_if_done(file)

    def _opened(self, path: str, identity: tuple[int, int]) -> _OpenFile:
        file = self._files.pop(path, None)
        if file is not None and file.identity != identity:
            _retire(file)
            file = None
        if file is None:
            file = _OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), identity)
        self._files[path] = file
        while len(self._files) > MAX_OPEN_FILES:
            _retire(self._files.pop(next(iter(self._files))))
        return file


def _retire(file: _OpenFile) -> None:
    file.retired = True
    _close_if_done(file)


def _close_if_done(file: _OpenFile) -> None:
    if file.retired and file.readers == 0:
        os.close(file.descriptor)


def _close_all(files: dict[str, _OpenFile]) -> None:
    for file in files.values():
        os.close(file.descriptor)
    files.clear()
