"""Durations as a histogram of fixed buckets, from which percentiles are estimated; any two can be added.

The bounds of the buckets are the Renard series R40 of ISO 3, whose neighbours differ by 7.2 % or less, so an estimate
is within 3.5 % of a duration that was measured. They include 1, 2 and 5 times each power of ten, so Prometheus gets
exact counts for readable bounds. The registry's ddsketch and hdrhistogram would do the same for any values; they are
not used because a table of bounds and `bisect` are all that durations need, and a loader installs nothing for them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

_RENARD_40 = (
    *(1.0, 1.06, 1.12, 1.18, 1.25, 1.32, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.12, 2.24, 2.36, 2.5, 2.65, 2.8, 3.0),
    *(3.15, 3.35, 3.55, 3.75, 4.0, 4.25, 4.5, 4.75, 5.0, 5.3, 5.6, 6.0, 6.3, 6.7, 7.1, 7.5, 8.0, 8.5, 9.0, 9.5),
)
SMALLEST_S = 1e-6
LARGEST_S = 1e5
"""Range of the buckets (SMALLEST_S, LARGEST_S): from a microsecond to a day. Any duration beyond counts as its end."""
RELATIVE_ERROR = 0.035
"""Largest distance of a percentile from the measured duration of that rank, as a share of it, within the range."""


def _bounds() -> tuple[float, ...]:
    """Return the upper bounds of all buckets, each as the decimal number that it is written as."""
    decades = range(round(math.log10(SMALLEST_S)), round(math.log10(LARGEST_S)))
    return (*(float(f"{step}e{decade}") for decade in decades for step in _RENARD_40), LARGEST_S)


BOUNDS_S = _bounds()
"""Upper bounds of the buckets; a bucket holds durations above the bound before its own, up to its own."""


class Percentiles(TypedDict):
    """Durations of which 50, 90 and 99 % of all that were measured are no longer, seconds."""

    p50: float
    p90: float
    p99: float


@dataclass(slots=True)
class Durations:
    """Durations that were measured: their number and sum, and how many are in each bucket. Memory is bounded."""

    sum_s: float = 0.0
    counts: dict[int, int] = field(default_factory=dict)
    """Number of durations by bucket; empty buckets are left out."""

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts.values())

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self.sum_s += seconds
        bucket = bisect_left(BOUNDS_S, seconds, 0, len(BOUNDS_S) - 1)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: Durations) -> None:
        """Add all durations of another histogram, e.g. that of a worker process."""
        self.sum_s += other.sum_s
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def copy(self) -> Durations:
        """Return a copy, which does not change any more."""
        return Durations(self.sum_s, dict(self.counts))

    def since(self, earlier: Durations) -> Durations:
        """Return the durations that were added after an earlier copy was made."""
        more = {bucket: count - earlier.counts.get(bucket, 0) for bucket, count in self.counts.items()}
        return Durations(self.sum_s - earlier.sum_s, {bucket: count for bucket, count in more.items() if count})

    def percentile(self, percent: float) -> float:
        """Estimate the shortest duration than which `percent` % of all are no longer; 0 where nothing was measured.

        This is numpy.percentile with method="inverted_cdf", within RELATIVE_ERROR.
        """
        needed, passed = max(1, math.ceil(self.count * (percent / 100))), 0
        for bucket in sorted(self.counts):
            passed += self.counts[bucket]
            if passed >= needed:
                return _middle(bucket)
        return 0.0

    def percentiles(self) -> Percentiles:
        """Return the median, and how long the longest tenth and hundredth take at least."""
        return Percentiles(p50=self.percentile(50), p90=self.percentile(90), p99=self.percentile(99))

    def cumulative(self, bounds_s: Sequence[float]) -> list[int]:
        """Return the number of durations up to each of some bounds, which are among BOUNDS_S."""
        last = [bisect_left(BOUNDS_S, bound) for bound in bounds_s]
        return [sum(count for bucket, count in self.counts.items() if bucket <= end) for end in last]


def _middle(bucket: int) -> float:
    """Return the duration whose relative error is the same for both bounds of a bucket."""
    if bucket == 0:
        return SMALLEST_S
    low, high = BOUNDS_S[bucket - 1], BOUNDS_S[bucket]
    return 2 * low * high / (low + high)
