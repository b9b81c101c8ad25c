"""Disk cache for pieces of a bucket's objects: bounded, shared by a user's processes, checked on every read.

The folder is private, mode 0700. In a folder that others may read or write, such as /tmp, the cache is in one below it,
`dataprep-<uid>`. Everything goes through a descriptor of the folder, and no link is followed.

<folder>/total           bytes of all entries; a process that changes it locks the file
<folder>/<sha256>.piece  magic, CRC32C, then the bytes; its modification time is its last use
<folder>/<random>.tmp    an entry that is being written, with its final size from the start
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import struct
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from dataprep.errors import UsageError
from dataprep.storage.checksums import crc32c_of
from dataprep.storage.folders import close_when_collected

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
HEADER = struct.Struct("<4sI")
MAGIC = b"dpc1"
# Other files stay untouched, because the user may have named a folder with files of their own.
ENTRY_NAME = re.compile(r"[0-9a-f]{64}\.piece|[0-9a-f]{32}\.tmp")
EVICTED_SHARE = 0.1
"""Additional share of `max_bytes` that an eviction frees, because listing the folder costs 3 us an entry."""
STALE_S = 600.0
"""Age at which a temporary file counts as left by a dead process, seconds."""
LOCK_S = 10.0
"""Longest wait for the lock; a healthy process holds it for less than a second."""
LOCK_POLL_S = 0.005


def user_cache() -> Path:
    """Return the folder of dataprep in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dataprep"


class DiskCache:
    """Cache of bytes by key. If the disk refuses a write, the bytes are not kept, without an error.

    Args:
        folder: Folder of the entries, created if missing; it should hold nothing else.
        max_bytes: Maximum size of all entries together, whichever process writes them.

    Raises:
        UsageError: The folder cannot be created, or belongs to another user.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._max_bytes, self._given_up = max_bytes, False
        try:
            self.folder, self._descriptor = private_folder(folder)
        except OSError as error:
            if error.errno not in DISK_FULL:
                reason = error.strerror
                raise UsageError(f"{folder}: cannot hold a cache ({reason}); choose another folder") from error
            self.folder, self._descriptor, self._given_up = folder, -1, True
            return
        close_when_collected(self, os.close, self._descriptor)

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None; a damaged entry is removed."""
        if self._given_up:
            return None
        name = _name(key)
        try:
            with self._opened(name, os.O_RDONLY) as file:
                header, data = file.read(HEADER.size), file.read()
                os.utime(file.fileno())
        except OSError:
            return None
        if header == HEADER.pack(MAGIC, crc32c_of(data)):
            return data
        self._remove(name)
        return None

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes, evicting the least recently used ones; another process sees all of the bytes or nothing."""
        if self._given_up:
            return
        name, temporary = _name(key), f"{uuid.uuid4().hex}.tmp"
        try:
            if os.access(name, os.F_OK, dir_fd=self._descriptor, follow_symlinks=False) or not self._reserve(
                temporary, HEADER.size + len(data)
            ):
                return
            with self._opened(temporary, os.O_WRONLY) as file:
                file.write(HEADER.pack(MAGIC, crc32c_of(data)))
                file.write(data)
            os.rename(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except OSError:
            self._remove(temporary)  # its bytes stay in the total until the next eviction, which counts again

    def _opened(self, name: str, flags: int) -> BinaryIO | FileIO:
        """Open a file of the folder, without following a link."""
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor)
        if flags == os.O_RDONLY:
            return open(descriptor, "rb", buffering=0)
        return open(descriptor, "r+b" if flags & os.O_RDWR else "wb")  # buffered, so that a partial write is continued

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def _reserve(self, temporary: str, num_bytes: int) -> bool:
        """Make room and create a file of that size, so that other processes count it; False if it cannot fit."""
        if num_bytes > self._max_bytes:
            return False
        with self._locked_total() as file:
            if file is None:
                return False
            text = file.read()
            # A total that is missing or damaged is counted again.
            total = int(text) if text.isdigit() else self._max_bytes
            if total + num_bytes > self._max_bytes:
                total = self._evict(self._max_bytes - num_bytes)
            fits = total + num_bytes <= self._max_bytes
            file.seek(0)
            file.write(b"%020d" % (total + num_bytes if fits else total))
            file.flush()  # before the file exists: dying here leaves too large a total until the next eviction
            if fits:
                with self._opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as reserved:
                    reserved.truncate(num_bytes)
        return fits

    def _evict(self, most_bytes: int) -> int:
        """Remove the least recently used entries, some more than needed; return the bytes that are left."""
        entries, total, now_s = [], 0, time.time()
        for entry in os.scandir(self._descriptor):
            if not ENTRY_NAME.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(FileNotFoundError):  # another process found it damaged, or finished it
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".tmp") and now_s - status.st_mtime > STALE_S:
                    self._remove(entry.name)
                else:
                    total += status.st_size
                    if entry.name.endswith(".piece"):
                        entries.append((status.st_mtime_ns, entry.name, status.st_size))
        if total <= most_bytes:
            return total
        for _, name, num_bytes in sorted(entries):
            if total <= most_bytes * (1 - EVICTED_SHARE):
                break
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._descriptor)
            total -= num_bytes
        return total

    @contextmanager
    def _locked_total(self) -> Iterator[BinaryIO | FileIO | None]:
        """Open and lock the file that holds the total, for one thread of one process at a time; None after LOCK_S."""
        with self._opened("total", os.O_RDWR | os.O_CREAT) as file:
            yield file if self._is_locked(file) else None  # released with the file, also when the process is killed

    def _is_locked(self, file: BinaryIO | FileIO) -> bool:
        """Lock a file; if another process holds its lock for too long, warn and stop using the cache."""
        until_s = time.monotonic() + LOCK_S
        while not self._given_up:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() < until_s:
                    time.sleep(LOCK_POLL_S)
                    continue
            if not self._given_up:
                self._given_up = True
                warnings.warn(
                    f"{self.folder}/total: another process has held its lock for {LOCK_S:g} s; this loader continues "
                    "without the cache; end that process, or choose another folder",
                    UserWarning,
                    stacklevel=2,
                )
        return False


def _name(key: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()}.piece"


def private_folder(folder: Path) -> tuple[Path, int]:
    """Open the folder of a cache, and create it if it is missing: the named folder if it is private, else one below it.
    Raises OSError if the folder cannot be created, or belongs to another user."""
    for place in (folder, folder / f"dataprep-{os.geteuid()}"):
        with suppress(FileExistsError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(0o700)
        follow = 0 if place == folder else os.O_NOFOLLOW  # the folder that the user named may be a link
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow)
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o7077:
            return place, descriptor
        os.close(descriptor)
    raise PermissionError(errno.EPERM, f"{place.name} in it belongs to another user, or others may use it")
