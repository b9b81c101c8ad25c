"""A supervised pool of processes: one task a shard, handed out as workers fall idle.

What concurrent.futures and multiprocessing.Pool lack for this: they either stall or break as a whole when one process
dies. Here a dead worker is replaced, its shard is tried again, and a shard that keeps killing its workers is named and
set aside while the others go on.

Workers are forked by a server that has imported what they need and nothing else (multiprocessing's `forkserver`): it
starts while the parent plans, and a worker costs milliseconds instead of a quarter of a second of imports. The parent
itself cannot be forked safely: it has threads.
"""

from __future__ import annotations

import gc
import heapq
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Any, TypeVar

from dataprep.errors import AccessError, BuildError, ConflictError, DataprepError, StorageError

T = TypeVar("T")

MAX_DEATHS = 3
"""Workers that one task may kill before it is set aside."""
MAX_ATTEMPTS = 4
"""Of a task that failed with an error that may pass: storage, operating system."""
FIRST_BACKOFF_S = 0.5
COLLECT_AFTER = 20_000
"""Objects that are new since the last collection, in a worker; 700 is Python's own number."""
# glibc gives every image's buffer back to the kernel and asks for it again: a third of the CPU time of image work.
# OpenBLAS starts a thread a core when NumPy is imported, for algebra that no build has.
WORKER_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a worker sends instead of a result."""

    error: DataprepError
    may_pass: bool


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    pipe: Connection[Any, Any]
    task: Callable[[int], object] | None = None
    """What it was sent; once, for it may hold a whole manifest."""
    busy: bool = False
    """It runs the task of the last of its indexes."""
    indexes: list[int] = field(default_factory=list)
    """Handed out and not answered: those before the last, and that one when it is not busy, are awaited only."""


@dataclass(slots=True)
class _Progress:
    """What is left to do and what went wrong, by task index."""

    task: Callable[[int], object]
    waiting: list[tuple[float, int]]
    """Heap of (not before, index)."""
    deaths: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    set_aside: dict[int, str] = field(default_factory=dict)


class Pool:
    """Processes that run `task(index)` for many indexes, inside a `with` block.

    Args:
        workers: Processes, at least 1.
        log: Called with one line when a worker dies or a task is tried again.
        preload: Modules that the workers need. They are imported while the parent goes on; the first pool of a process
            decides, later ones import what else they need in every worker.
    """

    def __init__(self, workers: int, log: Callable[[str], None], preload: Sequence[str] = ()) -> None:
        self._num_workers, self._log, self._preload = workers, log, [__name__, *preload]
        self._context = multiprocessing.get_context("forkserver")
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        self._context.set_forkserver_preload(self._preload)
        with environment(WORKER_ENVIRONMENT):
            multiprocessing.forkserver.ensure_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, task: Callable[[int], T | Future[T]], indexes: Iterable[int]) -> Iterator[T]:
        """Yield results as they come.

        Args:
            task: Picklable; may be called again for an index that it was doing when its process died. Where it returns
                a Future, its process is given the next index at once, while that is awaited.

        Raises:
            DataprepError: A task failed with an error that will not pass.
            BuildError: Every other task is done, and these were set aside.
        """
        state = _Progress(task, [(0.0, index) for index in sorted(indexes)])
        while len(self._workers) < min(self._num_workers, len(state.waiting)):
            self._workers.append(self._start())
        yield from self._supervise(state)
        if state.set_aside:
            names = "; ".join(f"shard {index}: {why}" for index, why in sorted(state.set_aside.items()))
            raise BuildError(
                f"{len(state.set_aside)} of the shards could not be built: {names}. "
                "All others are done; run the same command again to try these"
            )

    def _supervise(self, state: _Progress) -> Iterator[Any]:
        while state.waiting or any(worker.indexes for worker in self._workers):
            self._hand_out(state)
            for worker in self._ready(state):
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    self._replace(worker, state)
                    continue
                if message is None:
                    worker.busy = False
                    continue
                index, answer = message
                worker.indexes.remove(index)
                if isinstance(answer, _Failure):
                    self._failed(index, answer, state)
                else:
                    yield answer

    def _hand_out(self, state: _Progress) -> None:
        for worker in sorted(self._workers, key=lambda worker: len(worker.indexes)):
            if not worker.busy and state.waiting and state.waiting[0][0] <= time.monotonic():
                worker.busy = True
                worker.indexes.append(heapq.heappop(state.waiting)[1])
                with suppress(OSError):  # it died idle; its end of the pipe says so below
                    if worker.task is not state.task:
                        worker.pipe.send(state.task)
                    worker.pipe.send(worker.indexes[-1])
                worker.task = state.task

    def _ready(self, state: _Progress) -> list[_Worker]:
        """Workers that have something to say or died; waits until one does, or until a task may be tried again."""
        idle = any(not worker.busy for worker in self._workers)
        timeout = max(0.0, state.waiting[0][0] - time.monotonic()) if idle and state.waiting else None
        by_pipe = {worker.pipe: worker for worker in self._workers}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout)]  # type: ignore[index]

    def _failed(self, index: int, failure: _Failure, state: _Progress) -> None:
        attempts = state.attempts[index] = state.attempts.get(index, 0) + 1
        if not failure.may_pass or attempts >= MAX_ATTEMPTS:
            raise failure.error
        delay_s = FIRST_BACKOFF_S * 2 ** (attempts - 1)
        self._log(f"shard {index}: {failure.error}; trying again in {delay_s:g} s")
        heapq.heappush(state.waiting, (time.monotonic() + delay_s, index))

    def _replace(self, worker: _Worker, state: _Progress) -> None:
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode
        self._workers[self._workers.index(worker)] = self._start()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if not worker.indexes:
            self._log(f"an idle worker died ({how}); replaced")
            return
        *awaited, index = worker.indexes  # images are decoded for the last: what kills is in there
        for other in awaited:
            heapq.heappush(state.waiting, (time.monotonic(), other))
        deaths = state.deaths[index] = state.deaths.get(index, 0) + 1
        if deaths >= MAX_DEATHS:
            state.set_aside[index] = f"killed its worker {deaths} times, last by {how}"
            self._log(f"shard {index}: {state.set_aside[index]}; set aside")
            return
        self._log(f"shard {index}: its worker died ({how}); trying again")
        heapq.heappush(state.waiting, (time.monotonic(), index))

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, dict(os.environ)), daemon=True)
        with environment(WORKER_ENVIRONMENT):  # should the server have to be started again
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _stop(self) -> None:
        for worker in self._workers:
            worker.pipe.close()  # an idle worker ends by itself
            if worker.indexes:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join(10)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []


def _work(pipe: Connection[Any, Any], parents_environment: dict[str, str]) -> None:
    """A worker's life: a task and its indexes from the pipe, until it closes."""
    # What was imported is never garbage, and what a task makes dies young: collecting took 2 % of fetching workers.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    os.environ.update(parents_environment)  # the server's is as old as the server
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    on_parents_death(lambda: os._exit(1))
    sending = threading.Lock()

    def send(message: object) -> None:
        with sending, suppress(OSError):  # the parent is gone: reading from it says so, too
            pipe.send(message)

    task: Any = None
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # nothing is left to clean up, and unloading the libraries takes a tenth of a second
        if callable(message):
            task = message
            continue
        future = _begin(task, message)
        send(None)  # another index may be handed out now
        future.add_done_callback(partial(_answer, send, message))


def _begin(task: Callable[[int], object], index: int) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        found = task(index)
    except Exception as error:  # noqa: BLE001  `_answer` tells it from a dead worker
        future.set_exception(error)
        return future
    if isinstance(found, Future):
        return found
    future.set_result(found)
    return future


def _answer(send: Callable[[object], None], index: int, future: Future[Any]) -> None:
    error = future.exception()
    if error is None:
        send((index, future.result()))
    elif isinstance(error, DataprepError):
        may_pass = isinstance(error, StorageError) and not isinstance(error, AccessError | ConflictError)
        send((index, _Failure(error, may_pass)))
    else:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"shard {index}: unexpected {type(error).__name__}: {error} ({where.name}:{where.lineno})"
        send((index, _Failure(BuildError(text), may_pass=isinstance(error, OSError))))


def on_parents_death(act: Callable[[], object]) -> None:
    """Act when the process that started this one is gone: nobody would hear the answer."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            act()

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for processes started inside the block; what the user set wins."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
