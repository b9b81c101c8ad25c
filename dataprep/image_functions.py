"""Functions of pictures that `dataprep map` knows by name.

Each takes a batch of samples with their pictures, (height, width, 3) of any size, uint8, 0..255, and returns a number
for each. They calculate with whole numbers, so the results are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from dataprep.arrays import NDArray, np

_FREQUENCIES = 8
"""Frequencies along a side of a perceptual hash, which has a bit for each."""
_SIDE = 32
_SCALE = 2.0**17
"""Factor of the cosines, which are rounded then: the sums stay below 2^53, so floats add them without an error."""


class Pictures(Protocol):
    """A batch of samples with their pictures."""

    @property
    def images(self) -> Sequence[NDArray[np.uint8]]:
        """Pictures, each (height, width, 3), uint8, 0..255."""


def phash(samples: Pictures) -> NDArray[np.uint64]:
    """Return the perceptual hash of each picture, shape (pictures,): resized or re-coded copies differ in few bits.

    The bits say which of the 64 lowest frequencies of a 32x32 grey picture are above their median (discrete cosine
    transform, first frequency in the highest bit), as `imagehash.phash` has them. Source: Zauner, "Implementation and
    Benchmarking of Perceptual Image Hash Functions", 2010, section 3.1.
    """
    cosines = _cosines()
    found = np.zeros(len(samples.images), np.uint64)
    for number, image_HWC in enumerate(samples.images):
        small = _grey(image_HWC, side=_SIDE).astype(np.float64)
        frequencies = cosines @ small @ cosines.T
        bits = frequencies > np.median(frequencies)
        found[number] = np.packbits(bits).view(">u8")[0]
    return found


def sharpness(samples: Pictures) -> NDArray[np.float32]:
    """Return the variance of the Laplacian of each grey picture, shape (pictures,): low where it is out of focus.

    It depends on the picture's size, too. Source: Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy",
    ICPR 2000; the Laplacian has the kernel 0 1 0, 1 -4 1, 0 1 0 and mirrored borders, as OpenCV's.
    """
    found = np.zeros(len(samples.images), np.float32)
    for number, image_HWC in enumerate(samples.images):
        grey = np.pad(_grey(image_HWC).astype(np.int64), 1, "reflect")
        laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * grey[1:-1, 1:-1]
        mean_square, mean = (laplacian**2).sum() / laplacian.size, laplacian.sum() / laplacian.size
        found[number] = mean_square - mean**2
    return found


def _grey(image_HWC: NDArray[np.uint8], *, side: int = 0) -> NDArray[np.uint8]:
    """Return the luma of a picture, ITU-R 601-2, as a square of this side unless it is 0."""
    from PIL import Image

    image = Image.fromarray(image_HWC).convert("L")
    return np.asarray(image.resize((side, side), Image.Resampling.LANCZOS) if side else image)


@cache
def _cosines() -> NDArray[np.float64]:
    """Return the lowest frequencies of the discrete cosine transform, shape (_FREQUENCIES, _SIDE), as whole numbers."""
    frequency, place = np.arange(_FREQUENCIES)[:, None], np.arange(_SIDE)
    return np.round(_SCALE * np.cos(np.pi * frequency * (2 * place + 1) / (2 * _SIDE)))
