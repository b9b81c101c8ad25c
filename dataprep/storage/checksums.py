"""Digests of files and streams: SHA-256 for the manifest, CRC32C because Cloud Storage uses it.

google_crc32c is imported when it is needed, because opening a storage needs no digest yet.
"""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path
from typing import Any, BinaryIO

BLOCK_BYTES = 1 << 20


def crc32c_of(data: bytes, value: int = 0) -> int:
    """Return the CRC32C of bytes; `value` is the CRC32C of the bytes that precede them."""
    import google_crc32c

    return int(google_crc32c.extend(value, data))


def crc32c_text(value: int) -> str:
    """Write a CRC32C as Cloud Storage does: base64 of the big-endian value."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def crc32c_number(text: str) -> int:
    """Convert the text of `crc32c_text` back to its value."""
    return int.from_bytes(base64.b64decode(text), "big")


def crc32c_hex(crc32c: int | str | None) -> str:
    """Write a CRC32C, given as its value or as its text, as messages do: 8 hexadecimal digits; `unknown` for None."""
    if crc32c is None:
        return "unknown"
    return f"{crc32c_number(crc32c) if isinstance(crc32c, str) else crc32c:08x}"


def crc32c_of_bytes(data: bytes) -> str:
    """Return the CRC32C of bytes in memory as text; see `crc32c_text`."""
    return crc32c_text(crc32c_of(data))


def crc32c_of_file(path: Path) -> str:
    """Return the CRC32C of a file as text, read in blocks of 1 MiB. Raises OSError if it cannot be read."""
    with path.open("rb", buffering=0) as stream:
        return crc32c_of_stream(stream)


def crc32c_of_stream(stream: BinaryIO | io.FileIO) -> str:
    """Return the CRC32C of the rest of a stream as text, read in blocks of 1 MiB."""
    value = 0
    while block := stream.read(BLOCK_BYTES):
        value = crc32c_of(block, value)
    return crc32c_text(value)


class HashingWriter:
    """A stream that only counts and digests the bytes that are written to it."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._crc32c = 0
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        """Take bytes, or an object with the buffer protocol, of any size."""
        self._sha256.update(data)
        self._crc32c = crc32c_of(data, self._crc32c)
        self.num_bytes += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def crc32c(self) -> str:
        return crc32c_text(self._crc32c)


def digests_of(stream: BinaryIO) -> HashingWriter:
    """Count and digest the rest of a stream, in bounded memory."""
    digests = HashingWriter()
    while block := stream.read(BLOCK_BYTES):
        digests.write(block)
    return digests
