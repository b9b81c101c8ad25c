"""Cache on a local disk for pieces of a bucket: bounded, shared by all processes of a machine, checked on every read.

<folder>/total           bytes of all entries; whoever changes it locks the file
<folder>/<sha256>.piece  magic, CRC32C, then the bytes; its modification time is that of its last use
<folder>/<random>.tmp    an entry that is being written, with its final size from the start
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dataprep.errors import UsageError
from dataprep.storage.checksums import crc32c_of

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
HEADER = struct.Struct("<4sI")
MAGIC = b"dpc1"
# Other files stay untouched, because a user may name a folder such as /tmp.
ENTRY_NAME = re.compile(r"[0-9a-f]{64}\.piece|[0-9a-f]{32}\.tmp")
EVICTED_SHARE = 0.1
"""Share of `max_bytes` that an eviction frees in addition to what it must: listing the folder costs 3 us an entry."""
STALE_S = 600.0
"""Age at which a temporary file is taken to be that of a dead process, seconds."""


class DiskCache:
    """Cache of bytes by key. A write that the disk refuses is not an error; its bytes are not kept.

    Args:
        folder: Folder of the entries, created if missing; it should hold nothing else.
        max_bytes: Size of all entries together, at most, whichever process writes them.

    Raises:
        UsageError: The folder cannot be created.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "total").touch()
        except OSError as error:
            if error.errno not in DISK_FULL:
                reason = error.strerror
                raise UsageError(f"{folder}: cannot hold a cache ({reason}); choose another folder") from error

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None; a damaged entry is removed."""
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
        """Keep bytes in place of the least recently used ones; another process sees all of them or nothing."""
        path = self._path(key)
        temporary = self._folder / f"{uuid.uuid4().hex}.tmp"
        try:
            if path.exists() or not self._reserve(temporary, HEADER.size + len(data)):
                return
            with temporary.open("r+b") as file:  # buffered, so that a partial write is continued
                file.write(HEADER.pack(MAGIC, crc32c_of(data)))
                file.write(data)
            temporary.rename(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()  # its bytes stay in the total until the next eviction, which counts anew

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.piece"

    def _reserve(self, temporary: Path, num_bytes: int) -> bool:
        """Make room and create a file of that size, so that other processes count it; False where it cannot fit."""
        if num_bytes > self._max_bytes:
            return False
        with self._locked_total() as file:
            text = file.read()
            # A total that is missing or damaged is counted anew.
            total = int(text) if text.isdigit() else self._max_bytes
            if total + num_bytes > self._max_bytes:
                total = self._evict(self._max_bytes - num_bytes)
            fits = total + num_bytes <= self._max_bytes
            file.seek(0)
            file.write(b"%020d" % (total + num_bytes if fits else total))
            file.flush()  # before the file exists: dying here leaves too large a total, which the next eviction mends
            if fits:
                with temporary.open("xb") as reserved:
                    reserved.truncate(num_bytes)
        return fits

    def _evict(self, most_bytes: int) -> int:
        """Remove the least recently used entries, some more than needed; return the bytes that are left."""
        entries, total, now_s = [], 0, time.time()
        for entry in os.scandir(self._folder):
            if not ENTRY_NAME.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(FileNotFoundError):  # another process found it damaged, or finished it
                status = entry.stat()
                if entry.name.endswith(".tmp") and now_s - status.st_mtime > STALE_S:
                    Path(entry.path).unlink()
                else:
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
        """Open and lock the file that holds the total, for one thread of one process at a time."""
        with (self._folder / "total").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, also when the process is killed
            yield file
