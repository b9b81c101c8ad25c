"""A supervised pool of processes: one task for each shard, given to idle workers.

concurrent.futures and multiprocessing.Pool are not used because they stall or break completely when one process dies.
Here a dead worker is replaced, its shard is tried again, and a shard that keeps killing its workers is named and set
aside while the others continue. A worker whose heartbeat (dataprep/host/heartbeat.py) has stopped for too long is
killed; it then counts as dead.

Workers are forked by a server that has imported what they need and nothing else (multiprocessing's `forkserver`): it
starts while the parent plans, and a worker costs milliseconds instead of a quarter of a second of imports. The parent
itself cannot be forked safely: it has threads.
"""

from __future__ import annotations

import ctypes
import gc
import heapq
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, TypeVar

from dataprep.errors import AccessError, BuildError, ConflictError, DataprepError, FullError, StorageError, UsageError
from dataprep.host.heartbeat import STALL_S, BeatCounter, Standstill, beat, beat_into, minutes
from dataprep.host.processes import (
    BUILD_ENVIRONMENT,
    KILL_S,
    end_or_leave,
    environment,
    on_parents_death,
    start_fork_server,
    without_main,
)
from dataprep.host.program import COLLECT_AFTER, names_advice
from dataprep.messages import counted, one_line
from dataprep.storage.errors import FULL, GO_ON

MAX_LOSSES = 20
"""Number of workers that a shard may lose in total, most of them with their nodes, before it is set aside."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that was lost while it built a shard."""

    node: str
    how: str
    """Description, such as `hung, without progress for 20 min, and was killed` or `died (…)`."""
    too_often: str
    """Reason for setting the shard aside, with a placeholder for the count: `killed its worker {} times, …`."""
    hung: bool = False


class Dispatch:
    """The shards of a build: waiting, in flight, done, or set aside with a reason.

    Args:
        is_left: Called before a shard is handed out; if it returns False, the shard is left out.
    """

    def __init__(self, indexes: Iterable[int], is_left: Callable[[int], bool] = lambda index: True) -> None:
        self._numbers = count()
        self._waiting = [(0.0, next(self._numbers), index) for index in dict.fromkeys(indexes)]
        """Heap of (earliest time, running number, index)."""
        self._is_left = is_left
        self._in_flight: set[int] = set()
        self._attempts: Counter[int] = Counter()
        self._losses: defaultdict[int, list[str]] = defaultdict(list)
        """Nodes of the workers that each shard has lost."""
        self._hangs_in_a_row = 0
        self.set_aside: dict[int, str] = {}
        self._full: FullError | None = None
        """The first error of a full disk. After it, no shard is begun or retried; shards in flight may still finish,
        because a shard that fails frees space."""

    @property
    def left(self) -> int:
        """Number of shards that are waiting or in flight."""
        return len(self._waiting) + len(self._in_flight)

    def next_shard(self, now_s: float) -> int | None:
        """Return the shard to hand out next; None if none may be tried yet, or none is left."""
        while self._waiting and self._waiting[0][0] <= now_s:
            index = heapq.heappop(self._waiting)[2]
            if self._is_left(index):
                self._in_flight.add(index)
                return index
        return None

    def delay_s(self, now_s: float) -> float | None:
        """Return the time until a shard may be handed out; None if none waits."""
        return max(0.0, self._waiting[0][0] - now_s) if self._waiting else None

    def done(self, index: int) -> None:
        self._in_flight.discard(index)
        self._hangs_in_a_row = 0

    def give_back(self, indexes: Iterable[int], now_s: float) -> None:
        """Put shards back in the queue that are not to blame for the loss of their worker."""
        for index in indexes:
            self._again(index, now_s)

    def failed(self, index: int, failure: Failure, now_s: float) -> str:
        """Put a failed shard in the queue again, and return a line for the user; empty if there is none. Raises
        DataprepError if another attempt would not help, or the maximum number of attempts is reached."""
        if isinstance(failure.error, FullError) or (self._full is not None and failure.may_pass):
            return self._failed_for_space(index, failure.error)
        self._attempts[index] += 1
        if not failure.may_pass or self._attempts[index] >= MAX_ATTEMPTS:
            raise failure.error
        delay_s = backoff_s(self._attempts[index])
        self._again(index, now_s + delay_s)
        return f"shard {index}: {failure.error}; trying again in {delay_s:g} s"

    def end(self) -> None:
        """Raise the error at the end of a run, if any: a full disk, or shards that were set aside."""
        if self._full is not None:
            raise self._full
        if self.set_aside:
            raise shards_set_aside(self.set_aside)

    def lost(self, index: int, loss: Loss, alive: Collection[str], now_s: float) -> str:
        """Put a shard whose worker was lost in the queue again or set it aside, and return a line for the user. The
        shard is to blame if the node of its worker is known to be `alive`."""
        nodes = self._losses[index]
        nodes.append(loss.node)
        self._hangs_in_a_row += loss.hung
        deaths = sum(node in alive for node in nodes)
        if deaths >= MAX_DEATHS:
            reason = loss.too_often.format(deaths)
        elif len(nodes) >= MAX_LOSSES:
            reason = f"lost its worker {len(nodes)} times, most of them with their nodes"
        else:
            self._again(index, now_s)
            return f"shard {index}: its worker {loss.how}; trying again"
        self._in_flight.discard(index)
        self.set_aside[index] = reason
        return f"shard {index}: {reason}; set aside"

    def refuse_hangs(self, last: int, processes: int, stall_s: float) -> None:
        """Raise BuildError if so many workers hung in a row, with no shard done in between, that no shard is to blame,
        not even the `last` one's."""
        if self._waiting and self._hangs_in_a_row >= MAX_DEATHS * max(1, processes):
            raise BuildError(
                f"{self._hangs_in_a_row} workers hung one after the other, each without progress for "
                f"{minutes(stall_s)} (`stall_minutes`), the last with shard {last}; check whether the disk, network "
                "or bucket of the originals and of the output responds, and run the same command again"
            )

    def _again(self, index: int, at_s: float) -> None:
        self._in_flight.discard(index)
        if self._full is None:
            heapq.heappush(self._waiting, (at_s, next(self._numbers), index))

    def _failed_for_space(self, index: int, error: DataprepError) -> str:
        """Stop beginning shards. Return a line for the user the first time, if other shards are in flight."""
        self._in_flight.discard(index)
        if self._full is not None or not isinstance(error, FullError):
            return ""
        self._full = error
        self._waiting.clear()
        if not self._in_flight:
            return ""
        under_way = counted(len(self._in_flight), "shard")
        return f"no space is left: no other shard is begun; {under_way} under way may still be finished"


