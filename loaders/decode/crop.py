"""Crop, scale and flip of each image: a pure function of the seed, the image's global position and the number of the
view.

The draws follow torchvision's RandomResizedCrop and RandomHorizontalFlip, but take raw Philox words, so that neither
the batch, the world size nor the release of a library changes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dataprep.arrays import NDArray, np
from dataprep.dataset.randomness import philox_words
from dataprep.errors import UsageError

TRIES = 10
"""Number of boxes that are tried before the largest centred one is taken, as in torchvision."""
WORDS = 24
"""Number of random words for one position: area and ratio of each try, then top, left, flip, and a word that packs use
for an image's number of tokens; a multiple of Philox's four."""
_SKIPPED_WORDS = 5_000
"""Maximum number of words to discard between two positions: a second call takes as long as 5,000 words, 26 us."""


class View(NamedTuple):
    """The box of an image that is used, and its scaling to a square output; all numbers are pixels."""

    top: int
    left: int
    height: int
    width: int
    """Top, left, height and width of the box, which is inside the image."""
    resized_height: int
    resized_width: int
    """Height and width to which the box is scaled."""
    out_top: int
    out_left: int
    """Top left corner of the output in the scaled box; negative in a letterbox, whose output is larger than the box."""
    flip: bool
    """Whether the output is mirrored, left to right, as the last step."""


class RowView(NamedTuple):
    """Crop, scale and flip that made an image a row of a batch; all numbers are pixels."""

    image_height: int
    image_width: int
    """Height and width of the stored image."""
    top: int
    left: int
    height: int
    width: int
    """Top, left, height and width of the crop, a box of the stored image."""
    resized_height: int
    resized_width: int
    """Height and width to which the crop is scaled."""
    out_top: int
    out_left: int
    """Top left corner of the row in the scaled crop; above 0 for an evaluation's centre crop, below 0 in a
    letterbox."""
    flip: bool
    """Whether the row is mirrored, left to right, as the last step."""
    size: int
    """Height and width of the row."""


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A random resized crop and a random flip.

    Raises:
        UsageError: A range is empty or impossible.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    """Smallest and largest area of the box, as shares of the image's."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest ratio of the box's width to its height, drawn uniformly on a logarithmic scale."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    clip: bool = False
    """Cut the first drawn box to the image if it is too large, as BYOL's code does, instead of drawing another one."""

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UsageError(f"scale must be a range within 0 to 1, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise UsageError(f"ratio must be a range above 0, got {self.ratio}")
        if not 0 <= self.flip <= 1:
            raise UsageError(f"flip must be a probability, got {self.flip}")


def train_views(
    seed: int,
    positions: Sequence[int],
    heights: Sequence[int],
    widths: Sequence[int],
    *,
    size: int,
    crop: RandomCrop | None = None,
) -> list[View]:
    """Draw a random box for each image, scaled to the output and flipped or not: its view number 0. Sizes are in
    pixels; this is fastest where the global positions ascend and are close together."""
    if not len(positions):
        return []
    return as_views(_views(_draws(seed, positions), heights, widths, size, crop or RandomCrop()))


def as_views(numbers_N9: NDArray[np.int32]) -> list[View]:
    """Return views that are rows of an array."""
    return [View._make((*numbers, bool(flip))) for *numbers, flip in numbers_N9.tolist()]


class CropGroup(NamedTuple):
    """Views of each image that share size and ranges."""

    views: int
    """Number of views of each image."""
    size: int
    """Side of the outputs, pixels."""
    crop: RandomCrop


def grouped_views(
    seed: int, positions: Sequence[int], heights: Sequence[int], widths: Sequence[int], groups: Sequence[CropGroup]
) -> NDArray[np.int32]:
    """Draw all views of each image, shape (images, views, 9), the numbers of a `View` last; views are numbered from 0
    on, over all groups.

    A view depends only on its number and its own group, and number 0 is the view of `train_views`. There must be at
    least one position.
    """
    found: list[NDArray[np.int32]] = []
    first = 0
    for count, size, crop in groups:
        draws = [_draws(seed, positions, number) for number in range(first, first + count)]
        # All views of a group in one pass, because a pass over a few images costs as much as one over many.
        views_9 = _views(np.concatenate(draws), [*heights] * count, [*widths] * count, size, crop)
        found.append(views_9.reshape(count, len(positions), -1).swapaxes(0, 1))
        first += count
    return np.concatenate(found, axis=1)


def _views(
    draws: NDArray[np.float64], heights: Sequence[int], widths: Sequence[int], size: int, crop: RandomCrop
) -> NDArray[np.int32]:
    """Return the box of each row of draws in its image, scaled to the output and flipped or not: rows of a `View`."""
    height, width = (np.asarray(sides, np.int64)[:, None] for sides in (heights, widths))
    box_heights, box_widths = _boxes(draws[:, : 2 * TRIES], height, width, crop)
    fits = (box_widths > 0) & (box_widths <= width) & (box_heights > 0) & (box_heights <= height)
    rows, first = np.arange(len(draws)), fits.argmax(axis=1)
    box_height, box_width = box_heights[rows, first], box_widths[rows, first]
    # A draw below 1 times n is below n in float64 as well, for n up to 2^53.
    top = draws[:, 2 * TRIES] * (height[:, 0] - box_height + 1)
    left = draws[:, 2 * TRIES + 1] * (width[:, 0] - box_width + 1)
    flips = draws[:, 2 * TRIES + 2] < crop.flip
    views = np.zeros((len(draws), len(View._fields)), np.int32)
    for column, numbers in enumerate((top, left, box_height, box_width, size, size)):
        views[:, column] = numbers
    views[:, -1] = flips
    for row in np.flatnonzero(~fits.any(axis=1)).tolist():
        views[row] = _middle_view(int(heights[row]), int(widths[row]), size, crop.ratio, bool(flips[row]))
    return views


class WholeViews(NamedTuple):
    """Boxes of the shape of their images, flips, and a spare random number; shape (images,) unless noted."""

    boxes: NDArray[np.int64]
    """(images, 4): top, left, height and width, pixels."""
    flips: NDArray[np.bool_]
    spare: NDArray[np.float64]
    """A random number in [0, 1) for each image."""


def whole_views(
    seed: int,
    positions: Sequence[int],
    sizes: NDArray[np.int64],
    *,
    crop: tuple[float, float] | None = None,
    flip: float = 0.5,
) -> WholeViews:
    """Draw a box of each image's own shape (the complete image if there is no crop), and a flip.

    Args:
        seed: Seed of the loader.
        positions: Global positions of the samples.
        sizes: (images, 2): height and width of the images, pixels.
        crop: Smallest and largest area of the box, as shares of the image's.
        flip: Probability of a horizontal flip.
    """
    draws = _draws(seed, positions)
    flips, spare = draws[:, 2 * TRIES + 2] < flip, draws[:, 2 * TRIES + 3]
    box_sizes = sizes
    if crop is not None:
        share = np.sqrt(crop[0] + draws[:, :1] * (crop[1] - crop[0]))
        box_sizes = np.clip(np.rint(sizes * share).astype(np.int64), 1, sizes)
    corners = (draws[:, 2 * TRIES : 2 * TRIES + 2] * (sizes - box_sizes + 1)).astype(np.int64)
    return WholeViews(np.concatenate([corners, box_sizes], axis=1), flips, spare)


def evaluation_view(height: int, width: int, *, size: int, resize: int) -> View:
    """Return the middle of the image, `size` pixels wide and high, after scaling its short side to `resize`; rounds
    like torchvision's Resize and CenterCrop. Raises UsageError if the output is larger than the scaled image."""
    if not 1 <= size <= resize:
        raise UsageError(f"image_size must be 1 to resize ({resize}), got {size}; choose a larger resize")
    if width <= height:
        resized_height, resized_width = int(resize * height / width), resize
    else:
        resized_height, resized_width = resize, int(resize * width / height)
    out_top, out_left = round((resized_height - size) / 2), round((resized_width - size) / 2)
    return View(0, 0, height, width, resized_height, resized_width, out_top, out_left, False)


def letterbox_views(
    seed: int, positions: Sequence[int], sizes: Sequence[tuple[int, int]], *, size: int, flip: float
) -> list[View]:
    """Return the complete image in the middle of the output, scaled so that its longer side fits. `sizes` are height
    and width of the images, `size` is the side of the output, and `flip` the probability of a horizontal flip."""
    views, flips = [], _draws(seed, positions)[:, 2 * TRIES + 2] < flip
    for (height, width), flipped in zip(sizes, flips.tolist(), strict=True):
        rows, columns = (max(1, round(side * size / max(height, width))) for side in (height, width))
        views.append(View(0, 0, height, width, rows, columns, (rows - size) // 2, (columns - size) // 2, flipped))
    return views


def transform_generator(seed: int, position: int, view: int = 0) -> np.random.Generator:
    """Return the random generator of one view of a sample, for a user's own transform.

    Its raw words never change; NumPy's Generator may draw other numbers from them in another release.
    """
    return np.random.Generator(
        np.random.Philox(key=philox_words(2, seed=seed, purpose=_of_view("load/transform", view), start=4 * position))
    )


def _of_view(purpose: str, view: int) -> str:
    """Return the purpose of a view's random words, so that each view has its own stream."""
    return f"{purpose}/{view}" if view else purpose


def _draws(seed: int, positions: Sequence[int], view: int = 0) -> NDArray[np.float64]:
    """Return random numbers in [0, 1), shape (positions, WORDS)."""
    draws, purpose = [], _of_view("load/augment", view)
    for first, stop in _runs(positions):
        start = positions[first]
        count = positions[stop - 1] - start + 1
        words = philox_words(count * WORDS, seed=seed, purpose=purpose, start=start * WORDS)
        wanted = np.asarray(positions[first:stop], np.int64) - start
        draws.append(words.reshape(count, WORDS)[wanted])
    # A float64 holds the upper 53 bits exactly.
    return (np.concatenate(draws) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and stop of runs of positions that are close enough together for one call."""
    gaps = [
        index
        for index, (before, after) in enumerate(pairwise(positions), 1)
        if not 0 <= (after - before) * WORDS <= _SKIPPED_WORDS
    ]
    return pairwise([0, *gaps, len(positions)])


def _boxes(
    draws: NDArray[np.float64], height: NDArray[np.int64], width: NDArray[np.int64], crop: RandomCrop
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return heights and widths of the boxes of all tries, shape (images, TRIES).

    Sums, products, quotients and roots are rounded in the same way on every processor, so the boxes are the same, too;
    only the logarithms of the two ratios come from the C library.
    """
    (least, most), ratio = crop.scale, crop.ratio
    area = (height * width) * (least + draws[:, 0::2] * (most - least))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = _exp(low + draws[:, 1::2] * (high - low))
    heights = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    widths = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    if crop.clip:
        return np.clip(heights, 1, height), np.clip(widths, 1, width)
    return heights, widths


def _exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e^x for small x by its series, because the last bit of NumPy's exp depends on the processor."""
    result = np.ones_like(x)
    for quotient in x / 8 / np.arange(14, 0, -1)[:, None, None]:
        result *= quotient
        result += 1
    for _ in range(3):
        result *= result
    return result


def _middle_view(height: int, width: int, size: int, ratio: tuple[float, float], flip: bool) -> View:
    """Return the largest centred box of an allowed ratio, for images in which no drawn box fits."""
    box_height, box_width = height, width
    if width / height < ratio[0]:
        box_height = round(width / ratio[0])
    elif width / height > ratio[1]:
        box_width = round(height * ratio[1])
    top, left = (height - box_height) // 2, (width - box_width) // 2
    return View(top, left, box_height, box_width, size, size, 0, 0, flip)
