"""One picture in every form of JPEG that decoders meet: subsampling, progressive, restart markers, tables, colours."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import simplejpeg
from PIL import Image

SAMPLINGS = ["444", "422", "440", "420", "411", "Gray"]
RESTARTED = 4
"""Forms of a picture that are also given with restart markers, drawn anew for each picture."""


def picture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Smooth shapes and noise, so that blocks have few and many coefficients."""
    coarse = rng.integers(0, 256, (height // 7 + 2, width // 7 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height)), np.int64)
    noise = rng.integers(-25, 26, smooth.shape) * (rng.random((height, width, 1)) < 0.5)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def by_pillow(image: np.ndarray, **options: object) -> bytes:
    data = io.BytesIO()
    Image.fromarray(image).save(data, "JPEG", **options)
    return data.getvalue()


def jpegs(rng: np.random.Generator, height: int, width: int) -> Iterator[tuple[str, bytes]]:
    """One picture, in every form that the extension takes; some also as `--jpeg restart` writes them."""
    forms = list(encoded(rng, height, width))
    yield from forms
    if find_spec("dataprep.formats._restart"):
        from dataprep.formats._restart import with_restarts

        for index in rng.choice(len(forms), RESTARTED, replace=False):
            kind, data = forms[index]
            yield f"{kind}, written again with restarts", with_restarts(data, int(rng.integers(1, 400)))


def encoded(rng: np.random.Generator, height: int, width: int) -> Iterator[tuple[str, bytes]]:
    """One picture, in the forms of several encoders."""
    image = picture(rng, height, width)
    for sampling in SAMPLINGS:
        yield sampling, simplejpeg.encode_jpeg(image, int(rng.integers(30, 100)), colorsubsampling=sampling)
    for number, sampling in enumerate(["444", "422", "420"]):
        blocks = int(rng.integers(1, 9))
        yield f"progressive {sampling}", by_pillow(image, progressive=True, subsampling=number)
        yield f"restarts {sampling}", by_pillow(image, subsampling=number, restart_marker_blocks=blocks)
    yield "restart in every row", by_pillow(image, restart_marker_rows=1)
    yield "progressive with restarts", by_pillow(image, progressive=True, restart_marker_blocks=3)
    yield "optimised tables", by_pillow(image, optimize=True, quality=97)
    yield "RGB", by_pillow(image, keep_rgb=True)
    yield "grey of a large MCU", sampled_grey(simplejpeg.encode_jpeg(image, 90, colorsubsampling="Gray"), 0x22)


def sampled_grey(data: bytes, factors: int) -> bytes:
    """The sampling factors of the only component mean nothing, but there are files in which they are not 1."""
    at = data.index(b"\xff\xc0") + 11
    return data[:at] + bytes([factors]) + data[at + 1 :]
