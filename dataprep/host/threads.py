"""Threads that run submitted tasks, and do not keep the process alive if they hang.

At exit the interpreter waits for an executor's threads, for ever if one of them waits for a disk that does not answer.
These threads are daemons; those that are still busy at exit get AT_EXIT_S to finish.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_Task: TypeAlias = tuple[Future[Any], Callable[[], Any]]

AT_EXIT_S = 5.0
"""Deadline for all threads together at the end of the process."""


class Threads:
    """Daemon threads that take tasks from one queue.

    Args:
        count: Number of threads.
        name: Name of the threads, to which a number is appended.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks,), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        _open.add(self)

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Queue a task; the future has its result or exception."""
        future: Future[T] = Future()
        self._tasks.put((future, task))
        return future

    def close(self, deadline_s: float) -> bool:
        """Cancel tasks that have not begun, and wait for the threads until the deadline, a time of `time.monotonic`.

        Returns:
            Whether all threads have ended.
        """
        with suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (found := tasks.get()) is not None:
        future, task = found
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(task())
            except BaseException as error:  # noqa: BLE001  raised by the future's result
                future.set_exception(error)
        del found, future, task  # otherwise an idle thread would keep its last result in memory


_open: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    deadline_s = time.monotonic() + AT_EXIT_S
    for threads in list(_open):
        threads.close(deadline_s)
