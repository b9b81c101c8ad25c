"""Attacks by a second build at the same place, while the first one is suspended, resumed, killed, or just slower."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.attacks import Attack
from tests.support.two_builds import schedule

SCHEDULES = 40
SAMPLED = (0, 3, 38)
"""On disk, so that no emulator is started for them. In the last one a running build from a table of URLs is
overwritten with another plan."""


def _schedule(number: int, folder: Path) -> str:
    return schedule(number, folder, None)


ATTACKS = [
    Attack(f"schedule {number}", partial(_schedule, number), sampled=number in SAMPLED) for number in range(SCHEDULES)
]
