"""Run the command line and stop it, as kill -9 or a suspended machine would, at the n-th commit boundary.

    with Stopper() as stopper:
        assert stopper.run(arguments, boundary=3, when="before").code == STOPPED
        assert stopper.run(arguments).code == 0  # to its end
        build = stopper.start(arguments, Stops((3, 8), suspend=True))
        assert build.wait() == "suspended"
        build.send(signal.SIGCONT)

A boundary on disk is every system call that changes what a reader or a rerun could see: link, rename, unlink, mkdir,
rmdir, symlink. In a bucket it is every request but range reads. Shards are built in the command's own process, so that
the count is the same every time; an image folder's files and requests are under way many at once.

Commands are children of one process, which has imported what they need and does nothing but fork them: to start an
interpreter for each takes many times as long as most of them run.
"""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support import shared_process, warm

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


class Running:
    """A command that was started."""

    def __init__(self, pid: int, ask: Callable[..., Any], stderr: Path) -> None:
        self.pid, self._ask, self._stderr = pid, ask, stderr
        self._state, self._code = RUNNING, 0

    def state(self) -> str:
        """RUNNING, SUSPENDED or ENDED."""
        if self._state == RUNNING:
            self._state, self._code = self._ask(look_at=self.pid)
        return self._state

    def wait(self, longest_s: float) -> str:
        """Return the state of the process when it does not run any more, or when the time is over."""
        until_s, pause_s = time.monotonic() + longest_s, POLL_S
        while self.state() == RUNNING and time.monotonic() < until_s:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_POLL_S)
        return self._state

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it has ended."""
        if self.state() != ENDED:
            os.kill(self.pid, number)
            if number is not signal.SIGSTOP:
                self._state = RUNNING

    def ended(self) -> Ended:
        """What became of it, once it has ended."""
        assert self._state == ENDED
        is_there = self._stderr.exists()  # not if it was killed before it opened the file
        return Ended(self._code, self._stderr.read_text() if is_there else "")


class Stopper:
    """Runs commands of `dataprep`, some of them to a boundary only."""

    def __enter__(self) -> Stopper:
        self._folder = tempfile.TemporaryDirectory(prefix="stopper-")
        self._numbers = itertools.count()
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env={**os.environ, **shared_process.ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()  # it ends with its input
        self._folder.cleanup()

    def run(
        self,
        arguments: Sequence[object],
        *,
        boundary: int = 0,
        when: str = "before",
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run a command to a boundary, where it exits with STOPPED; to its end if it is 0 or is not reached."""
        running = self.start(arguments, Stops((boundary,) if boundary else (), when), environment)
        while running.wait(60) != ENDED:
            pass
        return running.ended()

    def start(self, arguments: Sequence[object], stops: Stops, environment: Mapping[str, str] | None = None) -> Running:
        """Start a command beside others, in an environment with these changes."""
        stderr = Path(self._folder.name, str(next(self._numbers)))
        words = [str(each) for each in arguments]
        pid = self._ask(arguments=words, stderr=str(stderr), stops=asdict(stops), environment=dict(environment or {}))
        return Running(pid, self._ask, stderr)

    def _ask(self, **words: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(words)}\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


@functools.cache
def shared_stopper() -> Stopper:
    """Return one for all tests of this process."""
    running = Stopper()
    running.__enter__()
    atexit.register(running.__exit__)
    return running


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
def _inline_engine(do_shard: Callable[[Any, int], Any], *_: object) -> Iterator[Any]:
    yield lambda job, indexes: (do_shard(job, index) for index in indexes)


def _serve() -> None:
    """Answer every line of standard input: fork a command, or look at one."""
    from dataprep import cli
    from dataprep.builder.recipe import RECIPES, build_shard, recipe_named
    from dataprep.commands import retry_failed
    from dataprep.fetched.retry import retry_shard
    from pipelines import local

    local.open_engine = partial(_inline_engine, build_shard)
    retry_failed._local_engine = partial(_inline_engine, retry_shard)
    of_recipes = [name for recipe in RECIPES for name in recipe_named(recipe).worker_modules]
    for name in (*of_recipes, *local._BUCKET_MODULES, *retry_failed._WORKER_MODULES, *warm.DATAPREP):
        import_module(name)
    gc.freeze()
    for line in sys.stdin:
        words = json.loads(line)
        print(json.dumps(_look_at(**words) if "look_at" in words else _fork(cli.main, **words)), flush=True)


def _look_at(look_at: int) -> tuple[str, int]:
    pid, status = os.waitpid(look_at, os.WNOHANG | os.WUNTRACED)
    if pid == 0:
        return RUNNING, 0
    return (SUSPENDED, 0) if os.WIFSTOPPED(status) else (ENDED, os.waitstatus_to_exitcode(status))


def _fork(main: Callable[[], None], **words: Any) -> int:
    child = os.fork()
    if child == 0:
        _run(main, **words)
    return child


def _run(
    main: Callable[[], None], arguments: list[str], stderr: str, stops: dict[str, Any], environment: dict[str, str]
) -> None:
    """In a child, which ends here."""
    code = 1
    for number, path in enumerate((os.devnull, os.devnull, stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    try:
        os.environ.update(environment)
        if stops["boundaries"]:
            stop_at(Stops(**stops))
        sys.argv = ["dataprep", *arguments]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the process ends here, and shows why
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
