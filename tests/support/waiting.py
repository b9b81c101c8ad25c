"""Waiting for what another thread or process does, however long a busy machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_S = 60.0
POLL_S = 0.01


def wait_for(condition: Callable[[], object]) -> None:
    """Return when the condition holds, or after a minute: then whoever waits finds that it does not."""
    until_s = time.monotonic() + LONGEST_S
    while not condition() and time.monotonic() < until_s:
        time.sleep(POLL_S)
