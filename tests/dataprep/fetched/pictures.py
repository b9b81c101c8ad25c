"""Pictures whose pixels are a formula, so that digests of them last. Needs Pillow and NumPy alone: img2dataset's own
environment imports it, too."""

import io
from functools import cache
from typing import Any

import numpy as np
from PIL import Image


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """RGB: slopes with texture, other ones for each seed."""
    y, x = np.mgrid[:height, :width].astype(np.int64)
    planes = [(x * (3 + seed) + y * y // 7) % 256, (y * 2 + x // 3 + seed * 31) % 256, (x * y // 97 + seed) % 256]
    return Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8))


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """The image as a file."""
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


@cache
def png_cases() -> dict[str, bytes]:
    """By name, PNGs of the kinds and sizes at which resizing takes different ways."""
    sizes = [(500, 375), (375, 500), (256, 256), (300, 256), (257, 255), (100, 80), (1, 1), (701, 203)]
    cases = {f"rgb-{width}x{height}": encoded(photo(width, height), "PNG") for width, height in sizes}
    image = photo(400, 310)
    alpha = photo(400, 310, 5).convert("L")
    return cases | {
        "grey": encoded(image.convert("L"), "PNG"),
        "alpha": encoded(Image.merge("RGBA", (*image.split(), alpha)), "PNG"),
        "palette": encoded(image.quantize(64, dither=Image.Dither.NONE), "PNG"),
    }
