"""Counts histograms with readable bins, batch by batch in fixed memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MAX_SIDE = 65_535
"""Longest side of a JPEG in pixels: its header has 16 bits for each side."""
_COMMON_ASPECTS = (9 / 16, 2 / 3, 3 / 4, 1, 4 / 3, 3 / 2, 16 / 9)
ASPECT_EDGES = (1 / 2, *(math.sqrt(low * high) for low, high in pairwise(_COMMON_ASPECTS)), 2)
"""Edges of the bins for the ratio of width to height; each bin contains one common ratio, and the values nearest to
it."""
ASPECT_LABELS = (
    "narrower than 1:2", "about 9:16", "about 2:3", "about 3:4", "about square", "about 4:3", "about 3:2",
    "about 16:9", "2:1 and wider",
)  # fmt: skip
BYTE_EDGES = tuple(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5))
_STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1_000, 2_000, 2_500, 5_000, 10_000, 20_000)
_BINS = 10


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bin, and the labels of the bins."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, median and largest value of one measure over many images."""

    smallest: int
    median: int
    largest: int


class SideCounts:
    """Exact counts of one side of the images, in pixels."""

    def __init__(self) -> None:
        self._counts = np.zeros(MAX_SIDE + 1, np.int64)

    def add(self, sides: NDArray[np.int64]) -> None:
        """Count a batch; an impossible side counts as the nearest possible one."""
        self._counts += np.bincount(np.clip(sides, 0, MAX_SIDE), minlength=MAX_SIDE + 1)

    def spread(self) -> Spread | None:
        """Return smallest, median and largest; None if nothing was counted."""
        total = int(self._counts.sum())
        if total == 0:
            return None
        sides = np.flatnonzero(self._counts)
        return Spread(int(sides[0]), self._quantile(total, 0.5), int(sides[-1]))

    def histogram(self) -> Histogram:
        """Return about ten bins of equal, round width for 98 % of the images, and one bin at each end for the
        rest."""
        total = int(self._counts.sum())
        if total == 0:
            return Histogram((), ())
        low, high = self._quantile(total, 0.01), self._quantile(total, 0.99)
        step = next((step for step in _STEPS if (high - low) / step <= _BINS), _STEPS[-1])
        edges = range(low // step * step, high + step + 1, step)
        before = np.concatenate([[0], np.cumsum(self._counts)])  # number of images with a smaller side
        before_edge = [int(before[min(edge, MAX_SIDE + 1)]) for edge in edges]
        counts = [before_edge[0], *(high - low for low, high in pairwise(before_edge)), total - before_edge[-1]]
        inner = [f"{low:,} to {high - 1:,}" if step > 1 else f"{low:,}" for low, high in pairwise(edges)]
        labels = [f"under {edges[0]:,}", *inner, f"{edges[-1]:,} and more"]
        first, last = 0 if counts[0] else 1, len(counts) if counts[-1] else -1
        return Histogram(tuple(labels[first:last]), tuple(counts[first:last]))

    def _quantile(self, total: int, share: float) -> int:
        return int(np.searchsorted(np.cumsum(self._counts), max(1, share * total)))


class BinCounts:
    """Counts of values between fixed edges: below the first, between each two, from the last on."""

    def __init__(self, edges: tuple[float, ...], labels: tuple[str, ...]) -> None:
        self._edges, self._labels = np.asarray(edges), labels
        self._counts = np.zeros(len(labels), np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count a batch."""
        self._counts += np.bincount(np.searchsorted(self._edges, values, side="right"), minlength=len(self._labels))

    def histogram(self, *, trim: bool) -> Histogram:
        """Return all bins, or with `trim` those from the first to the last non-empty one."""
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return Histogram((), ())
        first, last = (int(filled[0]), int(filled[-1]) + 1) if trim else (0, len(self._labels))
        return Histogram(self._labels[first:last], tuple(int(count) for count in self._counts[first:last]))


def byte_labels() -> tuple[str, ...]:
    """Return the labels of the bins between BYTE_EDGES."""
    names = [f"{edge // 10**6} MB" if edge >= 10**6 else f"{edge // 10**3} kB" for edge in BYTE_EDGES]
    middle = [f"{a} to {b}" for a, b in pairwise(names)]
    return (f"under {names[0]}", *middle, f"{names[-1]} and more")
