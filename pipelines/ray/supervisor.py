"""Keeps workers on a Ray cluster, hands shards to them, and judges what comes back."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray

from dataprep import __version__
from dataprep.builder.pool import Dispatch, Failure, Loss
from dataprep.errors import DISTRIBUTION, BuildError, UsageError
from dataprep.host.heartbeat import Beats, Standstill, beat, minutes
from dataprep.messages import one_line
from pipelines.ray.cluster import nodes_alive, room_for
from pipelines.ray.options import RayOptions
from pipelines.ray.room import processes_wanted
from pipelines.ray.worker import Worker

LOOK_S = 1.0
"""Time between two looks at the nodes of the cluster."""
MAX_FALSE_STARTS = 10
"""Number of processes in a row that may end before they can build."""
WINDOW = 2
"""Maximum number of shards in flight in a process: one is being built, and one is being published. More would be built
again when the process is lost."""
WEB_WINDOW = 4
"""The same for shards of rows from the web, which wait for late downloads, up to minutes each."""


@dataclass(frozen=True, slots=True)
class RayRun:
    """Shards to build on a cluster; it can be sent to another process."""

    begin: Callable[[int], Any]
    """Function that begins a shard and returns its receipt, or a Future of it."""
    indexes: tuple[int, ...]
    options: RayOptions
    stall_s: float
    window: int = WINDOW
    """Maximum number of shards in flight in a process."""
    modules: tuple[str, ...] = ()
    """Modules that a process imports before its first shard."""


@dataclass(slots=True, eq=False)
class _Process:
    """A worker, as its driver knows it."""

    actor: Any
    pulse: Beats
    """The number of beats that it has told last."""
    still: Standstill
    node: str | None = None
    """ID of its node; None until it runs."""
    busy: bool = False
    gone: bool = False
    indexes: list[int] = field(default_factory=list)
    """Shards in flight; while it is busy, the last one is being built."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply to a call, or the error that took its place."""

    handle: Callable[[Any], Any]
    process: _Process
    future: Future[Any]


def supervise(run: RayRun, log: Callable[[str], object]) -> Iterator[Any]:
    """Build shards on the cluster to which this process is connected, and yield receipts as they arrive.

    Raises:
        DataprepError: A shard failed with an error that is not retryable, or too often.
        BuildError: Some shards were set aside; all others are done.
    """
    supervisor = _Supervisor(run, log)
    try:
        yield from supervisor.run()
    finally:
        supervisor.end()


