"""Waiting for what another thread or process does, however long a busy machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

LONGEST_S = 60.0
POLL_S = 0.01


def wait_for(condition: Callable[[], object]) -> None:
    """Return when the condition holds, or after a minute: then whoever waits finds that it does not."""
    until_s = time.monotonic() + LONGEST_S
    while not condition() and time.monotonic() < until_s:
        time.sleep(POLL_S)


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; a zombie has.

    The kernel keeps a zombie until its parent waits for it. An orphan's parent is process 1, which in a
    container may be a program that never waits.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def end_soon(pids: list[int]) -> bool:
    """Return whether all processes end within a minute."""
    wait_for(lambda: not any(is_running(pid) for pid in pids))
    return not any(is_running(pid) for pid in pids)
