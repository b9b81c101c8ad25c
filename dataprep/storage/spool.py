"""Local files that are being written, each under an exclusive lock of its writer, so that the dead leave no litter."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import stat
import tempfile
import threading
import uuid
import weakref
from multiprocessing.util import Finalize
from pathlib import Path, PurePosixPath

# Enough to recognise a shard; with 32 digits more it stays under 255 bytes in any script.
NAME_CHARACTERS = 48
TEMPORARY_PREFIX = "dataprep-spool-"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_making = threading.Lock()  # of the process's folder: a second one would give up its locks when it is dropped


class SpoolFolder:
    """Makes spool files in one folder, from any number of threads. Files of other writers may lie beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._locks: dict[Path, int] = {}
        self._guard = threading.Lock()  # of self._locks: a descriptor closed by one thread may be another's next file
        weakref.finalize(self, _close_all, self._locks)

    def create(self, name: str) -> Path:
        """A new empty file, locked until `discard`, until this object is gone or until the process ends.

        Args:
            name: what it will become; only for people who look into the folder.

        Raises:
            OSError: The file cannot be made.
        """
        self._close_removed()
        while True:
            path = self.folder / f"{PurePosixPath(name).name[-NAME_CHARACTERS:]}-{uuid.uuid4().hex}"
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # a cleaning up took the folder in between
            _lock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                with self._guard:
                    self._locks[path] = descriptor
                return path
            os.close(descriptor)  # a cleaning up took the file before it was locked

    def discard(self, path: Path) -> None:
        """Remove a spool file, if it is still there, and give up its lock."""
        path.unlink(missing_ok=True)
        with self._guard:
            descriptor = self._locks.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def remove_stale(self) -> int:
        """Remove the files whose writers are dead; the number of them.

        Where the file system has no locks nothing is removed: who is alive cannot be told.
        """
        try:
            paths = [path for path in self.folder.iterdir() if path.is_file() and not path.is_symlink()]
        except FileNotFoundError:
            return 0
        return sum(_remove_if_unlocked(path) for path in paths)

    def _close_removed(self) -> None:
        with self._guard:
            for path, descriptor in list(self._locks.items()):
                if os.fstat(descriptor).st_nlink == 0:
                    del self._locks[path]
                    os.close(descriptor)


def process_spools() -> SpoolFolder:
    """This process's folder in the machine's temporary folder; removed when the process ends in order."""
    with _making:
        return _process_spools(os.getpid())


def remove_stale_spools() -> int:
    """Remove what dead processes of this user left in the machine's temporary folder; the number of files."""
    return sum(_remove_stale_folder(folder) for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"))


def _remove_if_unlocked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int) -> bool:
    """Whether the lock is held; False where another holds it or the file system has none."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _close_all(locks: dict[Path, int]) -> None:
    for descriptor in locks.values():
        os.close(descriptor)
    locks.clear()


@functools.lru_cache(maxsize=1)
def _process_spools(_pid: int) -> SpoolFolder:  # a forked process makes its own
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
    # Unlike atexit, this is run in the processes of a multiprocessing pool as well.
    Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=0)
    spools = SpoolFolder(folder)
    spools.create("in-use")  # so that nobody removes the folder while this process lives
    return spools


def _remove_stale_folder(folder: Path) -> int:
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return 0
    # Anyone may put a folder, or a link to one, into the temporary folder.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return 0
    removed = SpoolFolder(folder).remove_stale()
    with contextlib.suppress(OSError):  # in use
        folder.rmdir()
    return removed
