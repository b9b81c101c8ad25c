"""Small JPEGs of every kind that the decoder tells apart: what a fuzzer begins with."""

from __future__ import annotations

import io
from itertools import product
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

from tests.support.jpeg_parts import HUFFMAN_TABLES, with_empty_huffman_tables, without

SIDES = ((8, 8), (17, 33), (40, 18))
SAMPLINGS = ("444", "422", "420", "440", "411")
CHOICE_BYTES = 32
"""Bytes behind the file, which decide the views of an input and the length of an interval."""


def write_seeds(folder: Path) -> None:
    """Write each seed to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    for number, data in enumerate(seeds()):
        (folder / f"seed-{number:03d}").write_bytes(data + rng.bytes(CHOICE_BYTES))


def seeds() -> list[bytes]:
    """Return the files: all samplings, colours, kinds of coding and restart intervals, whole and damaged."""
    rng = np.random.default_rng(1)
    made = []
    for (height, width), sampling in product(SIDES, SAMPLINGS):
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8) // 4 + np.arange(width, dtype=np.uint8)[:, None]
        made.append(simplejpeg.encode_jpeg(pixels, 60, colorsubsampling=sampling))
        image = Image.fromarray(pixels)
        made += [_pillow(image, **options) for options in OPTIONS]
        made += [_pillow(image.convert(mode), quality=40) for mode in ("L", "CMYK")]
        made += [_pillow(image.convert("L"), quality=40, restart_marker_blocks=2)]
    whole = made[0]
    return [*made, without(whole, HUFFMAN_TABLES), with_empty_huffman_tables(whole), whole[: len(whole) // 2]]


OPTIONS: tuple[dict[str, object], ...] = (
    {"quality": 20, "optimize": True},
    {"quality": 50, "progressive": True, "subsampling": 2},
    {"quality": 90, "restart_marker_blocks": 1, "subsampling": 2},
    {"quality": 70, "restart_marker_rows": 1, "subsampling": 1, "optimize": True},
    {"quality": 30, "keep_rgb": True},
)


def _pillow(image: Image.Image, **options: object) -> bytes:
    data = io.BytesIO()
    image.save(data, "JPEG", **options)
    return data.getvalue()
