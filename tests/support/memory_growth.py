"""How much memory this process takes beyond what it has: of what a test does, and of nothing before it.

`ru_maxrss` never goes down, and begins with the peak of the process that started this one: a test beside larger ones
sees no growth by it, or growth that is not its own. The kernel's VmHWM belongs to the process alone and can be set back
(proc(5), clear_refs).
"""

from __future__ import annotations

import os
from pathlib import Path

from dataprep.host.measure import peak_bytes


class MemoryGrowth:
    """Measures from its making on."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before_bytes = peak_bytes(os.getpid())

    def bytes(self) -> int:
        """Return how far the largest resident memory since then exceeds that of the beginning."""
        return peak_bytes(os.getpid()) - self._before_bytes
