"""The situations of one seed."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.situations.draw import Draw, KnownRates
from benchmarks.situations.real import REAL
from benchmarks.situations.situation import Situation
from benchmarks.situations.waiting import WAITING

_PLANTS = {
    f"{name}-{number:02}": plant
    for name, (of_hundred, plant) in (REAL | WAITING).items()
    for number in range(of_hundred)
}
IDS = tuple(_PLANTS)
"""Identifiers of all hundred situations."""


def spread(count: int) -> list[str]:
    """Return `count` identifiers, evenly spread over all kinds of situations."""
    return [IDS[len(IDS) * index // count] for index in range(count)]


def plant(id_: str, rates: KnownRates, *, seed: int, cores: int) -> Situation:
    """Make one situation, which depends on the rates, the seed and the number of cores alone.

    Args:
        id_: One of `IDS`.
    """
    return replace(_PLANTS[id_](Draw(f"{seed} {id_}"), rates, cores), id=id_)