class _Supervisor:
    """Keeps processes on the cluster, hands shards to them, and judges what comes back."""

    def __init__(self, run: RayRun, log: Callable[[str], object]) -> None:
        self._run, self._log = run, log
        self._dispatch = Dispatch(run.indexes)
        self._processes: list[_Process] = []
        self._replies: queue.SimpleQueue[_Reply] = queue.SimpleQueue()
        self._alive: frozenset[str] = frozenset()
        self._look_at_s = 0.0
        self._pulse_s = max(LOOK_S, run.stall_s / 10)
        self._pulse_at_s = time.monotonic() + self._pulse_s
        self._false_starts = 0
        self._said_waiting = False
        need = run.options.need
        cpus, memory = need.pop("CPU"), int(need.pop("memory"))
        self._actor = ray.remote(Worker).options(
            num_cpus=cpus, memory=memory or None, resources=need or None, max_restarts=0, max_task_retries=0
        )

    def run(self) -> Iterator[Any]:
        """Yield receipts until no shard is left. Raises DataprepError."""
        while self._dispatch.left:
            beat()
            self._look()
            self._hand_out()
            for reply in self._received():
                receipt = self._judge(reply)
                if receipt is not None:
                    yield receipt
        self._dispatch.end()

    def end(self) -> None:
        """End all processes; what they had begun is built again by the next run."""
        for process in self._processes:
            with suppress(Exception):  # the cluster may be gone, and ends them itself then
                ray.kill(process.actor)
        self._processes = []

    def _look(self) -> None:
        """Start processes that are missing, end those that wait for a node without need, and look at heartbeats."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        nodes = nodes_alive()
        self._alive = frozenset(node["NodeID"] for node in nodes)
        options = self._run.options
        room = room_for(nodes, options)
        wanted = processes_wanted(room, self._dispatch.left, options.processes)
        surplus = max(0, len(self._processes) - wanted)
        for process in [process for process in self._processes if process.node is None][:surplus]:
            self._drop(process)
        while len(self._processes) < wanted:
            self._start()
        if not room and not self._said_waiting:
            self._log(f"ray: no node has room for a process ({options.need_text}); waiting for one")
        self._said_waiting = not room
        if now_s >= self._pulse_at_s:
            self._pulse_at_s = now_s + self._pulse_s
            for process in [process for process in self._processes if process.indexes]:
                self._feel(process)

    def _start(self) -> None:
        pulse = Beats()
        actor = self._actor.remote(self._run.begin, self._run.modules)
        process = _Process(actor, pulse, Standstill(lambda: pulse.value, self._run.stall_s))
        process.still.poll_s = self._pulse_s
        self._processes.append(process)
        self._call(process, process.actor.node, partial(self._placed, process))

    def _call(self, process: _Process, method: Any, handle: Callable[[Any], Any], *arguments: object) -> None:
        future: Future[Any] = method.remote(*arguments).future()
        future.add_done_callback(lambda done: self._replies.put(_Reply(handle, process, done)))

    def _placed(self, process: _Process, node: str) -> None:
        process.node = node
        self._false_starts = 0

    def _hand_out(self) -> None:
        now_s = time.monotonic()
        free = [
            each for each in self._processes if each.node and not each.busy and len(each.indexes) < self._run.window
        ]
        for process in sorted(free, key=lambda process: len(process.indexes)):
            index = self._dispatch.next_shard(now_s)
            if index is None:
                return
            process.busy = True
            process.indexes.append(index)
            process.still.reset()
            self._call(process, process.actor.build, partial(self._answered, process, index), index)
            self._call(process, process.actor.begun, partial(self._begun, process), index)

    def _received(self) -> Iterator[_Reply]:
        """Yield the replies that have come; wait for the first until something else is due."""
        now_s = time.monotonic()
        delay_s = self._look_at_s - now_s
        if any(process.node and not process.busy for process in self._processes):
            delay_s = min(delay_s, self._dispatch.delay_s(now_s) or LOOK_S)
        with suppress(queue.Empty):
            yield self._replies.get(timeout=max(0.001, delay_s))
            while True:
                yield self._replies.get_nowait()

    def _judge(self, reply: _Reply) -> Any:
        """Return the receipt in a reply, if it is one."""
        process = reply.process
        if process.gone:
            return None
        error = reply.future.exception()
        if error is None:
            return reply.handle(reply.future.result())
        self._lost(process, error)
        return None

    def _begun(self, process: _Process, _nothing: None) -> None:
        process.busy = False
        process.still.reset()

    def _answered(self, process: _Process, index: int, answer: Any) -> Any:
        process.indexes.remove(index)
        process.still.reset()
        if isinstance(answer, Failure):
            if line := self._dispatch.failed(index, answer, time.monotonic()):
                self._log(line)
            return None
        self._dispatch.done(index)
        return answer

    def _feel(self, process: _Process) -> None:
        """Warn of a process that makes no progress; end it if this lasts too long."""
        still = process.still
        still.look()
        idle, index = minutes(still.idle_s), process.indexes[0]  # shards after the first wait for it
        if still.is_over:
            how = f"hung, without progress for {idle}, and was killed"
            self._drop(process)
            self._blame(
                process, index, Loss(str(process.node), how, f"hung its worker {{}} times, last for {idle}", hung=True)
            )
            self._dispatch.refuse_hangs(index, len(self._processes), self._run.stall_s)
            return
        if still.warning_due():
            self._log(
                f"shard {index}: no progress for {idle}; its worker is killed and the shard tried again after "
                f"{minutes(self._run.stall_s)} (--stall-minutes)"
            )
        self._call(process, process.actor.beats, partial(setattr, process.pulse, "value"))

    def _lost(self, process: _Process, error: BaseException) -> None:
        """Judge the end of a process."""
        self._drop(process)
        self._look_at_s = 0.0  # replace it at once
        how = cause_of(error)
        if getattr(error, "actor_init_failed", False):
            raise UsageError(
                f"--runner ray: a worker cannot start ({how}); install {DISTRIBUTION} {__version__} with the same "
                "extras on every node of the cluster"
            )
        if process.node is None:
            self._false_starts += 1
            if self._false_starts >= MAX_FALSE_STARTS:
                raise BuildError(f"ray: {self._false_starts} workers in a row ended before they could build ({how})")
            return
        if not process.indexes:
            self._log(f"an idle worker died ({how}); replaced")
            return
        self._blame(
            process,
            process.indexes[-1],
            Loss(process.node, f"died ({how})", f"killed its worker {{}} times, last: {how}"),
        )

    def _blame(self, process: _Process, blamed: int, loss: Loss) -> None:
        now_s = time.monotonic()
        self._dispatch.give_back((index for index in process.indexes if index != blamed), now_s)
        self._log(self._dispatch.lost(blamed, loss, self._alive, now_s))

    def _drop(self, process: _Process) -> None:
        process.gone = True
        self._processes.remove(process)
        with suppress(Exception):  # it may be dead already
            ray.kill(process.actor)


def cause_of(error: BaseException) -> str:
    """Return the line of Ray's error that says what happened; its first lines name the actor only."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "exit type" in line or line.endswith("Error") or "Error:" in line]
    return one_line(Exception((telling or lines or [type(error).__name__])[-1]), 160)
