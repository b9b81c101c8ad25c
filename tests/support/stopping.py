"""Run the command line and stop it, as kill -9 or a suspended machine would, at the n-th commit boundary.

    assert run(arguments, boundary=3, when="before").code == STOPPED
    assert run(arguments).code == 0  # to its end
    build = start(arguments, Stops((3, 8), suspend=True))
    assert build.wait(60) == SUSPENDED
    build.send(signal.SIGCONT)

A boundary on disk is every system call that changes what a reader or a rerun could see: link, rename, unlink, mkdir,
rmdir, symlink. In a bucket it is every request but range reads. Shards are built in the command's own process, so that
the count is the same every time; an image folder's files and requests are under way many at once.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psutil

from dataprep.builder.recipe import RECIPES, build_shard, recipe_named
from tests.support import warm

BOUNDARIES = ("link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "symlink")
STOPPED = 9
POLL_S, MOST_POLL_S = 0.002, 0.03
RUNNING, SUSPENDED, ENDED = "running", "suspended", "ended"


@dataclass(frozen=True, slots=True)
class Stops:
    """Where a command stops by itself."""

    boundaries: Sequence[int] = ()
    when: str = "before"
    """Whether the process stops `before` or `after` the boundary."""
    suspend: bool = False
    """Whether the process is suspended, so that it can be resumed; otherwise it exits with STOPPED."""
    requests: bool = False
    """Boundaries are requests, not system calls."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    stderr: str

    @property
    def last_line(self) -> str:
        return (self.stderr.strip().splitlines() or [""])[-1]


class Running:
    """A command that was started."""

    def __init__(self, process: warm.Process) -> None:
        self._process = process
        self._ended: Ended | None = None

    def state(self) -> str:
        """RUNNING, SUSPENDED or ENDED."""
        if self._ended is None and self._process.poll() is None:
            is_suspended = psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED
            return SUSPENDED if is_suspended else RUNNING
        self._ended = self._ended or Ended(self._process.returncode or 0, self._process.communicate()[1])
        return ENDED

    def wait(self, longest_s: float) -> str:
        """Return the state of the process when it does not run any more, or when the time is over."""
        until_s, pause_s = time.monotonic() + longest_s, POLL_S
        while (state := self.state()) == RUNNING and time.monotonic() < until_s:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_POLL_S)
        return state

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it has ended."""
        self._process.send_signal(number)

    def ended(self) -> Ended:
        """What became of it, once it has ended."""
        assert self.state() == ENDED
        assert self._ended is not None
        return self._ended


@functools.cache
def _imported() -> tuple[str, ...]:
    """Return the modules that commands need, once for the process that forks them."""
    from dataprep.commands import retry_failed
    from pipelines import local

    of_recipes = [name for recipe in RECIPES for name in recipe_named(recipe).worker_modules]
    return (*of_recipes, *local._BUCKET_MODULES, *retry_failed._WORKER_MODULES, *warm.DATAPREP)


def start(arguments: Sequence[object], stops: Stops) -> Running:
    """Start a command beside others."""
    words = (__name__, json.dumps(asdict(stops)), *map(str, arguments))
    return Running(warm.start(*words, environment=os.environ, folder=Path.cwd(), imported=_imported()))


def run(arguments: Sequence[object], *, boundary: int = 0, when: str = "before") -> Ended:
    """Run a command to a boundary, where it exits with STOPPED; to its end if it is 0 or is not reached."""
    running = start(arguments, Stops((boundary,) if boundary else (), when))
    while running.wait(60) != ENDED:
        pass
    return running.ended()


def stop_at(stops: Stops) -> None:
    """From now on stop at these boundaries."""
    numbers = itertools.count(1)

    def stop() -> None:
        if not stops.suspend:
            os._exit(STOPPED)
        os.kill(os.getpid(), signal.SIGSTOP)

    def stopping(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            due = next(numbers) in stops.boundaries
            if due and stops.when == "before":
                stop()
            try:
                return call(*arguments, **options)
            finally:
                if due and stops.when == "after":
                    stop()

        return wrapped

    if stops.requests:
        from requests import Session

        Session.send = stopping(Session.send)  # type: ignore[method-assign]
        return
    for name in BOUNDARIES:
        setattr(os, name, stopping(getattr(os, name)))


@contextmanager
def _inline_engine(*_: object) -> Iterator[Any]:
    yield lambda job, indexes: (build_shard(job, index) for index in indexes)


@contextmanager
def _inline_pool(*_: object, **__: object) -> Iterator[Any]:
    yield SimpleNamespace(run=map)


def main() -> None:
    """Run the command of the words after the first, which says where it stops. No function at exit is a boundary."""
    from dataprep import cli
    from dataprep.commands import retry_failed
    from pipelines import local

    patch.object(local, "open_engine", _inline_engine).start()  # patch refuses names that are not there
    patch.object(retry_failed, "Pool", _inline_pool).start()
    stops = Stops(**json.loads(sys.argv[1]))
    if stops.boundaries:
        stop_at(stops)
    sys.argv = ["dataprep", *sys.argv[2:]]
    code = 1
    try:
        cli.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the process ends here, and shows why
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
