"""What the operating system says about a disk, in one line that names the next step."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataprep.errors import AccessError, StorageError
from dataprep.storage.messages import GO_ON

SHOWN_CHARACTERS = 320
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
HINTS = {
    errno.EDQUOT: f"free some of your quota and {GO_ON}",
    errno.ENOSPC: f"free some space and {GO_ON}",
    errno.EACCES: "give this user permission, or choose another folder",
    errno.EPERM: "give this user permission, or choose another folder",
    errno.EROFS: "choose a folder that can be written",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (sysctl fs.file-max)",
    errno.ENAMETOOLONG: "most file systems take 255 bytes a name and 4,096 a path: choose a shorter folder",
    errno.EFBIG: "the file system or a limit (ulimit -f) takes no larger file: choose smaller shards",
    errno.EISDIR: "a folder stands where a file should: move it away",
    errno.ENOTDIR: "a file stands where a folder should: move it away",
}


@contextmanager
def disk_errors(path: Path | str) -> Iterator[None]:
    """Turn what the system refuses inside the block into our errors; FileNotFoundError passes as it is.

    Args:
        path: what is worked on, for the message and to say how much space is left there.

    Raises:
        AccessError: A permission is missing, or the file system is read-only.
        StorageError: Any other refusal: no space, too many open files, a name too long, a broken disk.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _explained(error, Path(path)) from error


def _explained(error: OSError, path: Path) -> StorageError:
    number = error.errno or errno.EIO
    name = str(path) if len(str(path)) <= SHOWN_CHARACTERS else f"{str(path)[:SHOWN_CHARACTERS]}…"
    left = f" ({_space_left(path)})" if number in FULL else ""
    hint = HINTS.get(number, f"check the disk and {GO_ON}")
    kind = AccessError if number in REFUSED else StorageError
    return kind(f"{name}: {os.strerror(number).lower()}{left}; {hint}")


def _space_left(path: Path) -> str:
    for folder in (path, *path.parents):
        try:
            free_bytes = shutil.disk_usage(folder).free
        except OSError:
            continue
        return f"{free_bytes:,} bytes free in {folder}"
    return "no space known"
