"""The guard against hostile images: sizes, scans and formats are checked before anything is decoded.

All code that opens a stranger's image uses these functions. The limits are in dataprep/formats/image_limits.py, which
the loaders apply as well.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Literal

from dataprep.formats.image_limits import MAX_PIXELS, REPAIRABLE_FORMATS, too_many_scans
from dataprep.messages import one_line

if TYPE_CHECKING:
    from PIL import Image

JPEG_MAGIC = b"\xff\xd8\xff"
_NOT_READ = {
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "TIFF",
    b"\0\0\0\x0cJXL ": "JPEG XL",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"8BPS": "PSD",
}
"""Types of pictures that are not read, by their first bytes. Most raw files of cameras begin as TIFFs do."""
_NOT_READ_BRANDS = {
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"), "HEIC"),
    **dict.fromkeys((b"mif1", b"msf1"), "HEIF"),
    b"crx ": "CR3",
}
"""Types of pictures that are not read, by the brand of an ISO base media file (ISO/IEC 14496-12); films are such files,
too."""

Fault = Literal["missing", "empty", "too-large", "no-pixels", "too-many-scans", "no-image", "truncated", "undecodable"]


class UnusableImageError(Exception):
    """Raised for an image that cannot or must not be decoded; its text is the detail for the event."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


def refuse_size(height: int, width: int) -> None:
    """Raise UnusableImageError for an image without pixels, or with more than MAX_PIXELS."""
    if height * width > MAX_PIXELS:
        raise UnusableImageError("too-large", f"{width}x{height} pixels; at most {MAX_PIXELS:,}")
    if height * width == 0:
        raise UnusableImageError("no-pixels", f"{width}x{height} pixels")


def refuse_scans(data: bytes, height: int, width: int) -> None:
    """Raise UnusableImageError for a JPEG whose scans would take too long to decode."""
    if reason := too_many_scans(data, height, width):
        raise UnusableImageError("too-many-scans", reason)


def open_image(data: bytes) -> Image.Image:
    """Open an image and read its header only, in one of the formats that Pillow reads without other programs.

    Raises:
        UnusableImageError: The bytes are no image, or one without pixels or with too many.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of bombs below our own limit
            image = Image.open(io.BytesIO(data), formats=REPAIRABLE_FORMATS)
    except Image.DecompressionBombError as error:
        raise UnusableImageError("too-large", f"over {MAX_PIXELS:,} pixels: {_line(error)}") from error
    except Exception as error:
        kind = _type_not_read(data)
        detail = f"a picture of type {kind}, which is not read" if kind else f"no image: {_line(error)}"
        raise UnusableImageError("no-image", detail) from error
    refuse_size(image.height, image.width)
    return image


def _type_not_read(data: bytes) -> str:
    """Return the type of a picture that is not read, by its first bytes; empty if they are of none."""
    if data[4:8] == b"ftyp":
        return _NOT_READ_BRANDS.get(data[8:12], "")
    return next((kind for magic, kind in _NOT_READ.items() if data.startswith(magic)), "")


def load_image(image: Image.Image, num_bytes: int) -> Image.Image:
    """Decode all of an opened image; missing data are an error.

    Args:
        image: The opened image.
        num_bytes: Size of the data that it was opened from, for the error.

    Raises:
        UnusableImageError: The image ends early, or cannot be decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of corrupt EXIF and the like, which does no harm
            image.load()
    except Exception as error:
        if "truncated" in str(error) or isinstance(error, EOFError):
            # Pillow's own text counts the bytes left in its buffer, which says nothing of what is missing.
            detail = f"the end of the image is missing: its data end after {num_bytes:,} bytes"
            raise UnusableImageError("truncated", detail) from error
        raise UnusableImageError("undecodable", _line(error)) from error
    return image


def _line(error: BaseException) -> str:
    """Return an error's text on one line, without the address that Pillow puts into some."""
    text = one_line(error)
    return "cannot identify image file" if text.startswith("cannot identify image file") else text
