"""CRC32C as Cloud Storage writes it: base64 of the big-endian value."""

from __future__ import annotations

import base64
from pathlib import Path

BLOCK_BYTES = 1 << 20


def crc32c_of_bytes(data: bytes) -> str:
    """Of bytes in memory."""
    import google_crc32c

    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def crc32c_of_file(path: Path) -> str:
    """Of a whole file, read in blocks of 1 MiB.

    Raises:
        OSError: The file cannot be read.
    """
    import google_crc32c

    checksum = google_crc32c.Checksum()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(BLOCK_BYTES):
            checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()
