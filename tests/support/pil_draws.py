"""Functions of PIL images that draw from the generators of Python and NumPy, for a process that can import them."""

from __future__ import annotations

import os
import random

import numpy as np
from PIL import Image


def shifted(image: Image.Image) -> Image.Image:
    """Return an image that is brighter by two draws."""
    pixels = np.asarray(image).astype(np.int16) + random.randint(-40, 40) + np.random.randint(-40, 40)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def where(image: Image.Image) -> Image.Image:
    """Return an image whose first bytes are the number of the process, and the others draws."""
    pixels = np.random.randint(0, 255, np.asarray(image).shape, np.uint8)
    pixels.reshape(-1)[:4] = list(os.getpid().to_bytes(4, "big"))
    return Image.fromarray(pixels)


def process_of(image_HWC: np.ndarray) -> int:
    """Return the number of the process in which `where` made an image."""
    return int.from_bytes(bytes(image_HWC.reshape(-1)[:4]), "big")


def failing(image: Image.Image) -> Image.Image:
    """Raise an error."""
    raise ZeroDivisionError("of the transform's own")


def dying(image: Image.Image) -> Image.Image:
    """End the process."""
    os._exit(3)
