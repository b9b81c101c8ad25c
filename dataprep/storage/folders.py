"""Folders and files below a root, opened component by component.

Every read, write or removal in a dataset goes through here. A dataset may be a stranger's, unpacked from an archive
with links to anywhere. Nothing is written or removed through a link, and reading follows only links that stay inside
the root. Each component is opened in the descriptor of the one before, without following links, so a change in the
meantime cannot lead elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from dataprep.errors import UsageError
from dataprep.storage.base import check_prefix
from dataprep.storage.errors import missing

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# For a folder on the way to another, which may forbid listing. Only Linux has O_PATH.
PASSED_ROOT = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
PASSED_FOLDER = PASSED_ROOT | os.O_NOFOLLOW
# A pipe where a file is expected must not make its reader wait.
READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LINKS_IN_LINKS = 40
Links: TypeAlias = Literal["inside", "in root", "anywhere"]
"""Links that are followed for reading. `inside`: those that stay in the root. `in root`: also links directly in the
root, to anywhere, for a user's original files. `anywhere`: all, for adopted data whose place the user named."""
T = TypeVar("T")
# Limits the memory for an image folder with very many classes; a forgotten folder costs one more fsync.
MAX_KNOWN_FOLDERS = 4096
# A reader of shards has two windows of blocks in flight; 64 leaves room under the usual limit of 1,024.
MAX_OPEN_FILES = 64
# Opening a file in a folder that is open already takes a third of the time of a walk from the root.
MAX_OPEN_FOLDERS = 64


class _LinkError(Exception):
    """The component at a position of a path is a link."""

    def __init__(self, position: int) -> None:
        self.position = position


