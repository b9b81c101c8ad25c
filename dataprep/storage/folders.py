"""Folders below a root, opened component by component and never through a link.

Everything that is written or removed in a dataset goes through here. A dataset may be a stranger's, unpacked from an
archive with links to anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dataprep.errors import UsageError
from dataprep.storage.names import check_prefix

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Limits the memory for an image folder of very many classes; a folder that is forgotten costs one more fsync.
MAX_KNOWN_FOLDERS = 4096


class Folders:
    """Opens and creates folders below a root, which itself may be a link and need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._durable: set[str] = set()

    @contextlib.contextmanager
    def opened(self, name: str, *, make: bool = False, required: str = "") -> Iterator[int]:
        """Open a folder and yield its descriptor, for calls that take `dir_fd`.

        Args:
            name: Relative to the root; empty for the root itself.
            make: Create missing folders on the way to it, durably.
            required: A folder on the way that must exist: neither it nor the root is created then.

        Raises:
            FileNotFoundError: It does not exist, and `make` is False.
            NotADirectoryError: A component of the path is a file.
            UsageError: A component of the path is a link.
        """
        parts = check_prefix(name).split("/") if name else []
        below = "/".join(parts)
        makes_root = make and not is_within(below, required)
        folder = self._open_root(make=makes_root)
        try:
            path = ""
            for part in parts:
                path = f"{path}/{part}" if path else part
                inner = self._enter(folder, path, make=make and (makes_root or not is_within(required, path)))
                outer, folder = folder, inner
                _close(outer)
            yield folder
        finally:
            _close(folder)

    def around(self, path: Path, *, make: bool = False, required: str = "") -> contextlib.AbstractContextManager[int]:
        """Open, like `opened`, the folder that contains a path below the root. Raises UsageError for another path."""
        folder = path.parent
        if ".." in path.parts or not folder.is_relative_to(self.root):
            raise UsageError(f"{path} lies outside {self.root}; expected what was written below it")
        name = "" if folder == self.root else folder.relative_to(self.root).as_posix()
        return self.opened(name, make=make, required=required)

    def _open_root(self, *, make: bool) -> int:
        if make:
            missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
            for path in reversed(missing):
                path.mkdir(exist_ok=True)
                _sync_parent(path)
            if "" not in self._durable:
                _sync_parent(self.root)
                self._durable.add("")
        return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _enter(self, outer: int, path: str, *, make: bool) -> int:
        """Open, or create and open, the last component of a path in the folder `outer`."""
        leaf = path.rpartition("/")[2]
        made = False
        while True:
            try:
                inner = os.open(leaf, OPEN_FOLDER, dir_fd=outer)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(leaf, dir_fd=outer)
                made = True
                continue
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(leaf, outer):
                    raise UsageError(through_link(self.root, path)) from None
                raise
            break
        # An existing folder may have been made by a process that was killed before it synced the folder above.
        if make and (made or path not in self._durable):
            try:
                sync_folder(outer)
            except BaseException:
                _close(inner)
                raise
            if len(self._durable) >= MAX_KNOWN_FOLDERS:
                self._durable.clear()
            self._durable.add(path)
        return inner


def is_within(name: str, folder: str) -> bool:
    """Return whether a name is that of a folder or is below it; nothing is within the empty name."""
    return bool(folder) and f"{name}/".startswith(f"{folder}/")


def sync_folder(descriptor: int) -> None:
    """Make the names in a folder durable."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync folders.
        if error.errno != errno.EINVAL:
            raise


def sync_file(name: str, folder: int) -> int:
    """Make a file in a folder durable and return its size in bytes. Raises OSError, also for a link."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def through_link(root: Path, path: str) -> str:
    """Return the text of the error for a path that leads through a link."""
    return (
        f"{root / path} is a link, and nothing below {root} is written or removed through a link; "
        "pass the folder it points to instead, or remove the link"
    )


def _sync_parent(path: Path) -> None:
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # a folder that may be entered but not read cannot be opened, and so not be synced
    try:
        sync_folder(descriptor)
    finally:
        _close(descriptor)


def _close(folder: int) -> None:
    """Close a folder. An error is ignored: nothing was written through the descriptor, which is closed all the same."""
    with contextlib.suppress(OSError):
        os.close(folder)


def _is_link(leaf: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(leaf, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
