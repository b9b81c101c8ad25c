"""A supervised pool of processes: one task for each shard, given to idle workers.

concurrent.futures and multiprocessing.Pool are not used because they stall or break as a whole when one process dies.
Here a dead worker is replaced, its shard is tried again, and a shard that keeps killing its workers is named and set
aside while the others go on. A worker that hangs is killed when its heartbeat (dataprep/host/heartbeat.py) has stood
still for too long; it then counts as dead.

Workers are forked by a server that has imported what they need and nothing else (multiprocessing's `forkserver`): it
starts while the parent plans, and a worker costs milliseconds instead of a quarter of a second of imports. The parent
itself cannot be forked safely: it has threads.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Any, TypeVar

from dataprep.builder.dispatch import Dispatch, Loss
from dataprep.builder.failures import Failure, failure_of
from dataprep.errors import UsageError
from dataprep.host.heartbeat import STALL_S, BeatCounter, Standstill, beat, beat_into, minutes
from dataprep.host.processes import BUILD_ENVIRONMENT, KILL_S, end_or_leave, environment, on_parents_death
from dataprep.host.program import COLLECT_AFTER
from dataprep.messages import one_line

T = TypeVar("T")

_PREPARATION = "dataprep.builder.fork_server"
"""Module that the server imports first."""
_HERE = "this machine"
"""The only node, for the rules of losses."""


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    pipe: Connection[Any, Any]
    still: Standstill
    task: Callable[[int], object] | None = None
    """Task that was sent to the worker; it is sent only once, because it may contain a manifest."""
    busy: bool = False
    """Whether the worker is running the task for the last of its indexes."""
    indexes: list[int] = field(default_factory=list)
    """Indexes that are handed out and not answered yet. While the worker is busy, the last one is running; the tasks of
    all others have returned a Future whose result is awaited."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The task of a run, and its indexes that are left."""

    task: Callable[[int], object]
    dispatch: Dispatch


