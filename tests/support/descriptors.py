"""Open descriptors of this process, by what they lead to: other threads open and close others meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_descriptors(beginning: str) -> int:
    """Number of descriptors whose file has a path with this beginning; `/memfd:NAME` is that of shared memory."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(os.readlink(descriptor))
    return sum(target.startswith(beginning) for target in targets)
