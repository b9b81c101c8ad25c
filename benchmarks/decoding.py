"""Contenders of restart.py and views.py: loaders and decoders that make a batch at a time, one after the other.

A call makes a batch and returns the seconds of CPU that it took. A loader is measured from rest to rest: it makes AHEAD
batches ahead and then waits, so that it does nothing while another contender is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from itertools import chain, repeat
from typing import Any, TypeVar

AHEAD = 1
Kind = TypeVar("Kind", bound=Hashable)
Contender = Callable[[], float]


class RestingLoader:
    """An open loader with one decoding thread and AHEAD batches ahead."""

    def __init__(self, loader: Any, batch_size: int) -> None:
        self._loader, self._batch_size = loader, batch_size
        self._batches, self._taken = chain.from_iterable(repeat(loader)), 0
        self()

    def __call__(self) -> float:
        started_s = time.process_time()
        next(self._batches)
        self._taken += 1
        # `stats()` would compute percentiles at each look, which is time that would count.
        while self._loader._stats._stages["decode"].items < (self._taken + AHEAD) * self._batch_size:
            time.sleep(0.005)
        return time.process_time() - started_s


class FromMemory:
    """Gives a function a batch of items that are in memory, one batch after the other."""

    def __init__(self, items: list[Any], batch_size: int, make: Callable[[list[Any]], Any]) -> None:
        self._items, self._batch_size, self._make, self._next = items, batch_size, make, 0

    def __call__(self) -> float:
        batch = [self._items[(self._next + number) % len(self._items)] for number in range(self._batch_size)]
        self._next += self._batch_size
        started_s = time.process_time()
        if self._make(batch):
            raise SystemExit("an image could not be decoded")
        return time.process_time() - started_s


def turns(contenders: Mapping[Kind, Contender], batches: int, batch_size: int) -> Callable[[], dict[Kind, float]]:
    """Return a round: CPU milliseconds an image of each contender, who make a batch in turn, `batches` times."""

    def once() -> dict[Kind, float]:
        spent = dict.fromkeys(contenders, 0.0)
        for _ in range(batches):
            for kind, contender in contenders.items():
                spent[kind] += contender()
        return {kind: round(1e3 * seconds / batches / batch_size, 5) for kind, seconds in spent.items()}

    return once


def ratios(cpu_ms: list[float], base_ms: list[float]) -> dict[str, Any]:
    """Return the median, the smallest and the largest ratio of the rounds."""
    found = sorted(mine / base for mine, base in zip(cpu_ms, base_ms, strict=True))
    middle = len(found) // 2
    return {"cpu_ms": cpu_ms, "ratio": (found[middle] + found[-1 - middle]) / 2, "low": found[0], "high": found[-1]}
