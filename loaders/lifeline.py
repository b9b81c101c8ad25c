"""A process that does not outlive the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


def end_with(parent_pid: int) -> None:
    """Have this process killed when the thread that started it ends, and at once where its process has ended already.

    Args:
        parent_pid: of the process that started this one, as that one knew it. Asked for here, after a death in between,
            it would be whoever adopts orphans.
    """
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
