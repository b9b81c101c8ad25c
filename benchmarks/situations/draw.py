"""Draws of a generator of situations: the same for one key, on every machine."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from benchmarks.situations.situation import Situation

T = TypeVar("T")
MIN_RATIO, MAX_RATIO = 1.15, 4.0
"""Smallest and largest ratio of the second slowest stage's rate to that of the slowest."""


class Draw:
    """Random draws for one situation.

    Args:
        key: Name of what is drawn, e.g. the seed, the cause and a number.
    """

    def __init__(self, key: str) -> None:
        self._rng = random.Random(key)  # strings are hashed by SHA-512: the same in every process

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of the choices, all with the same probability."""
        return choices[int(self._rng.random() * len(choices))]

    def log_uniform(self, low: float, high: float) -> float:
        """Return a number between two bounds, uniform on a logarithmic scale."""
        return low * math.exp(self._rng.random() * math.log(high / low))

    def ratio(self) -> float:
        """Draw the ratio of the second stage's rate to that of the limiting one."""
        return self.log_uniform(MIN_RATIO, MAX_RATIO)


class KnownRates(Protocol):
    """Rates of the machine without a planted cause, images/s."""

    def loader(self, situation: Situation) -> float:
        """Return the loader's rate with a device that takes no time."""

    def device(self, situation: Situation) -> float:
        """Return the rate of a situation's device alone."""

    def image_bytes(self, situation: Situation) -> float:
        """Return the mean size of the stored images."""


def simulated(images_per_s: float) -> str:
    """Return the name of a simulated device."""
    return f"simulated:{images_per_s:.0f}"