MAX_DEATHS = 3
"""Number of workers that one task may kill or hang before it is set aside."""
MAX_ATTEMPTS = 4
"""Maximum number of attempts at a task that fails with a retryable error of storage or operating system."""
FIRST_BACKOFF_S = 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """Message that a worker sends instead of a result."""

    error: DataprepError
    may_pass: bool
    """Whether another attempt may succeed."""


def failure_of(index: int, error: BaseException) -> Failure:
    """Return the message about an error in a shard's task; unexpected errors include their location."""
    if isinstance(error, DataprepError):
        may_pass = isinstance(error, StorageError) and not isinstance(error, AccessError | ConflictError | FullError)
        return Failure(error, may_pass)
    if isinstance(error, UnicodeError) and (advice := names_advice()):
        text = f"shard {index}: a name has letters that cannot be written here ({error}); {advice}"
        return Failure(BuildError(text), may_pass=False)
    if isinstance(error, OSError) and error.errno in FULL:
        return Failure(FullError(f"shard {index}: {error}; free some space and {GO_ON}"), may_pass=False)
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"shard {index}: unexpected {type(error).__name__}: {error} ({where.name}:{where.lineno})"
    return Failure(BuildError(text), may_pass=isinstance(error, OSError))


def backoff_s(attempts: int) -> float:
    """Return the time to wait before the next attempt, after this many failed attempts."""
    return FIRST_BACKOFF_S * 2.0 ** (attempts - 1)


def shards_set_aside(reasons: Mapping[int, str]) -> BuildError:
    """Return the error of a run that has set shards aside and finished all others."""
    names = "; ".join(f"shard {index}: {why}" for index, why in sorted(reasons.items()))
    return BuildError(
        f"{len(reasons)} of the shards could not be built: {names}. "
        "All others are done; run the same command again to try these"
    )


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
    """Indexes that are handed out and not answered yet. While the worker is busy, the last one is running; the other
    tasks have returned a Future whose result is awaited."""


