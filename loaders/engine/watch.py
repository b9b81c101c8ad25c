"""Waiting for a batch as long as it makes progress; an error names what hangs.

A thread that waits for a disk, or that never returns from a decoder or transform, cannot be ended: the thread that
waits for it gives up instead.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TypeVar

from dataprep.errors import StorageError
from dataprep.host.heartbeat import Standstill, minutes

T = TypeVar("T")

MAX_NAMED = 3
"""Maximum number of images, threads or shards that a message names."""


class Activity:
    """What each thread of a pipeline is doing, and how many things they have done."""

    def __init__(self) -> None:
        self.count = 0
        self._doing: dict[int, Callable[[], str]] = {}

    def begin(self, describe: Callable[[], str]) -> None:
        """Note what the calling thread does from now on; `describe` is called only if that hangs."""
        self._doing[threading.get_ident()] = describe

    def advance(self) -> None:
        """Count one more thing as done. Threads may lose each other's counts: only the change matters."""
        self.count += 1

    def end(self) -> None:
        """Note that the calling thread does nothing any more."""
        self._doing.pop(threading.get_ident(), None)
        self.count += 1

    def __str__(self) -> str:
        return some([describe() for describe in list(self._doing.values())], "; ") or "nothing is in progress"


class BatchWatch:
    """Waits for the parts of one batch.

    Args:
        activity: What the pipeline that makes the batch is doing.
        batch: Number of the batch, counted over all epochs.
        stall_s: Seconds without progress after which waiting ends with an error.
    """

    def __init__(self, activity: Activity, batch: int, stall_s: float) -> None:
        self._activity, self._batch, self._stall_s = activity, batch, stall_s
        self._still = Standstill(lambda: activity.count, stall_s)

    def wait(self, attempt: Callable[[float], T | None]) -> T:
        """Call `attempt` until it returns something; its argument says for how many seconds it may wait.

        Raises:
            StorageError: Nothing was done for too long; the message says what hangs.
        """
        while (found := attempt(self._still.poll_s)) is None:
            require_progress(
                self._still,
                self._stall_s,
                f"loader: batch {self._batch}: no image was read or decoded",
                lambda: f"in progress: {self._activity}",
                "Look whether the disk or the transform hangs, or raise stall_s, and resume from the last state",
            )
        return found

    def settled(self, future: Future[T], waiting: Callable[[], object] = lambda: None) -> T:
        """Wait for the result of a future; `waiting` is called before each look at it."""

        def attempt(seconds: float) -> Future[T] | None:
            waiting()
            with suppress(CancelledError, TimeoutError):
                future.exception(seconds)
            return future if future.done() else None

        return self.wait(attempt).result()


def require_progress(still: Standstill, stall_s: float, what: str, details: Callable[[], str], advice: str) -> None:
    """Check once for progress: after a minute without any warn on stderr, and after the limit raise an error.

    Args:
        still: Watch of what must make progress.
        stall_s: Limit that the messages name.
        what: What made no progress, as the start of a sentence.
        details: Describes what hangs; called only where a message needs it.
        advice: What to do, as a sentence.

    Raises:
        StorageError: There was no progress for too long.
    """
    still.look()
    if still.is_over:
        idle = minutes(still.idle_s)
        raise StorageError(f"{what} for {idle} (stall_s {stall_s:g}); {details()}. {advice}")
    if still.warning_due():
        idle = minutes(still.idle_s)
        print(f"{what} for {idle}; an error after {minutes(stall_s)}; {details()}", file=sys.stderr)


def some(names: list[str], separator: str = ", ") -> str:
    """Join the first MAX_NAMED names, and say how many more there are."""
    more = len(names) - MAX_NAMED
    return separator.join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
