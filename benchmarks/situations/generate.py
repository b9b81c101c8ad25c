"""The situations of a seed."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.situations.draw import Draw, KnownRates
from benchmarks.situations.situation import Situation
from benchmarks.situations.unseen import UNSEEN

SEED = 6011
"""Usual seed; the diagnosis was never tuned on its situations."""
PLANTS = {f"{name}-{number:02}": plant for name, (of_hundred, plant) in UNSEEN.items() for number in range(of_hundred)}
"""Functions that plant, by the identifier of a situation."""
IDS = tuple(PLANTS)


def spread(count: int) -> list[str]:
    """Return `count` identifiers, evenly spread over all kinds of situations."""
    return [IDS[len(IDS) * index // count] for index in range(count)]


def plant(id_: str, rates: KnownRates, *, seed: int, cores: int) -> Situation:
    """Make one situation, which depends on the rates, the seed and the number of cores alone."""
    return replace(PLANTS[id_](Draw(f"{seed} {id_}"), rates, cores), id=id_)
