"""Local files that are not published (yet): spool files, and scratch files that no other process sees.

A spool file is locked by its writer, so that files of dead processes can be removed. Its name contains the writer's
host, because on network file systems other hosts may not see the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dataprep.errors import FullError, StorageError
from dataprep.storage.errors import FULL, disk_errors, missing
from dataprep.storage.folders import Folders, close_all, close_when_collected

# Enough to recognise a shard; together with 32 digits it has fewer than 255 bytes in any script.
NAME_CHARACTERS = 48
HOST_DIGITS = 8
"""Number of the 32 digits at the end of a spool file's name that identify its host; the others are random."""
TEMPORARY_PREFIX = "dataprep-spool-"
_IN_USE = "in-use"
"""Name of a file that a process keeps locked as long as it needs the folder."""
MOST_TRIES = 100
"""Attempts to create a file, because other processes may remove its folder as stale each time."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_making = threading.Lock()  # only one object for the process's folder: a second one, when dropped, would release locks


class SpoolFolder:
    """Creates spool files in one folder, from any number of threads. Other writers may have files in it.

    Args:
        name: Name of the folder, relative to the root of `folders`; it is created if it is missing.
        required: A folder above it that must exist and is not created: without it nothing can be spooled any more.
    """

    def __init__(self, folders: Folders, name: str, required: str = "") -> None:
        self._folders, self._name, self._required = folders, name, required
        self.folder = folders.root / name
        self._locks: dict[Path, int] = {}
        self._guard = threading.Lock()  # for self._locks: a descriptor closed by one thread may be another's next file
        close_when_collected(self, close_all, self._locks)

    def create(self, name: str) -> Path:
        """Create an empty file, locked until `discard`, until this object is gone or until the process ends. Its name
        begins as its final one does, for people who look into the folder.

        Raises FileNotFoundError if the folder that must exist is gone, StorageError if the file system cannot create
        folders, e.g. /proc, UsageError if a link is on the way, and OSError.
        """
        self._close_removed()
        for _ in range(MOST_TRIES):
            leaf = f"{PurePosixPath(name).name[-NAME_CHARACTERS:]}-{_host_digits()}{uuid.uuid4().hex[HOST_DIGITS:]}"
            try:
                with self._folders.opened(self._name, make=True, required=self._required) as folder:
                    descriptor = os.open(leaf, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
            except FileNotFoundError:
                if self._required and not (self._folders.root / self._required).is_dir():
                    raise
                continue  # another process removed the folder as stale in the meantime
            take_lock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                path = self.folder / leaf
                with self._guard:
                    self._locks[path] = descriptor
                return path
            os.close(descriptor)  # another process removed the file as stale before it was locked
        raise StorageError(f"{self.folder}: no folder can be created here; choose another place")

    def sync(self, path: Path) -> int | None:
        """Make a spool file durable and return its size in bytes; None for a file that is not one of this object's.

        The descriptor was opened before the first byte was written, so the system reports every write error of the file
        to it, even if another descriptor wrote, or got the report before. A new descriptor would miss errors that were
        reported already. Raises OSError for such an error, and FileNotFoundError if the file was removed as stale.
        """
        with self._guard:
            descriptor = self._locks.get(path)
        if descriptor is None:
            return None
        os.fsync(descriptor)
        status = os.fstat(descriptor)
        if not status.st_nlink:
            raise missing(str(path))
        return status.st_size

    def discard(self, path: Path) -> None:
        """Remove a spool file, if it still exists, and release its lock. If it cannot be removed, it becomes stale."""
        with contextlib.suppress(OSError), self._folders.around(path) as folder:
            os.unlink(path.name, dir_fd=folder)
        with self._guard:
            descriptor = self._locks.pop(path, None)
        if descriptor is not None:
            with contextlib.suppress(OSError):  # the file was synced before it was published
                os.close(descriptor)

    def remove_stale(self) -> int:
        """Remove the files of this host whose writers are dead and return their number; files with other names are
        kept.

        On a file system without locks nothing is removed, because nothing shows which writers are alive. Raises
        UsageError if a link is on the way to the folder.
        """
        try:
            with self._folders.opened(self._name) as folder:
                with os.scandir(folder) as entries:
                    leaves = [entry.name for entry in entries if _is_spool_file(entry)]
                return sum(_remove_if_unlocked(leaf, folder) for leaf in leaves)
        except FileNotFoundError:
            return 0

    def _close_removed(self) -> None:
        with self._guard:
            for path, descriptor in list(self._locks.items()):
                if os.fstat(descriptor).st_nlink == 0:
                    del self._locks[path]
                    os.close(descriptor)


def process_spools() -> SpoolFolder:
    """Return this process's folder in the machine's temporary folder; it is removed when the process ends normally."""
    with _making:
        return _process_spools(os.getpid())


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder in the machine's temporary folder and remove it at the end, with folders of dead processes."""
    remove_stale_spools()
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
    spools = SpoolFolder(Folders(folder), "")
    in_use = spools.create(_IN_USE)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        spools.discard(in_use)


