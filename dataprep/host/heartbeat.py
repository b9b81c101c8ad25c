"""Heartbeats: a count that a process advances with every piece of work, and watchers of that count.

A limit on the time without progress works for a shard of a minute and for one of an hour. A process beats for every
range read, image checked, MiB written and chunk sent; the counter may be in memory shared with its parent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

POLL_S = 1.0
"""Time between two looks at a counter."""
WARN_AFTER_S = 60.0
"""Time without progress before the first warning; the next ones follow after twice, four times, … this time. Even a
busy network file system or bucket answers sooner."""
STALL_S = 20 * 60.0
"""Default limit on the time without progress: enough for the restart of a file server."""
MAX_STALL_MINUTES = 60 * 24 * 366.0
"""Largest limit that an option accepts, in minutes."""


class BeatCounter(Protocol):
    """A number that can be read and set, such as one from `multiprocessing.sharedctypes`."""

    value: int


class Beats:
    """A counter that only this process sees."""

    def __init__(self) -> None:
        self.value = 0


_beats: BeatCounter = Beats()


def beat() -> None:
    """Record that this process made progress. Threads may lose each other's beats; only the change matters."""
    _beats.value += 1


def beat_into(counter: BeatCounter) -> None:
    """Count the beats of this process in another counter from now on, such as one in memory shared with its parent."""
    global _beats
    _beats = counter


def beats() -> int:
    """Return the number of beats of this process."""
    return _beats.value


class Standstill:
    """Measures the time since a number last changed.

    At most `2 * poll_s` of the time between two looks is counted, so that a process which was suspended together with
    its watcher (Ctrl-Z, a closed laptop) does not seem to hang.

    Args:
        read: Function that returns the number.
        limit_s: Time without change after which the limit has passed.
    """

    def __init__(self, read: Callable[[], float], limit_s: float) -> None:
        self._read, self._limit_s = read, limit_s
        self.poll_s = min(POLL_S, limit_s / 4)
        self.reset()

    def reset(self) -> None:
        """Start again from the current number and time."""
        self._last = self._read()
        self._looked_s = time.monotonic()
        self._warn_at_s = min(WARN_AFTER_S, self._limit_s / 2)
        self.idle_s = 0.0

    def look(self) -> None:
        """Compare the number with the previous look, and update `idle_s`."""
        now_s, found = time.monotonic(), self._read()
        if found != self._last:
            self.reset()
            return
        self.idle_s += min(now_s - self._looked_s, 2 * self.poll_s)
        self._looked_s = now_s

    @property
    def is_over(self) -> bool:
        """Whether the limit has passed."""
        return self.idle_s >= self._limit_s

    def warning_due(self) -> bool:
        """Return whether a warning is due, once at each of the growing intervals."""
        if self.idle_s < self._warn_at_s:
            return False
        self._warn_at_s *= 2
        return True


@contextmanager
def watched(limit_s: float, warn: Callable[[float], object], give_up: Callable[[float], object]) -> Iterator[None]:
    """Watch the thread that enters the block; it counts as alive while beats are recorded or it uses the processor.

    Args:
        limit_s: Time without a sign of life after which `give_up` is called, once.
        warn: Called at growing intervals, with the seconds since the last sign of life.
        give_up: Called with the same seconds in the watching thread, which cannot end the hanging thread itself.
    """
    used_s = _processor_clock()
    still = Standstill(lambda: beats() + used_s(), limit_s)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(still.poll_s):
            still.look()
            if still.is_over:
                give_up(still.idle_s)
                return
            if still.warning_due():
                warn(still.idle_s)

    thread = threading.Thread(target=watch, name="dataprep-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _processor_clock() -> Callable[[], float]:
    """Return a function that reads the calling thread's CPU time from other threads; the process's if that fails."""
    try:
        clock = time.pthread_getcpuclockid(threading.get_ident())
    except AttributeError:  # not on macOS
        return time.process_time
    return lambda: time.clock_gettime(clock)


def minutes(seconds: float) -> str:
    """Write a time as `20 min`, or as `40 s` below two minutes."""
    return f"{seconds:.0f} s" if seconds < 2 * 60 else f"{seconds / 60:.0f} min"