class Pool:
    """Runs `task(index)` for many indexes in processes, inside a `with` block.

    Args:
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
        self._task: Callable[[int], object] | None = None

    def __enter__(self) -> Pool:
        try:
            start_fork_server(self._preload)
        except OSError as error:
            raise UsageError(
                f"workers cannot be started with {tempfile.gettempdir()} as the folder for temporary files "
                f"({error}); set TMPDIR to one that can be written to and has a short path"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
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

    def run(
        self,
        task: Callable[[int], T | Future[T]],
        indexes: Iterable[int],
        is_left: Callable[[int], bool] = lambda index: True,
    ) -> Iterator[T]:
        """Yield results as they arrive.

        Args:
            task: Picklable function of an index. It may be called again for an index whose process died. If it returns
                a Future, its process gets the next index at once, while the Future is awaited.
            indexes: Indexes, in the order of processing.
            is_left: Called before an index is given to a process; if it returns False, the index is left out.

        Raises:
            FullError: No space is left; tasks that were under way are done or failed.
            DataprepError: A task failed with another error that is not retryable, or too often.
            BuildError: Some tasks were set aside; all others are done.
        """
        self._task, dispatch = task, Dispatch(indexes, is_left)
        while len(self._workers) < min(self._num_workers, dispatch.left):
            self._workers.append(self._start())
        yield from self._supervise(dispatch)
        dispatch.end()

    def _supervise(self, dispatch: Dispatch) -> Iterator[Any]:
        while self._hand_out(dispatch):
            ready = self._ready(dispatch)
            for worker in [worker for worker in self._workers if worker.indexes and worker not in ready]:
                self._watch(worker, dispatch)
            for worker in ready:
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    self._died(worker, dispatch)
                    continue
                worker.still.reset()
                if message is None:
                    worker.busy = False
                    continue
                index, answer = message
                worker.indexes.remove(index)
                if isinstance(answer, Failure):
                    if line := dispatch.failed(index, answer, time.monotonic()):
                        self._log(line)
                else:
                    dispatch.done(index)
                    yield answer

    def _hand_out(self, dispatch: Dispatch) -> bool:
        """Give tasks to free workers; return whether any task is left or under way."""
        for worker in sorted(self._workers, key=lambda worker: len(worker.indexes)):
            if not worker.busy and (index := dispatch.next_shard(time.monotonic())) is not None:
                worker.busy = True
                worker.still.reset()
                worker.indexes.append(index)
                with suppress(OSError):  # it died idle; the closed pipe shows this below
                    if worker.task is not self._task:
                        worker.pipe.send(self._task)
                    worker.pipe.send(worker.indexes[-1])
                worker.task = self._task
        return dispatch.left > 0

    def _ready(self, dispatch: Dispatch) -> list[_Worker]:
        """Return the workers that have answered or died. Wait until one has, until a task may be tried again, or until
        it is time to look at the heartbeats."""
        timeout = min((worker.still.poll_s for worker in self._workers if worker.indexes), default=None)
        delay_s = dispatch.delay_s(time.monotonic())
        if delay_s is not None and any(not worker.busy for worker in self._workers):
            timeout = delay_s if timeout is None else min(timeout, delay_s)
        by_pipe = {worker.pipe: worker for worker in self._workers}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout)]  # type: ignore[index]

    def _died(self, worker: _Worker, dispatch: Dispatch) -> None:
        worker.process.join()
        code = worker.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._replace(worker)
        if not worker.indexes:
            self._log(f"an idle worker died ({how}); replaced")
            return
        # Images are decoded only for the last index, so it is to blame.
        loss = Loss(_HERE, f"died ({how})", f"killed its worker {{}} times, last by {how}")
        self._blame(worker, worker.indexes[-1], dispatch, loss)

    def _watch(self, worker: _Worker, dispatch: Dispatch) -> None:
        """Warn of a worker that makes no progress; kill it if this lasts too long."""
        worker.still.look()
        index, idle = worker.indexes[0], minutes(worker.still.idle_s)  # tasks after the first wait for it
        if not worker.still.is_over:
            if worker.still.warning_due():
                self._log(
                    f"shard {index}: no progress for {idle} (worker process {worker.process.pid}); the worker is "
                    f"killed and the shard tried again after {minutes(self._stall_s)} (`stall_minutes`)"
                )
            return
        worker.process.kill()
        self._let_end(worker)
        self._replace(worker)
        how = f"hung, without progress for {idle}, and was killed"
        self._blame(
            worker, index, dispatch, Loss(_HERE, how, f"hung its worker {{}} times, last for {idle}", hung=True)
        )
        dispatch.refuse_hangs(index, self._num_workers, self._stall_s)

    def _let_end(self, worker: _Worker) -> None:
        if not end_or_leave(worker.process):
            self._log(
                f"worker process {worker.process.pid} does not end when it is killed: it waits for a disk or network "
                "file system that does not answer; it is left behind"
            )

    def _replace(self, worker: _Worker) -> None:
        worker.pipe.close()
        self._workers[self._workers.index(worker)] = self._start()

    def _blame(self, worker: _Worker, blamed: int, dispatch: Dispatch, loss: Loss) -> None:
        """Put the indexes of a lost worker back in the queue, except the one to blame if it has lost too many."""
        now_s = time.monotonic()
        dispatch.give_back((index for index in worker.indexes if index != blamed), now_s)
        self._log(dispatch.lost(blamed, loss, {_HERE}, now_s))

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        try:
            heartbeat = self._context.RawValue(ctypes.c_uint64, 0)
        except OSError as error:
            raise UsageError(
                f"workers cannot be started without shared memory ({one_line(error)}); make its folder one that can be "
                "written to, as with a tmpfs at /dev/shm for a container that is read-only"
            ) from error
        process = self._context.Process(target=_work, args=(theirs, dict(os.environ), heartbeat), daemon=True)
        with environment(BUILD_ENVIRONMENT), without_main():  # in case the server must be started again
            process.start()
        theirs.close()
        return _Worker(process, ours, Standstill(lambda: heartbeat.value, self._stall_s))


def _work(pipe: Connection[Any, Any], parents_environment: dict[str, str], beats: BeatCounter) -> None:
    """Run as a worker: take a task and its indexes from the pipe, until it closes."""
    # Imported objects are never garbage, and a task's objects are short-lived: collection took 2 % of the time of
    # fetching workers.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    beat_into(beats)
    os.environ.update(parents_environment)  # the server's environment dates from its start
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of the group; the parent decides
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