class Pool:
    """Runs `task(index)` for many indexes in processes, inside a `with` block.

    Args:
        workers: Number of processes, at least 1.
        log: Called with one line when a worker hangs or dies or a task is tried again.
        preload: Modules that the workers need, imported once while the parent continues. Only the first pool of a
            process can choose them; workers of later pools import other modules themselves.
        stall_s: A worker without progress for this long is killed.
    """

    def __init__(
        self, workers: int, log: Callable[[str], None], preload: Sequence[str] = (), *, stall_s: float = STALL_S
    ) -> None:
        self._num_workers, self._log, self._preload = workers, log, [_PREPARATION, __name__, *preload]
        self._stall_s = stall_s
        self._context = multiprocessing.get_context("forkserver")
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        self._context.set_forkserver_preload(self._preload)
        with environment(BUILD_ENVIRONMENT):
            try:
                multiprocessing.forkserver.ensure_running()
            except OSError as error:
                raise UsageError(
                    f"workers cannot be started with {tempfile.gettempdir()} as the folder for temporary files "
                    f"({error}); set TMPDIR to one that can be written to and has a short path"
                ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(
        self,
        task: Callable[[int], T | Future[T]],
        indexes: Iterable[int],
        is_left: Callable[[int], bool] = lambda index: True,
    ) -> Iterator[T]:
        """Yield results in the order in which they arrive.

        Args:
            task: Picklable function of an index. It may be called again for an index whose process died. If it returns
                a Future, its process gets the next index at once, while the Future is awaited.
            indexes: Indexes in the order in which they are begun.
            is_left: Asked before an index is given to a process; where it is False, the index is left out.

        Raises:
            FullError: No space is left; tasks that were under way are done or failed.
            DataprepError: A task failed with another error that is not retryable, or too often.
            BuildError: Some tasks were set aside; all others are done.
        """
        run = _Run(task, Dispatch(indexes, is_left))
        while len(self._workers) < min(self._num_workers, run.dispatch.left):
            self._workers.append(self._start())
        yield from self._supervise(run)
        run.dispatch.end()

    def _supervise(self, run: _Run) -> Iterator[Any]:
        while self._hand_out(run):
            ready = self._ready(run)
            for worker in [worker for worker in self._workers if worker.indexes and worker not in ready]:
                self._watch(worker, run)
            for worker in ready:
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    self._died(worker, run)
                    continue
                worker.still.reset()
                if message is None:
                    worker.busy = False
                    continue
                index, answer = message
                worker.indexes.remove(index)
                if isinstance(answer, Failure):
                    if line := run.dispatch.failed(index, answer, time.monotonic()):
                        self._log(line)
                else:
                    run.dispatch.done(index)
                    yield answer

    def _hand_out(self, run: _Run) -> bool:
        """Give tasks to the workers that are free; return whether any task is left or under way."""
        for worker in sorted(self._workers, key=lambda worker: len(worker.indexes)):
            if not worker.busy and (index := run.dispatch.next_shard(time.monotonic())) is not None:
                worker.busy = True
                worker.still.reset()
                worker.indexes.append(index)
                with suppress(OSError):  # it died idle; the closed pipe shows this below
                    if worker.task is not run.task:
                        worker.pipe.send(run.task)
                    worker.pipe.send(worker.indexes[-1])
                worker.task = run.task
        return run.dispatch.left > 0

    def _ready(self, run: _Run) -> list[_Worker]:
        """Return the workers that have answered or died. Wait until one has, until a task may be tried again, or until
        it is time to look at the heartbeats."""
        timeout = min((worker.still.poll_s for worker in self._workers if worker.indexes), default=None)
        delay_s = run.dispatch.delay_s(time.monotonic())
        if delay_s is not None and any(not worker.busy for worker in self._workers):
            timeout = delay_s if timeout is None else min(timeout, delay_s)
        by_pipe = {worker.pipe: worker for worker in self._workers}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout)]  # type: ignore[index]

    def _died(self, worker: _Worker, run: _Run) -> None:
        worker.process.join()
        code = worker.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._replace(worker)
        if not worker.indexes:
            self._log(f"an idle worker died ({how}); replaced")
            return
        # Images are decoded only for the last index, so that one is to blame.
        loss = Loss(_HERE, f"died ({how})", f"killed its worker {{}} times, last by {how}")
        self._blame(worker, worker.indexes[-1], run, loss)

    def _watch(self, worker: _Worker, run: _Run) -> None:
        """Warn of a worker that makes no progress; kill it if this lasts too long."""
        worker.still.look()
        index, idle = worker.indexes[0], minutes(worker.still.idle_s)  # tasks after the first wait for it
        if not worker.still.is_over:
            if worker.still.warning_due():
                self._log(
                    f"shard {index}: no progress for {idle} (worker process {worker.process.pid}); the worker is "
                    f"killed and the shard tried again after {minutes(self._stall_s)} (--stall-minutes)"
                )
            return
        worker.process.kill()
        self._let_end(worker)
        self._replace(worker)
        how = f"hung, without progress for {idle}, and was killed"
        self._blame(worker, index, run, Loss(_HERE, how, f"hung its worker {{}} times, last for {idle}", hung=True))
        run.dispatch.refuse_hangs(index, self._num_workers, self._stall_s)

    def _let_end(self, worker: _Worker) -> None:
        if not end_or_leave(worker.process):
            self._log(
                f"worker process {worker.process.pid} does not end when it is killed: it waits for a disk or network "
                "file system that does not answer; it is left behind"
            )

    def _replace(self, worker: _Worker) -> None:
        worker.pipe.close()
        self._workers[self._workers.index(worker)] = self._start()

    def _blame(self, worker: _Worker, blamed: int, run: _Run, loss: Loss) -> None:
        """Put the indexes of a lost worker back in the queue, except the one to blame if it has lost too many."""
        now_s = time.monotonic()
        run.dispatch.give_back((index for index in worker.indexes if index != blamed), now_s)
        self._log(run.dispatch.lost(blamed, loss, {_HERE}, now_s))

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        try:
            heartbeat = self._context.RawValue(ctypes.c_uint64, 0)
        except OSError as error:
            raise UsageError(
                f"workers cannot be started without shared memory ({one_line(error)}); make its folder one that can be "
                "written to, as with --tmpfs /dev/shm for a container that is read-only"
            ) from error
        process = self._context.Process(target=_work, args=(theirs, dict(os.environ), heartbeat), daemon=True)
        with environment(BUILD_ENVIRONMENT):  # in case the server must be started again
            process.start()
        theirs.close()
        return _Worker(process, ours, Standstill(lambda: heartbeat.value, self._stall_s))

    def _stop(self) -> None:
        for worker in self._workers:
            worker.pipe.close()  # an idle worker ends by itself
            if worker.indexes:
                worker.process.terminate()
        deadline_s = time.monotonic() + KILL_S
        for worker in self._workers:
            worker.process.join(max(0.0, deadline_s - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                self._let_end(worker)
        self._workers = []


def _work(pipe: Connection[Any, Any], parents_environment: dict[str, str], beats: BeatCounter) -> None:
    """Run as a worker: take a task and its indexes from the pipe, until it closes."""
    # Imported objects are never garbage, and those of a task are short-lived: collection took 2 % of the time of
    # fetching workers.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    beat_into(beats)
    os.environ.update(parents_environment)  # the server's environment dates from its start
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    on_parents_death(lambda: os._exit(1))
    sending = threading.Lock()

    def send(message: object) -> None:
        with sending, suppress(OSError):  # the parent is gone: the next read fails as well
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
        beat()
        future = _begin(task, message)
        send(None)  # another index may be handed out now
        future.add_done_callback(partial(_answer, send, message))


def _begin(task: Callable[[int], object], index: int) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        found = task(index)
    except Exception as error:  # noqa: BLE001  `_answer` reports it
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
    else:
        send((index, failure_of(index, error)))
