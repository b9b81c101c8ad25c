"""Garbage collection of programs that import much and live briefly: rarely, and not once more at their end."""

from __future__ import annotations

import atexit
import gc

COLLECT_AFTER = 20_000
"""Number of new objects after which a process collects garbage; Python's default is 700 or 2,000."""


def collect_rarely() -> None:
    """Collect garbage rarely, and not when this process ends.

    Imported objects are never garbage: while modules are imported, collections take 7 % of the CPU time. At the end of
    a process the interpreter looks at all objects once more, which takes a build 0.07 s.
    """
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)