def remove_stale_spools() -> int:
    """Remove files of this user's dead processes from the machine's temporary folder; return their number."""
    return sum(_remove_stale_folder(folder) for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"))


def _is_spool_file(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a spool file of this host."""
    digits = rf"{_host_digits()}[0-9a-f]{{{32 - HOST_DIGITS}}}"
    named = re.fullmatch(rf".{{1,{NAME_CHARACTERS}}}-{digits}", entry.name, re.DOTALL)
    return named is not None and entry.is_file(follow_symlinks=False)


def _host_digits() -> str:
    """Return hexadecimal digits for this host, the same after a restart."""
    return _digits_of(os.uname().nodename)


@functools.lru_cache(maxsize=1)
def _digits_of(hostname: str) -> str:
    machine = b""  # hosts may have the same name, and containers have no id
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_bytes()
    return hashlib.sha256(hostname.encode() + machine).hexdigest()[:HOST_DIGITS]


def _remove_if_unlocked(leaf: str, folder: int) -> bool:
    try:
        descriptor = os.open(leaf, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return False
    try:
        if not take_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(leaf, dir_fd=folder)
        return True
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, operation: int) -> bool | None:
    """Take a lock and return whether this process holds it now; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


@functools.lru_cache(maxsize=1)
def _process_spools(_pid: int) -> SpoolFolder:  # a forked process makes its own
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
    # Unlike atexit, this is run in the processes of a multiprocessing pool as well.
    Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=0)
    spools = SpoolFolder(Folders(folder), "")
    spools.create(_IN_USE)
    return spools


def _remove_stale_folder(folder: Path) -> int:
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return 0
    # Anyone may put a folder, or a link to one, into the temporary folder.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return 0
    removed = SpoolFolder(Folders(folder), "").remove_stale()
    if removed and not any(folder.glob(f"{_IN_USE}-*")):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # in use
        folder.rmdir()
    return removed


class Extent(NamedTuple):
    """Place of a piece of data in a scratch file."""

    offset: int
    num_bytes: int


class ScratchFile:
    """A temporary file of one process: append-only, readable at any position. For messages, it has the name of its
    content, e.g. `the list of samples`, and the bytes that will be written, if they are known."""

    def __init__(self, content: str, expected_bytes: int = 0) -> None:
        self._content, self._expected_bytes = content, expected_bytes
        self._descriptor = -1
        self._end = 0

    def append(self, data: bytes | memoryview) -> Extent:
        """Write a piece of data. Raises StorageError, which names the temporary folder and how to choose another, if it
        cannot be written to."""
        view = memoryview(data).cast("B")
        place = Extent(self._end, len(view))
        folder = tempfile.gettempdir()
        try:
            if self._descriptor < 0:
                with tempfile.TemporaryFile(prefix="dataprep-") as file:
                    self._descriptor = os.dup(file.fileno())
                close_when_collected(self, os.close, self._descriptor)
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
