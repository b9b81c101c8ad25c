"""Finds images worth a look: those with the same bytes, and those with extreme sides, shapes and sizes.

Only columns of the index are read. Images are named by their positions: their numbers in the order of the shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataprep.dataset.columns import numbers_or_zero
from dataprep.dataset.hashes import Prints
from dataprep.dataset.index import open_index
from dataprep.dataset.records import SplitManifest
from dataprep.storage import Storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUPS = 12
"""Number of groups of duplicates that are named."""
SHOWN = 4
"""Number of images that are named for each extreme, and in each group of duplicates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Oddities:
    """Images of a split that are worth a look."""

    looked_at: int
    """Number of images among which duplicates were looked for; 0 where the index has no checksums."""
    is_partial: bool
    """Whether the split has more images than these."""
    duplicates: int
    """Number of images whose size and CRC32C are those of an earlier one."""
    groups: tuple[tuple[int, ...], ...]
    """Positions of images with the same size and CRC32C, for the first groups."""
    extremes: dict[str, tuple[int, ...]]
    """Positions of the most extreme images by what they are, the most extreme one first; without measures in which all
    images are the same."""


class _Extreme:
    """The positions of the smallest values so far; equal values keep their order."""

    def __init__(self) -> None:
        self.values: NDArray[np.float64] = np.empty(0)
        self.positions: NDArray[np.int64] = np.empty(0, np.int64)
        self.differs = False
        """Whether two values differ."""

    def add(self, values: NDArray[np.float64], positions: NDArray[np.int64]) -> None:
        both, places = np.concatenate([self.values, values]), np.concatenate([self.positions, positions])
        self.differs = self.differs or bool((both != both[:1]).any())
        smallest = np.argsort(both, kind="stable")[:SHOWN]
        self.values, self.positions = both[smallest], places[smallest]


def find_oddities(storage: Storage, split: SplitManifest) -> Oddities:
    """Look through the index of a split.

    Raises:
        FormatError: The index cannot be read.
    """
    extremes = {
        name: _Extreme()
        for name in (
            "narrowest",
            "widest",
            "fewest pixels",
            "most pixels",
            "fewest bytes a pixel",
            "most bytes a pixel",
        )
    }
    prints, start = Prints(), 0
    for batch in open_index(storage, split, compare=True).batches(["image_bytes", "height", "width", "image_crc32c"]):
        num_bytes, height, width = (numbers_or_zero(batch.column(number), np.int64) for number in range(3))
        positions = np.flatnonzero((height > 0) & (width > 0) & (num_bytes > 0))
        sides, pixels = width[positions] / height[positions], (width * height)[positions]
        density = num_bytes[positions] / pixels
        for name, values in zip(extremes, (sides, -sides, pixels, -pixels, density, -density), strict=True):
            extremes[name].add(values, start + positions)
        prints.add(num_bytes, batch.column(3))
        start += len(batch)
    found = prints.numbers()
    duplicates, groups = _groups(found)
    return Oddities(
        looked_at=len(found),
        is_partial=len(found) < start,
        duplicates=duplicates,
        groups=groups,
        extremes={name: tuple(extreme.positions.tolist()) for name, extreme in extremes.items() if extreme.differs},
    )


def _groups(prints: NDArray[np.uint64]) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return how often an image repeats an earlier one, and the positions of the first groups of equal images."""
    _, first, counts = np.unique(prints, return_index=True, return_counts=True)
    starts = np.sort(first[counts > 1])[:GROUPS]
    groups = tuple(tuple(np.flatnonzero(prints == prints[place])[:SHOWN].tolist()) for place in starts)
    return int((counts - 1).sum()), groups
