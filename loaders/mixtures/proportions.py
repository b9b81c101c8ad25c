"""Which dataset each position of a mixture takes: a rotation of a circle whose arcs are as long as the weights.

    circle          M points; dataset d owns an arc of M * w_d / (sum of weights) of them
    position n      lands on point n * A mod M, and takes a sample of the dataset whose arc that is
    A / M           703/1000 and a little more: 1,000 successive positions are almost evenly spaced on the circle

So each window of 1,000 positions has as many samples of each dataset as its weight says, to within one: evenly spaced
points would differ from it by less than one, and the little more, `_drift`, is too small to move two points into or out
of the same arc. It makes the shares exact in the long run, for weights that are no multiples of a thousandth. Since A
and M have no common divisor, M successive positions have exactly the weights' shares.

How many of the first n positions a dataset has is a sum of floors, which Euclid's algorithm computes in O(log M): no
position needs those before it. All is done in whole numbers, so every host computes the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd
from typing import TYPE_CHECKING

from dataprep.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WINDOW = 1000
"""Number of successive positions in which every dataset has its share to within one sample."""
MAX_TOTAL = 2**32
"""Maximum sum of the weights as whole numbers without a common divisor; the points then fit in 64 bits."""
_STEP = 703
"""Thousandths of the circle between two successive positions: 703/1000 = [0; 1, 2, 2, 1, 2, 1, 1, 1, 2, 1, 2] has the
smallest partial quotients of all fractions over 1,000, so windows of a batch's size are balanced well, too."""
_POINTS_AT_ONCE = 1024
"""Number of positions whose points are computed at once: products stay below 2^63 for weights up to MAX_TOTAL."""


@dataclass(frozen=True)
class Proportions:
    """The shares of some datasets in a sequence of positions.

    Raises:
        UsageError: A weight is below 1, or their sum is too large.
    """

    weights: tuple[int, ...]
    """Whole numbers, 1 or more; only their ratios matter."""

    def __post_init__(self) -> None:
        if not self.weights or min(self.weights) < 1:
            raise UsageError(f"weights must be whole numbers of 1 or more, got {list(self.weights)}")
        if self._total > MAX_TOTAL:
            raise UsageError(
                f"the weights have the sum {self._total:,} as whole numbers without a common divisor, expected "
                f"{MAX_TOTAL:,} or less; give weights with fewer digits"
            )

    @cached_property
    def _units(self) -> tuple[int, ...]:
        """The weights without their common divisor."""
        divisor = gcd(*self.weights)
        return tuple(weight // divisor for weight in self.weights)

    @cached_property
    def _total(self) -> int:
        return sum(self._units)

    @cached_property
    def _points(self) -> int:
        """M: number of points on the circle."""
        return WINDOW * WINDOW * self._total

    @cached_property
    def _bounds(self) -> tuple[int, ...]:
        """First point of each arc, and M."""
        return tuple(WINDOW * WINDOW * bound for bound in accumulate(self._units, initial=0))

    @cached_property
    def _stride(self) -> int:
        """A: distance on the circle between two successive positions."""
        return _STEP * WINDOW * self._total + _drift(self._units)

    def at(self, position: int) -> int:
        """Return the number of the dataset that a position takes a sample of."""
        return bisect_right(self._bounds, position * self._stride % self._points) - 1

    def between(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers of the datasets at positions `first` to `stop`."""
        import numpy as np

        parts = []
        for start in range(first, stop, _POINTS_AT_ONCE):
            offsets = np.arange(min(_POINTS_AT_ONCE, stop - start)) * self._stride
            points = (start * self._stride % self._points + offsets) % self._points
            parts.append(np.searchsorted(np.asarray(self._bounds), points, side="right") - 1)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def counts(self, positions: int) -> tuple[int, ...]:
        """Return how many of the first positions each dataset has."""
        # The floor of (point - bound) / M grows by one where a position lands on the bound or after it.
        reached = [
            _floor_sum(positions, self._points, self._stride, self._points - bound) for bound in self._bounds[1:-1]
        ]
        turns = _floor_sum(positions, self._points, self._stride, 0)
        bounds = [positions + turns, *reached, turns]
        return tuple(low - high for low, high in pairwise(bounds))

    def position_of(self, dataset: int, sample: int) -> int:
        """Return the position at which a dataset has its sample of this number, counted from 0."""
        low, high = 0, WINDOW
        while self.counts(high)[dataset] <= sample:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.counts(middle)[dataset] <= sample else (low, middle)
        return low


def whole_weights(weights: Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers of the same ratios without a common divisor; weights of 0 stay 0."""
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def _drift(units: tuple[int, ...]) -> int:
    """Return how much further than 703/1000 of the circle a position is from the one before, in points.

    In units of a weight, 1,000 evenly spaced points are `total` apart, and an arc is a multiple of that and `rest`
    more. A window's points are moved by less than 1,000 drifts of a millionth; where this is at most the smallest rest,
    and at most what the largest rest lacks, no window of 1,000 positions has two points more or fewer than its share.
    """
    total = sum(units)
    rests = [rest for unit in units if (rest := WINDOW * unit % total)]
    if not rests:
        return 0  # all weights are whole thousandths: each window has exactly its share
    # About 0.38, the golden ratio's square, spreads the windows that have one more as evenly as the limit allows.
    drift = min(min(rests), total - max(rests), max(1, round(0.382 * total)))
    while gcd(drift, 10 * total) > 1:
        drift -= 1
    return drift


def _floor_sum(count: int, divisor: int, factor: int, start: int) -> int:
    """Return the sum of (factor * i + start) // divisor for i = 0 to count - 1, all of them 0 or more.

    Euclid's algorithm: Graham, Knuth and Patashnik, "Concrete Mathematics", section 3.5.
    """
    total = 0
    while count:
        total += (count - 1) * count // 2 * (factor // divisor) + count * (start // divisor)
        factor, start = factor % divisor, start % divisor
        end = factor * count + start
        count, start, divisor, factor = end // divisor, end % divisor, factor, divisor
        if not divisor:
            break
    return total
