"""Watches a job that runs elsewhere: whether it still makes progress, as its receipts and its states show."""

from __future__ import annotations

import time
from collections.abc import Callable

WITHOUT_WORKERS = "WAITING FOR WORKERS"
"""State of a job that has begun and has no machine, yet or at present."""
_WAITING = ("STARTING", "STOPPED", "PENDING", "QUEUED", "UNRECOGNIZED", WITHOUT_WORKERS)
"""States of a job that has no workers, and may wait for them for hours. Beam shows Dataflow's JOB_STATE_QUEUED as
UNRECOGNIZED."""


class JobWatch:
    """State of a job and the time of its last progress, as known to the driver.

    Args:
        name: Name of the engine in messages.
        stall_s: Seconds after which a running job that finishes no shard counts as hanging.
        log: Receives lines for the user.
    """

    def __init__(self, name: str, stall_s: float, log: Callable[[str], object]) -> None:
        self._name, self._stall_s, self._log = name, stall_s, log
        self._state = "RUNNING"
        self._progress_s = time.monotonic()
        self._warned = False

    def entered(self, state: str) -> None:
        """Record a change of the job's state, in the engine's words: RUNNING, PENDING, …"""
        self._state = state
        self._log(f"{self._name}: the job is {state}")
        self.progressed()

    def progressed(self) -> None:
        """Record that a shard was finished, or that the job's state has changed."""
        self._progress_s, self._warned = time.monotonic(), False

    def verdict(self, missing: int) -> str | None:
        """Warn after half of the stall time; after all of it, return the reason why the job is to be cancelled."""
        idle_s = time.monotonic() - self._progress_s
        if self._state in _WAITING:
            return None
        if idle_s > self._stall_s:
            return f"no shard was finished for {idle_s:.0f} s, the job is {self._state}; it was cancelled"
        if idle_s > self._stall_s / 2 and not self._warned:
            self._warned = True
            self._log(
                f"{self._name}: no shard was finished for {idle_s:.0f} s, {missing} are left, the job is "
                f"{self._state}; it is cancelled after {self._stall_s:.0f} s (--stall-minutes)"
            )
        return None
