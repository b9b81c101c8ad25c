"""The two sets of situations, each drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.situations.draw import Draw, KnownRates
from benchmarks.situations.real import REAL
from benchmarks.situations.situation import Situation
from benchmarks.situations.unseen import UNSEEN
from benchmarks.situations.waiting import WAITING

Plant = Callable[[Draw, KnownRates, int], Situation]


def _numbered(kinds: Mapping[str, tuple[int, Plant]]) -> dict[str, Plant]:
    return {f"{name}-{number:02}": plant for name, (of_hundred, plant) in kinds.items() for number in range(of_hundred)}


SETS = {"first": _numbered(REAL | WAITING), "unseen": _numbered(UNSEEN)}
"""The sets by name: identifiers, no two the same, and the functions that plant."""
SEEDS = {"first": 0, "unseen": 6011}
"""Usual seed of each set. The diagnosis was tuned on situations of the first set, and never on one of the unseen."""
IDS = tuple(SETS["first"])
"""Identifiers of the first hundred situations."""


def spread(count: int, of: str = "first") -> list[str]:
    """Return `count` identifiers, evenly spread over all kinds of situations of a set."""
    ids = tuple(SETS[of])
    return [ids[len(ids) * index // count] for index in range(count)]


def plant(id_: str, rates: KnownRates, *, seed: int, cores: int) -> Situation:
    """Make one situation, which depends on the rates, the seed and the number of cores alone.

    Args:
        id_: An identifier of one of the sets.
    """
    plants = SETS["first"] | SETS["unseen"]
    return replace(plants[id_](Draw(f"{seed} {id_}"), rates, cores), id=id_)
