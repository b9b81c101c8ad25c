"""Errors of the operating system about a disk, turned into one line that names the next step."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataprep.errors import AccessError, FullError, StorageError
from dataprep.messages import shortened
from dataprep.storage.messages import GO_ON

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


@contextmanager
def disk_errors(path: Path | str) -> Iterator[None]:
    """Turn errors of the operating system inside the block into ours; FileNotFoundError passes as it is.

    Args:
        path: The file or folder in use, for the message and to measure how much space is left there.

    Raises:
        AccessError: A permission is missing, or the file system is read-only.
        FullError: No space is left, or a quota or limit is reached.
        StorageError: Any other refusal: too many open files, a name too long, a broken disk.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _explained(error, Path(path)) from error


def _explained(error: OSError, path: Path) -> StorageError:
    number = error.errno or errno.EIO
    name = shortened(str(path), PATH_CHARACTERS)
    if number == errno.ENOSPC:
        return FullError(f"{name}: {_full(path)}")
    hint = HINTS.get(number, f"check the disk and {GO_ON}")
    kind = AccessError if number in REFUSED else FullError if number in FULL else StorageError
    return kind(f"{name}: {os.strerror(number).lower()}; {hint}")


def _full(path: Path) -> str:
    """Say what a full file system has run out of, and what to do."""
    for folder in (path, *path.parents):
        try:
            status = os.statvfs(folder)
        except OSError:
            continue
        disk = _mount_point(folder)
        free_bytes = status.f_bavail * status.f_frsize
        # A file system that makes inodes on demand reports 0 of 0 inodes, or as few as it has bytes.
        if status.f_favail < FEW_INODES and status.f_favail * status.f_blocks < status.f_bavail * status.f_files:
            return (
                f"no inodes left for more files ({status.f_favail:,} of {status.f_files:,} free in {disk}, and "
                f"{free_bytes:,} bytes); remove files there, or choose a format of fewer files, and {GO_ON}"
            )
        return f"no space left on device ({free_bytes:,} bytes free in {disk}); free some space and {GO_ON}"
    return f"no space left on device; free some space and {GO_ON}"


def _mount_point(folder: Path) -> Path:
    """Return where the file system of an existing folder or file is mounted."""
    resolved = Path(os.path.realpath(folder))
    return next(parent for parent in (resolved, *resolved.parents) if os.path.ismount(parent))
