"""Makes the kinds of files that ImageNet has besides plain JPEGs, each with the expected result of a build."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from struct import pack
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Verdict = Literal["kept", "repaired", "rejected"]
EXIF_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class Oddity:
    """A kind of file that is not a plain JPEG."""

    name: str
    verdict: Verdict
    """Result of a build with default options."""
    reason: str
    """Reason under which a build counts it; empty where the file is kept."""
    make: Callable[[Image.Image, bytes], bytes]
    """Function that makes the odd file from an RGB image and its plain JPEG."""


def encode(image: Image.Image, file_format: str = "JPEG", **options: Any) -> bytes:
    """Encode an image; `options` are those of Pillow's encoder."""
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


def _png_16bit(image: Image.Image, _: bytes) -> bytes:
    from PIL import Image

    grey_HW = np.asarray(image.convert("L")).astype(np.uint16)
    return encode(Image.fromarray(grey_HW * 257), "PNG")


def _png_alpha(image: Image.Image, _: bytes) -> bytes:
    from PIL import Image

    alpha = Image.linear_gradient("L").resize(image.size)
    return encode(Image.merge("RGBA", (*image.split(), alpha)), "PNG")


def _ycck(image: Image.Image, _: bytes) -> bytes:
    """Encode four planes as CMYK, and change the Adobe marker to YCCK, for which Pillow has no encoder."""
    from PIL import Image, ImageChops

    planes = image.convert("YCbCr").split()
    black = Image.new("L", image.size, 255)
    # Pillow inverts CMYK when it writes a file.
    inverted = [ImageChops.invert(plane) for plane in (*planes, black)]
    data = encode(Image.merge("CMYK", inverted), quality=92)
    transform = data.index(b"Adobe") + 11
    return data[:transform] + b"\2" + data[transform + 1 :]


def _rotated(orientation: int) -> Callable[[Image.Image, bytes], bytes]:
    def make(image: Image.Image, _: bytes) -> bytes:
        from PIL import Image

        exif = Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        return encode(image, quality=94, exif=exif)

    return make


def _one_pixel(image: Image.Image, _: bytes) -> bytes:
    return encode(image.resize((1, 1)))


def _not_an_image(_: Image.Image, __: bytes) -> bytes:
    return b"<!DOCTYPE html><html><head><title>404 Not Found</title></head><body>Not Found</body></html>\n"


def _bomb_jpeg(_: Image.Image, jpeg: bytes) -> bytes:
    """Change the frame header to claim 65,500 x 65,500 pixels."""
    side = pack(">HH", 65_500, 65_500)
    frame = jpeg.index(b"\xff\xc0")
    return jpeg[: frame + 5] + side + jpeg[frame + 9 :]


def _bomb_png(_: Image.Image, __: bytes) -> bytes:
    """Encode 20,000 x 20,000 white pixels in 76 kB: whole and valid, and 400 MB once decoded."""
    side = 20_000
    row = b"\0" + b"\xff" * (side // 8)
    chunks = (
        (b"IHDR", pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * side, 9)),
        (b"IEND", b""),
    )
    body = b"".join(pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


_ALL = (
    Oddity("png", "repaired", "png", lambda image, _: encode(image, "PNG")),
    Oddity("png-16bit", "repaired", "png", _png_16bit),
    Oddity("png-palette", "repaired", "png", lambda image, _: encode(image.quantize(64), "PNG")),
    Oddity("png-alpha", "repaired", "png", _png_alpha),
    Oddity("gif", "repaired", "gif", lambda image, _: encode(image.quantize(128), "GIF")),
    Oddity("bmp", "repaired", "bmp", lambda image, _: encode(image, "BMP")),
    Oddity("webp", "repaired", "webp", lambda image, _: encode(image, "WEBP", quality=90)),
    Oddity("cmyk", "repaired", "cmyk", lambda image, _: encode(image.convert("CMYK"), quality=92)),
    Oddity("ycck", "repaired", "ycck", _ycck),
    Oddity("exif-3", "kept", "", _rotated(3)),
    Oddity("exif-6", "kept", "", _rotated(6)),
    Oddity("exif-8", "kept", "", _rotated(8)),
    Oddity("progressive", "kept", "", lambda image, _: encode(image, quality=94, progressive=True)),
    Oddity("grey", "kept", "", lambda image, _: encode(image.convert("L"), quality=94)),
    Oddity("one-pixel", "kept", "", _one_pixel),
    Oddity("trailing-garbage", "kept", "", lambda _, jpeg: jpeg + b"\0garbage" * 100),
    Oddity("extraneous-bytes", "kept", "", lambda _, jpeg: jpeg[:-2] + b"\0\0\0" + jpeg[-2:]),
    Oddity("truncated", "rejected", "truncated", lambda _, jpeg: jpeg[: len(jpeg) * 2 // 3]),
    Oddity("empty", "rejected", "empty", lambda _, __: b""),
    Oddity("not-an-image", "rejected", "undecodable", _not_an_image),
    Oddity("bomb-jpeg", "rejected", "too-large", _bomb_jpeg),
    Oddity("bomb-png", "rejected", "too-large", _bomb_png),
)
ODDITIES = {oddity.name: oddity for oddity in _ALL}
