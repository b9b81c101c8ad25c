"""Collects a body as it arrives, within a size limit, decompresses it, and checks that it is whole and an image.
Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from dataprep.web.outcomes import Failed, Status

# First bytes of JPEG, PNG, GIF, WebP, BMP, TIFF, JPEG 2000, JPEG XL, AVIF and HEIF; a decoder may accept fewer formats.
_IMAGE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP|BM|II\*\0|MM\0\*|\0\0\0\x0cjP  |\xff\x4f\xff\x51"
    rb"|\xff\x0a|\0\0\0\x0cJXL |....ftyp(?:avi[fs]|mif1|msf1|hei[cxms]|hev[cmsx])",
    re.DOTALL,
)
_MAGIC_BYTES = 12
_PART_BYTES = 64 * 1024
"""Maximum number of bytes that are inflated at a time, because a kilobyte may inflate to a megabyte."""
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class Body:
    """Collects the pieces of one body.

    Args:
        limit_bytes: Largest size of the body, both as it arrives and decompressed.
        image: Whether the body must begin as an image does.
    """

    def __init__(self, limit_bytes: int, *, image: bool = True) -> None:
        self._inflate: zlib._Decompress | None = None
        self._limit_bytes, self._unrecognised = limit_bytes, image
        self.image = image
        self._wire_bytes = 0
        self._data = bytearray()  # not a list, which takes 50 bytes for each piece: a hostile piece has one byte

    @property
    def room_bytes(self) -> int:
        """Number of bytes that the body may still have."""
        return self._limit_bytes - len(self._data)

    def decode_from(self, encoding: str) -> None:
        """Set the Content-Encoding: gzip, deflate, or none.

        Raises:
            Failed: ENCODING.
        """
        encoding = encoding.strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        elif encoding not in ("", "identity"):
            raise Failed(Status.ENCODING, f"Content-Encoding {encoding[:64]!r}, which was not requested")

    def parts(self, piece: bytes) -> Iterator[bytes]:
        """Decompress the next bytes from the wire, in parts for `feed`.

        Raises:
            Failed: TOO_LARGE or ENCODING.
        """
        if self._inflate is None:
            yield piece
            return
        self._wire_bytes += len(piece)
        if self._wire_bytes > self._limit_bytes:
            raise self._too_large()
        part = bytes(_PART_BYTES)
        while piece or len(part) == _PART_BYTES:  # after a full part more output may wait, even without input
            try:
                part = self._inflate.decompress(piece, _PART_BYTES)
            except zlib.error as error:
                raise Failed(Status.ENCODING, f"does not decompress: {error}") from None
            piece = self._inflate.unconsumed_tail
            yield part
        if self._inflate.unused_data:
            raise Failed(Status.ENCODING, "bytes after the end of the compressed body")

    def feed(self, part: bytes) -> None:
        """Add the next part.

        Raises:
            Failed: TOO_LARGE or NOT_IMAGE, as soon as it is known.
        """
        room_bytes = self.room_bytes
        self._data += part[:room_bytes]
        if len(part) > room_bytes:
            raise self._too_large()
        if self._unrecognised and len(self._data) >= _MAGIC_BYTES:
            self._recognise()

    def whole(self) -> bytes:
        """Return the whole body, after its last part.

        Raises:
            Failed: INCOMPLETE or NOT_IMAGE.
        """
        if self._inflate and not self._inflate.eof:
            raise Failed(Status.INCOMPLETE, "the compressed body ends early")
        if self._unrecognised:
            self._recognise()
        return self.start()

    def start(self) -> bytes:
        """Return what has arrived so far, for callers to whom a part is enough."""
        return bytes(self._data)

    def _too_large(self) -> Failed:
        return Failed(Status.TOO_LARGE, f"over {self._limit_bytes:,} bytes")

    def _recognise(self) -> None:
        start = bytes(self._data[:64])
        if not _IMAGE.match(start):
            raise Failed(Status.NOT_IMAGE, f"begins with {start[:24]!r}" if start else "an empty body")
        self._unrecognised = False
