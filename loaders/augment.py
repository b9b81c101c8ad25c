"""How each image is cut, scaled and flipped: a pure function of the seed and its global position.

The draws are those of torchvision's RandomResizedCrop and RandomHorizontalFlip, taken from raw Philox words, so that
neither the batch, the world size nor a library's release changes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from dataprep.errors import UsageError
from dataprep.randomness import philox_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRIES = 10
"""Boxes that are drawn before the largest one in the middle is taken, as torchvision does."""
WORDS = 24
"""Of a position: area and ratio of each try, then top, left and flip; a multiple of Philox's four."""
# Words that are made and thrown away between two positions; a call of its own takes as long as 5,000 of them, 26 us.
_SKIPPED_WORDS = 5_000


class View(NamedTuple):
    """The part of an image that is used, and how it becomes a square of `size` pixels. All in pixels."""

    top: int
    left: int
    height: int
    width: int
    """Of the box in the image, which lies wholly inside it."""
    resized_height: int
    resized_width: int
    """To which the box is scaled."""
    out_top: int
    out_left: int
    """Of the output in the scaled box."""
    flip: bool
    """Left to right, last of all."""


def train_views(
    seed: int,
    positions: Sequence[int],
    heights: Sequence[int],
    widths: Sequence[int],
    *,
    size: int,
    scale: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    clip: bool = False,
) -> list[View]:
    """A random box of each image, scaled to the output, flipped or not.

    Args:
        seed: Of the loader.
        positions: Global positions of the samples, ascending; quick where they lie close together.
        heights: Of the images, in pixels.
        widths: Likewise.
        size: Side of the output.
        scale: Area of the box, as a share of the image's.
        ratio: Width of the box over its height; drawn uniformly on a logarithmic scale.
        flip: Probability.
        clip: Cut the first box that is drawn to the image where it is too high or too wide, as BYOL's code does, and
            draw no other.

    Raises:
        UsageError: A range is empty or not positive, or the probability is none.
    """
    import numpy as np

    for name, (low, high) in (("scale", scale), ("ratio", ratio)):
        if not 0 < low <= high < math.inf:
            raise UsageError(f"{name} must be two positive numbers, the lower first, got {low} and {high}")
    if not 0 <= flip <= 1:
        raise UsageError(f"flip must be a probability, 0 to 1, got {flip}")
    if not len(positions):
        return []
    draws = _draws(seed, positions)
    height, width = (np.asarray(sides, np.int64)[:, None] for sides in (heights, widths))
    box_heights, box_widths = _boxes(draws[:, : 2 * TRIES], height, width, scale, ratio)
    if clip:
        box_heights, box_widths = np.clip(box_heights, 1, height), np.clip(box_widths, 1, width)
    fits = (box_widths > 0) & (box_widths <= width) & (box_heights > 0) & (box_heights <= height)
    rows, first = np.arange(len(draws)), fits.argmax(axis=1)
    box_height, box_width = box_heights[rows, first], box_widths[rows, first]
    # A draw below 1 times n is below n in float64, too: for n up to 2^53.
    top = (draws[:, 2 * TRIES] * (height[:, 0] - box_height + 1)).astype(np.int64)
    left = (draws[:, 2 * TRIES + 1] * (width[:, 0] - box_width + 1)).astype(np.int64)
    boxes = [each.tolist() for each in (top, left, box_height, box_width)]
    flips = (draws[:, 2 * TRIES + 2] < flip).tolist()
    views = [
        View(top, left, height, width, size, size, 0, 0, flipped)
        for top, left, height, width, flipped in zip(*boxes, flips, strict=True)
    ]
    for row in np.flatnonzero(~fits.any(axis=1)).tolist():
        views[row] = _middle_view(int(heights[row]), int(widths[row]), size, ratio, flips[row])
    return views


def evaluation_view(height: int, width: int, *, size: int, resize: int) -> View:
    """The middle of the image after its short side was scaled, as torchvision's Resize and CenterCrop round it.

    Args:
        height: Of the image, in pixels.
        width: Likewise.
        size: Side of the output.
        resize: Of the scaled image, its short side.

    Raises:
        UsageError: The output is larger than the scaled image.
    """
    if not 1 <= size <= resize:
        raise UsageError(f"image_size must be 1 to resize ({resize}), got {size}; choose a larger resize")
    if width <= height:
        resized_height, resized_width = int(resize * height / width), resize
    else:
        resized_height, resized_width = resize, int(resize * width / height)
    out_top, out_left = round((resized_height - size) / 2), round((resized_width - size) / 2)
    return View(0, 0, height, width, resized_height, resized_width, out_top, out_left, False)


def transform_generator(seed: int, position: int) -> np.random.Generator:
    """Randomness of one sample, for a user's own transform.

    The words behind it stay the same for ever; what NumPy's Generator makes of them may change between its releases.
    """
    import numpy as np

    return np.random.Generator(
        np.random.Philox(key=philox_words(2, seed=seed, purpose="load/transform", start=4 * position))
    )


def _draws(seed: int, positions: Sequence[int]) -> NDArray[np.float64]:
    """In [0, 1), shape (positions, WORDS)."""
    import numpy as np

    draws = []
    for first, stop in _runs(positions):
        start = positions[first]
        count = positions[stop - 1] - start + 1
        words = philox_words(count * WORDS, seed=seed, purpose="load/augment", start=start * WORDS)
        wanted = np.asarray(positions[first:stop], np.int64) - start
        draws.append(words.reshape(count, WORDS)[wanted])
    # The upper 53 bits, which a float64 holds exactly.
    return (np.concatenate(draws) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Index of the first and behind the last of positions that are close enough for one call."""
    gaps = [
        index
        for index, (before, after) in enumerate(pairwise(positions), 1)
        if not 0 <= (after - before) * WORDS <= _SKIPPED_WORDS
    ]
    return pairwise([0, *gaps, len(positions)])


def _boxes(
    draws: NDArray[np.float64],
    height: NDArray[np.int64],
    width: NDArray[np.int64],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Heights and widths of all tries, shape (images, TRIES).

    Sums, products, quotients and roots are rounded the same everywhere, so these are, too; only the logarithms of the
    two ratios are the C library's.
    """
    import numpy as np

    area = (height * width) * (scale[0] + draws[:, 0::2] * (scale[1] - scale[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = _exp(low + draws[:, 1::2] * (high - low))
    return np.rint(np.sqrt(area / aspect)).astype(np.int64), np.rint(np.sqrt(area * aspect)).astype(np.int64)


def _exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e^x for small x, by its series: the last bit of NumPy's own differs from processor to processor."""
    import numpy as np

    x = x / 8
    result = np.ones_like(x)
    for term in range(14, 0, -1):
        result = 1 + x / term * result
    for _ in range(3):
        result = result * result
    return result


def _middle_view(height: int, width: int, size: int, ratio: tuple[float, float], flip: bool) -> View:
    """The largest box of an allowed ratio, for images in which no draw fits."""
    box_height, box_width = height, width
    if width / height < ratio[0]:
        box_height = round(width / ratio[0])
    elif width / height > ratio[1]:
        box_width = round(height * ratio[1])
    top, left = (height - box_height) // 2, (width - box_width) // 2
    return View(top, left, box_height, box_width, size, size, 0, 0, flip)
