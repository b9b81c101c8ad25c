"""Digests of files and of what is being written: SHA-256 for the manifest, CRC32C because Cloud Storage speaks it."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, BinaryIO

import google_crc32c

BLOCK_BYTES = 1 << 20


def crc32c_text(value: int) -> str:
    """A CRC32C as Cloud Storage writes it: base64 of the big-endian value."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def crc32c_of(data: bytes, value: int = 0) -> int:
    """CRC32C of bytes, or of what `value` stands for followed by them."""
    return int(google_crc32c.extend(value, data))


class HashingWriter:
    """A stream that counts and digests what passes through to another."""

    def __init__(self, stream: BinaryIO | None) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self._crc32c = 0
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        """Pass on bytes, or an object with the buffer protocol, of any size."""
        self._sha256.update(data)
        self._crc32c = crc32c_of(data, self._crc32c)
        self.num_bytes += len(data)
        if self._stream is not None:
            self._stream.write(data)
        return len(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def crc32c(self) -> str:
        return crc32c_text(self._crc32c)


def digests_of(stream: BinaryIO) -> HashingWriter:
    """The size and digests of all that is left of a stream, read in bounded memory."""
    digests = HashingWriter(None)
    while block := stream.read(BLOCK_BYTES):
        digests.write(block)
    return digests
