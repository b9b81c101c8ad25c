"""Worker processes and daemon threads: their environment, and their end together with the process that started them.

At exit the interpreter waits for an executor's threads, forever if one of them waits for a disk that does not answer.
The threads here are daemons; those that are still busy at exit get AT_EXIT_S to finish.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing.forkserver
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

# A child starts as `python -c`, which would look for the standard library in the current folder first, such as in a
# downloaded dataset. A user's own modules are found as in the parent, whose path the child gets.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
# By default glibc returns every image's buffer to the kernel and allocates it again, a third of the CPU time of image
# work. OpenBLAS starts a thread for each core when NumPy is imported, for algebra that neither builds nor loaders use.
WORKER_ENVIRONMENT = SAFE_PATH | {
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "OPENBLAS_NUM_THREADS": "1",
}
# A process that builds one shard at a time reads a bucket in many threads. By default each of glibc's arenas, eight for
# each core, keeps what its threads have freed, 170 MB in all; two serve such a process as fast.
BUILD_ENVIRONMENT = WORKER_ENVIRONMENT | {"MALLOC_ARENA_MAX": "2"}
KILL_S = 10.0
"""Deadline for the end of a killed process: a process that waits for a disk inside the kernel does not end."""
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
T = TypeVar("T")
_Task: TypeAlias = tuple[Future[Any], Callable[[], Any]]
AT_EXIT_S = 5.0
"""Deadline for all threads together at the end of the process."""
_open: weakref.WeakSet[Threads] = weakref.WeakSet()


def find_modules_here() -> None:
    """Let this process and its workers find the user's modules in the current folder, after all other folders."""
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside the block, except those that the user has set."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def without_main() -> Iterator[None]:
    """Keep processes that are started inside the block from importing this process's main program.

    Otherwise each would run a script that calls dataprep without `if __name__ == "__main__"` again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def start_fork_server(modules: Sequence[str]) -> None:
    """Start the process that forks workers and imports modules first, and return at once. Only the first call chooses
    the modules. Raises OSError if the folder for temporary files cannot have its socket."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*modules])
    with environment(BUILD_ENVIRONMENT), without_main():
        # Ctrl-C reaches all processes of the group, and this one ignores it only after its imports. The start of the
        # tracker, which it needs, would unblock the signal.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_or_leave(process: BaseProcess) -> bool:
    """Wait for the end of a killed process, and leave it behind if it does not end; return whether it ended."""
    process.join(KILL_S)
    if process.is_alive():
        # Otherwise the interpreter would wait for it at exit, forever.
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        return False
    process.close()
    return True


def on_parents_death(act: Callable[[], object]) -> None:
    """Call `act` in a thread when the parent has ended; for processes that `multiprocessing` started."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            act()

    threading.Thread(target=watch, daemon=True).start()


def end_with(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent's thread ends, even if no thread of this process can run Python
    then.

    Args:
        parent_pid: Process that started this one, as given by that process. If it has ended already, this process is
            killed at once; `os.getppid` would then return the process that adopts orphans.
    """
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


class Threads:
    """Daemon threads that take tasks from one queue.

    Args:
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


@atexit.register
def _close_all() -> None:
    deadline_s = time.monotonic() + AT_EXIT_S
    for threads in list(_open):
        threads.close(deadline_s)
