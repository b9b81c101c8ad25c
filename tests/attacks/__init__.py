"""Attacks on datasets, originals, hosts and processes that the toolkit must withstand.

Each module lists its attacks as `ATTACKS`. `make soak SHOW=attacks` runs every one; `make test` runs those that are
sampled, which take two minutes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    It runs in an empty folder. It returns a line that says what held, and raises AssertionError where something did
    not.
    """

    name: str
    run: Callable[[Path], str]
    sampled: bool = False
    """Whether `make test` runs it, too."""


def all_attacks() -> Iterator[Attack]:
    """Yield the attacks of every module of this package, each under `<module>: <name>`."""
    for module in sorted(found.name for found in iter_modules(__path__)):
        for attack in import_module(f"{__name__}.{module}").ATTACKS:
            yield Attack(f"{module}: {attack.name}", attack.run, attack.sampled)
