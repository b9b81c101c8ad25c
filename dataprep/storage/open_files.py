"""A bounded number of files kept open for reading, shared by all threads."""

from __future__ import annotations

import errno
import os
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dataprep.storage.folders import PASSED_FOLDER, READ_FILE, Folders
from dataprep.storage.messages import missing

# A reader of shards has two windows of blocks in flight; 64 leaves room under the usual limit of 1,024.
MAX_OPEN_FILES = 64
# Opening a file in a folder that is open already takes a third of the time of a walk from the root.
MAX_OPEN_FOLDERS = 64


@dataclass(slots=True)
class _OpenFile:
    descriptor: int
    identity: tuple[int, int]
    """Device and inode, by which a file that was replaced is noticed and opened again."""
    readers: int = 0
    retired: bool = False


class OpenFiles:
    """Open descriptors by name. The least recently used is closed first; one in use is closed by its last reader.

    Args:
        folders: Opens the files.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._files: dict[str, _OpenFile] = {}
        self._passed: dict[str, int] = {}
        """Descriptors of folders by name, the least recently used first."""
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._files, self._passed)

    @contextmanager
    def reading(self, name: str) -> Iterator[tuple[int, os.stat_result]]:
        """Yield a descriptor for `os.pread`, and the file's status before it was opened.

        Raises:
            FileNotFoundError: There is no such file.
            UsageError: A link on the way leads out of the root.
            OSError: It cannot be opened.
        """
        path = f"{self._folders.root}/{name}"
        try:
            status = os.stat(path)  # noqa: PTH116  a Path costs as much as the call
        except (FileNotFoundError, NotADirectoryError):
            with suppress(OSError):
                self._folders.status(name)  # raises UsageError for a link out of the root
            raise missing(path) from None
        if not stat.S_ISREG(status.st_mode):
            raise missing(path)
        with self._lock:
            file = self._opened(name, (status.st_dev, status.st_ino))
            file.readers += 1
        try:
            # Another file may have taken the place of the one that was looked at before this was opened.
            is_same = file.identity == (status.st_dev, status.st_ino)
            yield file.descriptor, status if is_same else os.fstat(file.descriptor)
        finally:
            with self._lock:
                file.readers -= 1
                _close_if_done(file)

    def _opened(self, name: str, identity: tuple[int, int]) -> _OpenFile:
        file = self._files.pop(name, None)
        if file is not None and file.identity != identity:
            _retire(file)
            file = None
        if file is None:
            descriptor = self._open(name, identity)
            opened = os.fstat(descriptor)
            file = _OpenFile(descriptor, (opened.st_dev, opened.st_ino))
        self._files[name] = file
        while len(self._files) > MAX_OPEN_FILES:
            _retire(self._files.pop(next(iter(self._files))))
        return file

    def _open(self, name: str, identity: tuple[int, int]) -> int:
        """Open a file in its folder; from the root again if that folder is no longer the one of this name."""
        above, _, leaf = name.rpartition("/")
        try:
            descriptor = os.open(leaf, READ_FILE, dir_fd=self._folder(above))
        except OSError as error:
            if error.errno != errno.ELOOP:  # no link, so perhaps a folder that was replaced
                _close_folders(self._passed)
            return self._folders.open_file(name)
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) == identity:
            return descriptor
        os.close(descriptor)
        _close_folders(self._passed)
        return self._folders.open_file(name)

    def _folder(self, name: str) -> int:
        """Return a descriptor of a folder. Raises UsageError for a link that leads out of the root, and OSError."""
        folder = self._passed.pop(name, None)
        if folder is None:
            above, _, leaf = name.rpartition("/")
            try:
                folder = os.open(leaf, PASSED_FOLDER, dir_fd=self._folder(above)) if name else self._folders.pass_to("")
            except OSError:  # a link, or a folder above that was replaced
                folder = self._folders.pass_to(name)
        self._passed[name] = folder
        if len(self._passed) > MAX_OPEN_FOLDERS:
            os.close(self._passed.pop(next(iter(self._passed))))
        return folder


def _retire(file: _OpenFile) -> None:
    file.retired = True
    _close_if_done(file)


def _close_if_done(file: _OpenFile) -> None:
    if file.retired and file.readers == 0:
        os.close(file.descriptor)


def _close_folders(folders: dict[str, int]) -> None:
    for folder in folders.values():
        os.close(folder)
    folders.clear()


def _close_all(files: dict[str, _OpenFile], folders: dict[str, int]) -> None:
    for file in files.values():
        os.close(file.descriptor)
    files.clear()
    _close_folders(folders)
