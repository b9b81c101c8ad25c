"""Makes images like ImageNet's from photographs in the wheels of scikit-image and scikit-learn.

Every image is a crop of one photograph, resized, perhaps mirrored, with camera grain: a pure function of the seed, its
position and the versions of Pillow and NumPy. The mean is 475x400 pixels and 110 kB, as in ImageNet. The images of a
class are crops of one photograph, so the data can test bytes, speed and programs, but not accuracy.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from struct import pack
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageOps

from dataprep.dataset.randomness import philox_words
from dataprep.errors import UsageError, install_hint

PHOTOGRAPHS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/rocket.jpg"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/ihc.png"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)
"""Photographs in the wheels, each with its package; scikit-image downloads its other ones."""
# Weight, width and height in pixels: ImageNet's most common sizes, and a few small and large ones.
_SIZES = (
    (46, 500, 375),
    (13, 375, 500),
    (13, 500, 333),
    (6, 333, 500),
    (6, 500, 500),
    (4, 400, 300),
    (3, 640, 480),
    (3, 250, 188),
    (1, 160, 213),
    (1.6, 800, 600),
    (0.4, 1600, 1200),
)
_QUALITIES = (90, 92, 94, 95, 95, 96, 96)
_GRAIN_SIGMAS = (2, 5, 8, 10, 11, 12)  # grey levels; a JPEG's size is mostly its grain
_GRAIN_SIDE = 701  # a prime, so that no image's width divides it
Verdict = Literal["kept", "repaired", "rejected"]
EXIF_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class DemoImage:
    """Description of one demo image, which is sent to a worker."""

    name: str
    """Name of the demo dataset, which keys the draws, too."""
    seed: int
    """Seed of the demo, by which draws are keyed."""
    index: int
    photograph: int
    oddity: str = ""
    """Name of an oddity in ODDITIES; empty for a plain JPEG."""


class MadeImage(NamedTuple):
    """An image file, and the size in pixels of the image that it was made from."""

    file: bytes
    width: int
    height: int


def require_photographs() -> None:
    """Raise UsageError unless the packages with the photographs are installed."""
    for package, file in PHOTOGRAPHS:
        if not _photograph_path(package, file).is_file():
            raise UsageError(
                f"demo-data needs the photographs of scikit-image and scikit-learn, {package}/{file} was not found: "
                + install_hint("demo")
            )


def make_image(spec: DemoImage) -> MadeImage:
    """Make the image file for a description."""
    words = philox_words(8, seed=spec.seed, purpose=f"demo/{spec.name}", pass_index=spec.index)
    draws = words / 2.0**64
    image = _crop(_photograph(spec.photograph), draws)
    image = _with_grain(image, draws)
    file = encode(image, quality=_QUALITIES[int(draws[6] * len(_QUALITIES))])
    if spec.oddity:
        file = ODDITIES[spec.oddity].make(image, file)
    return MadeImage(file, image.width, image.height)


def _photograph_path(package: str, file: str) -> Path:
    spec = find_spec(package)
    folder = (spec.submodule_search_locations or ["."])[0] if spec else "."
    return Path(folder) / file


@cache
def _photograph(index: int) -> Image.Image:
    with Image.open(_photograph_path(*PHOTOGRAPHS[index % len(PHOTOGRAPHS)])) as image:
        return image.convert("RGB")


def _crop(photograph: Image.Image, draws: NDArray[np.float64]) -> Image.Image:
    """Cut a part of a photograph, at one of ImageNet's sizes."""
    weights = np.cumsum([weight for weight, _, _ in _SIZES])
    _, width, height = _SIZES[int(np.searchsorted(weights, draws[0] * weights[-1], side="right"))]
    # the maximum number of photograph pixels for each image pixel
    largest = min(photograph.width / width, photograph.height / height)
    smallest = max(min(1.0, largest), 0.25 * largest)
    scale = smallest + (largest - smallest) * draws[1] ** 0.5  # prefers wide views
    left = draws[2] * (photograph.width - width * scale)
    top = draws[3] * (photograph.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    image = photograph.resize((width, height), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)
    return ImageOps.mirror(image) if draws[4] < 0.5 else image


@cache
def _grain_tile() -> NDArray[np.float32]:
    words = philox_words(_GRAIN_SIDE * _GRAIN_SIDE // 2 + 1, seed=0, purpose="demo/grain")
    quarters = words.view(np.uint8)[: _GRAIN_SIDE * _GRAIN_SIDE * 4].reshape(_GRAIN_SIDE, _GRAIN_SIDE, 4)
    bell = quarters.sum(axis=2, dtype=np.float32) - 510.0  # four uniform draws: about normal, sigma 148
    tile: NDArray[np.float32] = bell / np.float32(148.0)
    return tile


def _with_grain(image: Image.Image, draws: NDArray[np.float64]) -> Image.Image:
    sigma = _GRAIN_SIGMAS[int(draws[5] * len(_GRAIN_SIGMAS))]
    shift = int(draws[7] * _GRAIN_SIDE)
    rows = np.arange(shift, shift + image.height) % _GRAIN_SIDE
    columns = np.arange(2 * shift, 2 * shift + image.width) % _GRAIN_SIDE
    grain_HW1 = (_grain_tile()[rows][:, columns] * np.float32(sigma)).round().astype(np.int16)[:, :, None]
    pixels_HWC = np.asarray(image).astype(np.int16) + grain_HW1
    return Image.fromarray(np.clip(pixels_HWC, 0, 255).astype(np.uint8), "RGB")


@dataclass(frozen=True, slots=True)
class Oddity:
    """A kind of file that is not a plain JPEG."""

    name: str
    verdict: Verdict
    """Result of a build with default options."""
    reason: str
    """Reason under which a build counts it; empty if the file is kept."""
    make: Callable[[Image.Image, bytes], bytes]
    """Function that makes the odd file from an RGB image and its plain JPEG."""


def encode(image: Image.Image, file_format: str = "JPEG", **options: Any) -> bytes:
    """Encode an image; `options` are for Pillow's encoder."""
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


def _png_16bit(image: Image.Image, _: bytes) -> bytes:
    grey_HW = np.asarray(image.convert("L")).astype(np.uint16)
    return encode(Image.fromarray(grey_HW * 257), "PNG")


def _png_alpha(image: Image.Image, _: bytes) -> bytes:
    alpha = Image.linear_gradient("L").resize(image.size)
    return encode(Image.merge("RGBA", (*image.split(), alpha)), "PNG")


def _ycck(image: Image.Image, _: bytes) -> bytes:
    """Encode four planes as CMYK, and change the Adobe marker to YCCK, for which Pillow has no encoder."""
    planes = image.convert("YCbCr").split()
    black = Image.new("L", image.size, 255)
    # Pillow inverts CMYK when it writes a file.
    inverted = [ImageChops.invert(plane) for plane in (*planes, black)]
    data = encode(Image.merge("CMYK", inverted), quality=92)
    transform = data.index(b"Adobe") + 11
    return data[:transform] + b"\2" + data[transform + 1 :]


def _rotated(orientation: int) -> Callable[[Image.Image, bytes], bytes]:
    def make(image: Image.Image, _: bytes) -> bytes:
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


@cache
def _bomb_png() -> bytes:
    """Encode 20,000 x 20,000 white pixels in 76 kB: complete and valid, and 400 MB once decoded."""
    side = 20_000
    row = b"\0" + b"\xff" * (side // 8)
    header = pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return png_of(header, zlib.compress(row * side, 9))


def png_of(header: bytes, pixels: bytes) -> bytes:
    """Return a PNG with the content of these chunks, `IHDR` and `IDAT`."""
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    body = b"".join(pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


ODDITIES = {
    oddity.name: oddity
    for oddity in (
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
        Oddity("bomb-png", "rejected", "too-large", lambda _, __: _bomb_png()),
    )
}
