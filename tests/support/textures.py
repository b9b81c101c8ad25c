"""Drawn textures in five classes: data of which it is known what there is to learn.

A texture's class is its form. Its tint, contrast, scale, angle and place are drawn for each image, and which of the two
grey levels is the lighter one: no mean colour tells the class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from train.batches.data import open_data

SIDE = 64
"""Side of the textures, pixels."""
FIT_IMAGES = 500
LEAST_FIT = 0.95
"""Share of the images that a network knows after it was trained on them."""
SCALES = (0.4, 0.6)
"""Radians a pixel: a wave is 10 to 16 pixels long, one to two patches of eight."""
Field = NDArray[np.float64]
TEXTURES: dict[str, Callable[[Field, Field], Field]] = {
    "stripes": lambda x, y: np.sin(x),
    "checks": lambda x, y: np.sin(x) * np.sin(y) * 2,
    "dots": lambda x, y: np.cos(x) + np.cos(y) - 1.1,
    "rings": lambda x, y: np.sin(np.hypot(x, y)),
    "waves": lambda x, y: np.sin(x + 2 * np.sin(y / 2)),
}


def draw_texture(name: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image, uint8, (SIDE, SIDE, 3)."""
    angle, scale = rng.uniform(0, 2 * np.pi), rng.uniform(*SCALES)
    top, left = SIDE / 2 + rng.uniform(-20, 20, 2)
    row, column = np.mgrid[:SIDE, :SIDE]
    across, down = scale * (column - left), scale * (row - top)
    x, y = np.cos(angle) * across - np.sin(angle) * down, np.sin(angle) * across + np.cos(angle) * down
    light_HW1 = np.tanh(2 * TEXTURES[name](x, y))[:, :, None]
    contrast = rng.choice((-1, 1)) * rng.uniform(30, 60)
    pixels = rng.uniform(80, 175, 3) + contrast * light_HW1 + rng.normal(0, 6, (SIDE, SIDE, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write_textures(folder: Path, *, images: int, val_images: int = 0, seed: int = 0) -> str:
    """A folder of classes with splits `train` and, where it has images, `val`; the URL of its index beside it."""
    rng = np.random.default_rng(seed)
    for split, count in (("train", images), ("val", val_images)):
        for index in range(count):
            name = list(TEXTURES)[index % len(TEXTURES)]
            path = folder / split / name / f"{index:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_texture(name, rng)).save(path, quality=92)
    return open_data(str(folder), index_dir=f"{folder}-index").url
