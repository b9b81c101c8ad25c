"""What each stage of a loader did and where it waited; the stage for which the others wait is the bottleneck."""

from __future__ import annotations

import threading
from typing import TypedDict


class Stage(TypedDict):
    """Sums of one stage since the start."""

    items: int
    busy_s: float
    """Working time, summed over the threads of the stage."""
    get_wait_s: float
    """Time in which threads of the stage waited for the stage before it, summed over the threads."""
    put_wait_s: float
    """Time in which threads of the stage waited for the stage after it, summed over the threads."""


class Stats:
    """Stages by name; safe in many threads."""

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}
        self._lock = threading.Lock()

    def add(
        self, name: str, *, items: int = 0, busy_s: float = 0.0, get_wait_s: float = 0.0, put_wait_s: float = 0.0
    ) -> None:
        """Add work and waiting to a stage."""
        with self._lock:
            stage = self._stages.setdefault(name, Stage(items=0, busy_s=0.0, get_wait_s=0.0, put_wait_s=0.0))
            stage["items"] += items
            stage["busy_s"] += busy_s
            stage["get_wait_s"] += get_wait_s
            stage["put_wait_s"] += put_wait_s

    def take(self) -> dict[str, Stage]:
        """Return all stages since the last call, as arguments of `add`."""
        with self._lock:
            taken, self._stages = self._stages, {}
            return taken

    def snapshot(self) -> dict[str, Stage]:
        """Return all stages by name."""
        with self._lock:
            return {name: stage.copy() for name, stage in self._stages.items()}
