"""Pieces of a bucket on a local disk: bounded, shared by all processes of a machine, checked whenever one is read.

<folder>/total           bytes of all entries, under the lock of the file itself
<folder>/<sha256>.piece  magic, CRC32C, then the bytes; its time of change is that of its last use
<folder>/<random>.tmp    an entry being written, from the start as large as it will be
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dataprep.checksums import crc32c_of
from dataprep.errors import UsageError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
HEADER = struct.Struct("<4sI")
MAGIC = b"dpc1"
# Of the bound, once it is reached: to list the folder costs some 3 us an entry.
EVICTED_SHARE = 0.1
STALE_S = 600.0
"""A temporary file this old is a dead process's."""


class DiskCache:
    """Bytes by key. Whatever the disk refuses only means that nothing is kept.

    Args:
        folder: Made when missing; nothing else should be in it.
        max_bytes: Of all entries together, whoever writes them.

    Raises:
        UsageError: The folder cannot be made.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "total").touch()
        except OSError as error:
            if error.errno not in DISK_FULL:
                reason = error.strerror
                raise UsageError(f"{folder}: no cache can be kept there ({reason}); choose another folder") from error

    def get(self, key: str) -> bytes | None:
        """The bytes put under a key, or None. A damaged entry is removed."""
        path = self._path(key)
        try:
            with path.open("rb", buffering=0) as file:
                header, data = file.read(HEADER.size), file.readall()
                os.utime(file.fileno())
        except OSError:
            return None
        if header == HEADER.pack(MAGIC, crc32c_of(data)):
            return data
        with suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes, in the place of those longest unused. Another process sees all of them or nothing."""
        path = self._path(key)
        temporary = self._folder / f"{uuid.uuid4().hex}.tmp"
        try:
            if path.exists() or not self._reserve(temporary, HEADER.size + len(data)):
                return
            with temporary.open("r+b", buffering=0) as file:
                _write(file, HEADER.pack(MAGIC, crc32c_of(data)))
                _write(file, data)
            temporary.rename(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()  # what was counted for it is, until the next eviction counts anew

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.piece"

    def _reserve(self, temporary: Path, num_bytes: int) -> bool:
        """Make room, and a file of that size so that whoever counts meanwhile counts it; False where it cannot fit."""
        if num_bytes > self._max_bytes:
            return False
        with self._locked_total() as file:
            text = file.read()
            # A sum that is not there, or damaged, is counted anew.
            total = int(text) if text.isdigit() else self._max_bytes
            if total + num_bytes > self._max_bytes:
                total = self._evict(self._max_bytes - num_bytes)
            fits = total + num_bytes <= self._max_bytes
            file.seek(0)
            file.write(b"%020d" % (total + num_bytes if fits else total))
            file.flush()  # before there is a file: who dies here leaves too large a sum, which the next eviction mends
            if fits:
                with temporary.open("xb") as reserved:
                    reserved.truncate(num_bytes)
        return fits

    def _evict(self, most_bytes: int) -> int:
        """Remove what was longest unused, some more than needed; the bytes that are left."""
        entries, total, now_s = [], 0, time.time()
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # another process found it damaged, or finished it
                status = entry.stat()
                if entry.name.endswith(".tmp") and now_s - status.st_mtime > STALE_S:
                    Path(entry.path).unlink()
                elif entry.name.endswith((".tmp", ".piece")):
                    total += status.st_size
                    if entry.name.endswith(".piece"):
                        entries.append((status.st_mtime_ns, entry.path, status.st_size))
        if total <= most_bytes:
            return total
        for _, path, num_bytes in sorted(entries):
            if total <= most_bytes * (1 - EVICTED_SHARE):
                break
            Path(path).unlink(missing_ok=True)
            total -= num_bytes
        return total

    @contextmanager
    def _locked_total(self) -> Iterator[BinaryIO]:
        """The file that holds the sum, for one thread of one process at a time."""
        with (self._folder / "total").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # ends with the file, also when the process is killed
            yield file


def _write(file: BinaryIO, data: bytes) -> None:
    """All of it, also where the disk takes a part first."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
