"""Errors and their texts that both kinds of storage share."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dataprep.messages import counted
from dataprep.storage.checksums import crc32c_hex

GO_ON = "run the same command again: it goes on where it stopped"
READ_LESS_AT_ONCE = (
    "run the command again; where the connection is slow, have fewer requests at a time (reads_in_flight), "
    "or wait longer for each (deadline_s)"
)
"""What to do where a reader that a training waits for, whose deadlines are short, got no answer."""


def missing(url: str) -> FileNotFoundError:
    """Make the error for an object that does not exist."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)


def bad_range(url: str, offset: int, num_bytes: int) -> str:
    """Return the text for a range that no object can have."""
    return f"{url}: a range must not be negative, got {num_bytes:,} bytes from {offset:,}"


def ends_before(url: str, offset: int, num_bytes: int, size: int) -> str:
    """Return the text for an object that ends, at `size` bytes, before the end of the range."""
    return (
        f"{url}: bytes {offset:,} to {offset + num_bytes:,} were requested, but it ends at {size:,}; "
        "it is truncated, or not the file that was indexed: compare its size with the original's"
    )


def other_size(url: str, num_bytes: int, expected: int) -> str:
    """Return the text for an object of another size than that with which it was indexed."""
    return (
        f"{url}: {num_bytes:,} bytes, the index says {expected:,}: it is truncated or was replaced; restore it or "
        'build again, or where another tool wrote it, run "dataprep adopt --overwrite"'
    )


def described_bytes(num_bytes: int, crc32c: str | None) -> str:
    """Describe an object as `5 bytes with CRC32C e3069283`; without the CRC32C where it is not known."""
    return counted(num_bytes, "byte") + (f" with CRC32C {crc32c_hex(crc32c)}" if crc32c else "")


def conflict(url: str, ours: tuple[int, str], theirs: tuple[int, str]) -> str:
    """Make the error for an existing object with other bytes; each side is its size in bytes and its CRC32C."""
    return (
        f"{url}: another object exists there already, {described_bytes(*theirs)}, where {described_bytes(*ours)} "
        "belong; move it away and run the same command again, or choose another output"
    )


def too_large(url: str, num_bytes: int, max_bytes: int) -> str:
    """Return the error text for an object that is larger than `max_bytes`."""
    return f"{url}: {num_bytes:,} bytes, expected at most {max_bytes:,}"


def spool_gone(spool: Path) -> str:
    """Return the text for a spool file that vanished while it was written."""
    return f"{spool}: the file that was being written is gone, another build has cleared up; {GO_ON}"


def build_gone(url: str) -> str:
    """Return the text for a build whose folder no longer exists."""
    return f"{url}: the folder of this build is gone, another one has finished it or taken its place; {GO_ON}"


def unsettled(url: str) -> str:
    """Return the text for a name that is taken, then free, again and again."""
    return f"{url}: the object appears and disappears, because another build is clearing up; {GO_ON}"
