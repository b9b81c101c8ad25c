"""Errors of storages, one line that names the next step: texts for all kinds, and errors of system calls on a disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dataprep.errors import AccessError, FullError, StorageError
from dataprep.messages import counted, shell_words, shortened
from dataprep.storage.checksums import crc32c_hex

GO_ON = "run the same command again: it continues where it stopped"
READ_LESS_AT_ONCE = (
    "run the command again; if the connection is slow, have fewer requests at a time (reads_in_flight), "
    "or wait longer for each (deadline_s)"
)
"""Advice for a loader in a training run, whose deadlines are short, when a read gets no answer."""
PATH_CHARACTERS = 320
# Each process of a build writes up to 32 files at a time, which are removed again before the free space is measured.
FEW_INODES = 256
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
HINTS = {
    errno.EDQUOT: f"free some of your quota, of bytes or of files (quota -s shows both), and {GO_ON}",
    errno.EACCES: "give this user permission, or choose another folder",
    errno.EPERM: "give this user permission, or choose another folder",
    errno.EOPNOTSUPP: "the file system has neither hard links nor a rename that replaces nothing, so two builds could "
    "overwrite each other: choose a folder on another one, or a bucket by its gs:// URL",
    errno.EROFS: "choose a folder that can be written",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (sysctl fs.file-max)",
    errno.ENAMETOOLONG: "most file systems take 255 bytes a name and 4,096 a path: choose a shorter folder",
    errno.EFBIG: "the file system or a limit (ulimit -f) takes no larger file: choose smaller shards",
    errno.EXDEV: "a part of this folder is on another file system: choose a folder that is on one",
    errno.EISDIR: "a folder is where a file should be: move it away",
    errno.ENOTDIR: "a file is where a folder should be: move it away",
}


def missing(url: str) -> FileNotFoundError:
    """Make the error for an object that does not exist."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)


def bad_range(url: str, offset: int, num_bytes: int) -> str:
    return f"{url}: a range must not be negative, got {num_bytes:,} bytes from {offset:,}"


def ends_before(url: str, offset: int, num_bytes: int, size: int) -> str:
    """Return the text for an object that ends, at `size` bytes, before the end of the range."""
    return (
        f"{url}: bytes {offset:,} to {offset + num_bytes:,} were requested, but it ends at {size:,}; "
        "it is truncated, or not the file that was indexed: compare its size with the original's"
    )


def other_size(url: str, num_bytes: int, expected: int) -> str:
    """Return the text for an object whose size differs from the index."""
    return (
        f"{url}: {num_bytes:,} bytes, the index says {expected:,}: it is truncated or was replaced; restore it or "
        "build again, or where another tool wrote it, adopt it again with `overwrite`"
    )


def described_bytes(num_bytes: int, crc32c: str | None) -> str:
    """Describe an object as `5 bytes with CRC32C e3069283`; without the CRC32C if it is not known."""
    return counted(num_bytes, "byte") + (f" with CRC32C {crc32c_hex(crc32c)}" if crc32c else "")


def conflict(url: str, ours: tuple[int, str], theirs: tuple[int, str]) -> str:
    """Make the error for an existing object with other bytes; each side is its size in bytes and its CRC32C."""
    return (
        f"{url}: another object exists there already: {described_bytes(*theirs)}, expected {described_bytes(*ours)}; "
        "move it away and run the same command again, or choose another output"
    )


def decompressed(url: str) -> str:
    """Return the text for an object of Cloud Storage that is sent decompressed, and so without ranges."""
    down, up = (shell_words("gcloud", "storage", "cp", *pair) for pair in ((url, "FILE"), ("FILE", url)))
    return f"{url}: stored with Content-Encoding gzip, so no part of it can be read; store it without: {down} && {up}"


def too_large(url: str, num_bytes: int, max_bytes: int) -> str:
    return f"{url}: {num_bytes:,} bytes, expected at most {max_bytes:,}"


def spool_gone(spool: Path) -> str:
    """Return the text for a spool file that vanished while it was written."""
    return f"{spool}: the file that was being written is gone, another build has cleared up; {GO_ON}"


def build_gone(url: str) -> str:
    """Return the text for a build whose folder no longer exists."""
    return f"{url}: the folder of this build is gone, another one has finished it or taken its place; {GO_ON}"


def unsettled(url: str) -> str:
    """Return the text for a name that keeps being taken and freed."""
    return f"{url}: the object appears and disappears, because another build is clearing up; {GO_ON}"


class disk_errors:
    """Turn operating system errors inside the block into ours; FileNotFoundError passes unchanged.

    Args:
        path: The file or folder in use, for the message and to measure how much space is left there.

    Raises:
        AccessError: A permission is missing, or the file system is read-only.
        FullError: No space is left, or a quota or limit is reached.
        StorageError: Any other refusal: too many open files, a name too long, a broken disk.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise _explained(error, Path(self._path)) from error


def _explained(error: OSError, path: Path) -> StorageError:
    number = error.errno or errno.EIO
    name = shortened(str(path), PATH_CHARACTERS)
    if number == errno.ENOSPC:
        return FullError(f"{name}: {_full(path)}")
    hint = HINTS.get(number, f"check the disk and {GO_ON}")
    kind = AccessError if number in REFUSED else FullError if number in FULL else StorageError
    return kind(f"{name}: {os.strerror(number).lower()}; {hint}")


def _full(path: Path) -> str:
    """Return the error text for a full file system: no inodes or no space, and the advice."""
    for folder in (path, *path.parents):
        try:
            status = os.statvfs(folder)
        except OSError:
            continue
        resolved = Path(os.path.realpath(folder))
        disk = next(parent for parent in (resolved, *resolved.parents) if os.path.ismount(parent))
        free_bytes = status.f_bavail * status.f_frsize
        # A file system that makes inodes on demand reports 0 of 0 inodes, or as few as it has bytes.
        if status.f_favail < FEW_INODES and status.f_favail * status.f_blocks < status.f_bavail * status.f_files:
            return (
                f"no inodes left for more files ({status.f_favail:,} of {status.f_files:,} free in {disk}, and "
                f"{free_bytes:,} bytes); remove files there, or choose a format of fewer files, and {GO_ON}"
            )
        return f"no space left on device ({free_bytes:,} bytes free in {disk}); free some space and {GO_ON}"
    return f"no space left on device; free some space and {GO_ON}"
