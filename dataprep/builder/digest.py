"""Size and checksum of a file that a build keeps under `_build/`, noted apart from it, so that damage is noticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from dataprep.dataset.documents import Count
from dataprep.storage import Storage
from dataprep.storage.checksums import HashingWriter, crc32c_hex, crc32c_of_stream


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What is noted of a file."""

    bytes: Count
    crc32c: Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]{6}==\Z")]
    """Base64, as Cloud Storage writes it. It changes with every single flipped bit."""

    def document(self) -> dict[str, int | str]:
        """Return the digest as JSON values."""
        return {"bytes": self.bytes, "crc32c": self.crc32c}


def digest_of(written: HashingWriter) -> FileDigest:
    """Return the digest of a file that was written."""
    return FileDigest(written.num_bytes, written.crc32c)


def fault_of(storage: Storage, name: str, expected: FileDigest) -> str | None:
    """Compare a whole file with its digest; return what was found and expected if they differ.

    On disk the file is read; a bucket keeps the checksum of each object, so that one request answers.

    Raises:
        FileNotFoundError: There is no such file.
    """
    info = storage.stat(name)
    if info is None:
        raise FileNotFoundError(storage.url_of(name))
    if info.num_bytes != expected.bytes:
        return f"{info.num_bytes:,} bytes, expected {expected.bytes:,}"
    crc32c = info.crc32c
    if crc32c is None:
        with storage.open(name) as stream:
            crc32c = crc32c_of_stream(stream)
    if crc32c != expected.crc32c:
        return f"CRC32C {crc32c_hex(crc32c)}, expected {crc32c_hex(expected.crc32c)}"
    return None