class Folders:
    """Opens and creates folders below a root, which itself may be a link and need not exist yet.

    Args:
        root: The folder, without links.
        links: Links that are followed for reading.
        advice: What to do about a link that is not followed, for the error.
    """

    def __init__(self, root: Path, links: Links = "inside", advice: str = "") -> None:
        self.root, self.links = root, links
        self.advice = advice or "pass the folder it points to instead, or put a copy in the place of the link"
        self._durable: set[str] = set()

    def open(self, name: str, flags: int = READ_FILE) -> int:
        """Open a file, or with other flags a folder; the root has an empty name. Raises UsageError for a link that is
        not followed, and OSError."""
        return self._reached(name, lambda leaf, folder: os.open(leaf, flags, dir_fd=folder))

    def status(self, name: str) -> os.stat_result:
        """Return the status of a file or folder. Raises UsageError for a link that is not followed, and OSError."""
        return self._reached(name, _status)

    def _reached(self, name: str, act: Callable[[str, int | None], T]) -> T:
        """Call a function with the last component of a path and its folder; it raises OSError for a link."""
        if self.links == "anywhere":
            path = f"{self.root}/{name}"
            try:
                return act(path, None)
            except OSError:
                if not _is_link(path, None):
                    raise
                return act(os.path.realpath(path), None)
        root, parts = self.root, name.split("/") if name else ["."]
        for _ in range(LINKS_IN_LINKS):
            try:
                return _walked(root, parts, act)
            except _LinkError as link:
                above, rest = parts[: link.position + 1], parts[link.position + 1 :]
            real = Path(os.path.realpath(root.joinpath(*above)))
            if real.is_relative_to(root):
                parts = [*real.relative_to(root).parts, *rest] or ["."]
            elif self._may_lead_to(real, root, above):
                root, parts = (real, rest) if rest else (real.parent, [real.name])
            else:
                raise UsageError(f"{root.joinpath(*above)} is a link out of {root}, to {real}; {self.advice}")
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def _may_lead_to(self, real: Path, root: Path, link: Sequence[str]) -> bool:
        """Return whether a link may lead out of the root. In a snapshot in the cache of the Hub's tools, files are
        links to the blobs of the same repository."""
        if self.links != "in root":
            return False
        if root == self.root and len(link) == 1:
            return True
        snapshot = next((each for each in (root, *root.parents) if each.parent.name == "snapshots"), None)
        blobs = snapshot and snapshot.parent.parent / "blobs"
        return blobs is not None and real.parent == blobs and not blobs.is_symlink()

    @contextlib.contextmanager
    def opened(self, name: str, *, make: bool = False, required: str = "") -> Iterator[int]:
        """Open a folder by its name below the root, empty for the root itself, and yield its descriptor, for calls that
        take `dir_fd`. Raises FileNotFoundError, NotADirectoryError if a component of the path is a file, and UsageError
        for a link.

        Args:
            make: Create missing folders on the way to it, durably.
            required: A folder on the way that must exist: neither it nor the root is created then.
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
            raise UsageError(f"{path} is outside {self.root}; expected a path below it")
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
                    raise UsageError(
                        f"{self.root / path} is a link, and nothing below {self.root} is written or removed through a "
                        "link; pass the folder it points to instead, or remove the link"
                    ) from None
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
    """Return whether a name is the folder itself or below it; nothing is within the empty name."""
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


def _sync_parent(path: Path) -> None:
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # a folder that may be entered but not read cannot be opened, so it cannot be synced
    try:
        sync_folder(descriptor)
    finally:
        _close(descriptor)


def _close(folder: int) -> None:
    """Close a folder and ignore errors: nothing was written through the descriptor, and it is closed in any case."""
    with contextlib.suppress(OSError):
        os.close(folder)


def _walked(root: Path, parts: Sequence[str], act: Callable[[str, int | None], T]) -> T:
    """Call a function with the last of some components and the folder that the others lead to. Raises _LinkError."""
    position, last = 0, len(parts) - 1
    folder = os.open(root, PASSED_ROOT)
    try:
        while position < last:
            inner = os.open(parts[position], PASSED_FOLDER, dir_fd=folder)
            os.close(folder)
            folder, position = inner, position + 1
        return act(parts[last], folder)
    except OSError:
        if _is_link(parts[position], folder):
            raise _LinkError(position) from None
        raise
    finally:
        os.close(folder)


def _status(leaf: str, folder: int | None) -> os.stat_result:
    found = os.stat(leaf, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found


def _is_link(leaf: str, folder: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(leaf, dir_fd=folder, follow_symlinks=False).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


@dataclass(slots=True)
class _OpenFile:
    descriptor: int
    identity: tuple[int, int]
    """Device and inode; if they change, the file was replaced and is opened again."""
    readers: int = 0
    retired: bool = False


class _Reading:
    """Context of one reader of an open file; a class, since a generator costs a range read 2 us more."""

    __slots__ = ("_file", "_lock", "_status")

    def __init__(self, lock: threading.Lock, file: _OpenFile, status: os.stat_result) -> None:
        self._lock, self._file, self._status = lock, file, status

    def __enter__(self) -> tuple[int, os.stat_result]:
        file, status = self._file, self._status
        # The file may have been replaced between stat and open.
        is_same = file.identity == (status.st_dev, status.st_ino)
        return file.descriptor, status if is_same else os.fstat(file.descriptor)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._file.readers -= 1
            _close_if_done(self._file)


def close_when_collected(owner: object, close: Callable[..., object], *args: object) -> None:
    """Call `close(*args)` when the owner is garbage-collected, but not when Python ends: remaining threads may still
    read through these descriptors, and the system closes them anyway."""
    weakref.finalize(owner, close, *args).atexit = False


class OpenFiles:
    """Open descriptors by name. The least recently used is closed first; one in use is closed by its last reader."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._files: dict[str, _OpenFile] = {}
        self._passed: dict[str, int] = {}
        """Descriptors of folders by name, the least recently used first."""
        self._lock = threading.Lock()
        close_when_collected(self, _close_both, self._files, self._passed)

    def reading(self, name: str) -> _Reading:
        """Open a context with a descriptor for `os.pread`, and the file's status before it was opened.

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
        return _Reading(self._lock, file, status)

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
        """Open a file in its folder; start from the root again if that folder was replaced."""
        above, _, leaf = name.rpartition("/")
        try:
            descriptor = os.open(leaf, READ_FILE, dir_fd=self._folder(above))
        except OSError as error:
            if error.errno != errno.ELOOP:  # not a link, so the folder may have been replaced
                close_all(self._passed)
            return self._folders.open(name)
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) == identity:
            return descriptor
        os.close(descriptor)
        close_all(self._passed)
        return self._folders.open(name)

    def _folder(self, name: str) -> int:
        """Return a descriptor of a folder. Raises UsageError for a link that leads out of the root, and OSError."""
        folder = self._passed.pop(name, None)
        if folder is None and name:
            above, _, leaf = name.rpartition("/")
            with suppress(OSError):  # a link, or a folder above that was replaced
                folder = os.open(leaf, PASSED_FOLDER, dir_fd=self._folder(above))
        if folder is None:
            folder = self._folders.open(name, PASSED_FOLDER)
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


def close_all(descriptors: dict[Any, int]) -> None:
    """Close the descriptors, and forget them."""
    for descriptor in descriptors.values():
        os.close(descriptor)
    descriptors.clear()


def _close_both(files: dict[str, _OpenFile], folders: dict[str, int]) -> None:
    close_all({name: file.descriptor for name, file in files.items()})
    files.clear()
    close_all(folders)
