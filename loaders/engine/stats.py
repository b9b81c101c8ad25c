"""What each stage of a loader did and where it waited; the stage for which the others wait is the bottleneck."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Stage:
    """Sums of one stage since the start."""

    items: int = 0
    busy_s: float = 0.0
    """Working time, summed over the threads of the stage."""
    get_wait_s: float = 0.0
    """Time in which threads of the stage waited for the stage before it, summed over the threads."""
    put_wait_s: float = 0.0
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
            stage = self._stages.setdefault(name, Stage())
            stage.items += items
            stage.busy_s += busy_s
            stage.get_wait_s += get_wait_s
            stage.put_wait_s += put_wait_s

    def take(self) -> dict[str, dict[str, Any]]:
        """Return all stages since the last call, as arguments of `add`."""
        with self._lock:
            taken = {name: asdict(stage) for name, stage in self._stages.items()}
            self._stages.clear()
            return taken

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Return all stages, `{name: {items, busy_s, get_wait_s, put_wait_s}}`."""
        with self._lock:
            return {name: asdict(stage) for name, stage in self._stages.items()}
