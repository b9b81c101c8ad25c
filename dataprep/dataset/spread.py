"""Positions of a few members of a long list that are spread evenly over it, and so is every beginning of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

_GOLDEN = (5**0.5 - 1) / 2
"""Step whose multiples, modulo 1, divide the unit interval evenly wherever they end."""


def spread(length: int, most: int) -> list[int]:
    """Return up to `most` different positions below `length`; the first n of them are spread evenly, for every n."""
    return list(islice(_different(length), min(length, most)))


def _different(length: int) -> Iterator[int]:
    seen = set()
    for number in count():
        position = int(length * (number * _GOLDEN % 1))
        if position not in seen:
            seen.add(position)
            yield position
