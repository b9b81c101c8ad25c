"""What both kinds of storage say in the same words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

GO_ON = "run the same command again: it goes on where it stopped"


def missing(url: str) -> FileNotFoundError:
    """There is no such object."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)


def bad_range(url: str, offset: int, num_bytes: int) -> str:
    """A range that no object has."""
    return f"{url}: a range must not be negative, got {num_bytes:,} bytes from {offset:,}"


def ends_before(url: str, offset: int, num_bytes: int, size: int) -> str:
    """The object is shorter than what is read from it; `size` is where it ends, in bytes."""
    return (
        f"{url}: bytes {offset:,} to {offset + num_bytes:,} were asked for, it ends at {size:,}; "
        "it is truncated, or not the file that was indexed: compare its size with the original's"
    )


def conflict(url: str, ours: tuple[int, str], theirs: tuple[int, str]) -> str:
    """An object of other bytes stands there; each side is its size in bytes and its CRC32C."""
    return (
        f"{url}: another object stands there, {theirs[0]:,} bytes with CRC32C {theirs[1]}, where {ours[0]:,} bytes "
        f"with CRC32C {ours[1]} belong; choose another output, or run again with --overwrite"
    )


def spool_gone(spool: Path) -> str:
    """The spool file vanished while it was written."""
    return f"{spool}: the file that was being written is gone, another build has cleared up; {GO_ON}"


def unsettled(url: str) -> str:
    """The name is taken, then free, and again."""
    return f"{url}: it comes and goes, another build is clearing up there; {GO_ON}"
