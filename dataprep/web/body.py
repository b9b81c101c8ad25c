"""One body as it arrives: bounded, decompressed, whole or not at all, and an image by its first bytes. Pure."""

from __future__ import annotations

import re
import zlib

from dataprep.web.outcomes import Failed, Status

# JPEG, PNG, GIF, WebP, BMP, TIFF, JPEG 2000, JPEG XL, AVIF and HEIF by their brands; whoever decodes may take fewer.
_IMAGE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP|BM|II\*\0|MM\0\*|\0\0\0\x0cjP  |\xff\x4f\xff\x51"
    rb"|\xff\x0a|\0\0\0\x0cJXL |....ftyp(?:avi[fs]|mif1|msf1|hei[cxms]|hev[cmsx])",
    re.DOTALL,
)
_MAGIC_BYTES = 12
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class Body:
    """Collects the pieces of one body.

    Args:
        limit_bytes: Of the body, as it arrives and decompressed.
        image: Whether it must begin as an image does.
    """

    def __init__(self, limit_bytes: int, *, image: bool = True) -> None:
        self._inflate: zlib._Decompress | None = None
        self._limit_bytes, self._unrecognised = limit_bytes, image
        self._wire_bytes = self._num_bytes = 0
        self._pieces: list[bytes] = []

    def decode_from(self, encoding: str) -> None:
        """Takes a Content-Encoding: gzip, deflate, or none.

        Raises:
            Failed: ENCODING.
        """
        encoding = encoding.strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        elif encoding not in ("", "identity"):
            raise Failed(Status.ENCODING, f"Content-Encoding {encoding[:64]!r}, which was not asked for")

    def feed(self, piece: bytes) -> None:
        """Takes the next bytes from the wire.

        Raises:
            Failed: TOO_LARGE, ENCODING or NOT_IMAGE, as soon as it is known.
        """
        self._wire_bytes += len(piece)
        if self._inflate:
            piece = self._inflated(piece)
        self._num_bytes += len(piece)
        self._pieces.append(piece)
        if max(self._wire_bytes, self._num_bytes) > self._limit_bytes:
            raise Failed(Status.TOO_LARGE, f"over {self._limit_bytes:,} bytes")
        if self._unrecognised and self._num_bytes >= _MAGIC_BYTES:
            self._recognise()

    def whole(self) -> bytes:
        """All of it, after the last piece.

        Raises:
            Failed: INCOMPLETE or NOT_IMAGE.
        """
        if self._inflate and not self._inflate.eof:
            raise Failed(Status.INCOMPLETE, "the compressed body ends early")
        if self._unrecognised:
            self._recognise()
        return self.start()

    def start(self) -> bytes:
        """What has come so far, where that is enough."""
        return b"".join(self._pieces)

    def _inflated(self, piece: bytes) -> bytes:
        inflate = self._inflate
        if inflate is None:
            return piece
        try:
            # One byte over the limit is enough to know; unconsumed input is left only then.
            piece = inflate.decompress(piece, self._limit_bytes - self._num_bytes + 1)
        except zlib.error as error:
            raise Failed(Status.ENCODING, f"does not decompress: {error}") from None
        if inflate.unused_data:
            raise Failed(Status.ENCODING, "bytes after the end of the compressed body")
        return piece

    def _recognise(self) -> None:
        start = self.start()
        if not _IMAGE.match(start):
            raise Failed(Status.NOT_IMAGE, f"begins with {start[:24]!r}" if start else "an empty body")
        self._unrecognised = False
