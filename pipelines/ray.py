"""The engine of `--runner ray`: one actor for each process of a Ray cluster, and shards handed to whichever is free.

    driver ── begin_shard(index) ──▶ actor: one thread builds shards ── receipt ──▶ driver

The driver asks once a second which nodes there are, and starts or replaces actors; everything else comes as a reply to
a call, so nothing is polled in the output. What is built next, again or never is decided in pipelines/dispatch.py.
With --detach the same loop runs in an actor of the cluster.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import hashlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import ray
import ray.exceptions

from dataprep import __version__
from dataprep.build.failures import Failure, failure_of, shards_set_aside
from dataprep.build.job import BuildJob, Engine, begin_shard
from dataprep.build.pool import COLLECT_AFTER
from dataprep.build.receipts import ReceiptWatch
from dataprep.build.recipe import recipe_named
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, BuildError, DataprepError, UsageError
from dataprep.host.heartbeat import Beats, Standstill, beat, beats, minutes
from dataprep.host.processes import WORKER_ENVIRONMENT
from dataprep.messages import first_line, one_line
from dataprep.storage import open_storage
from pipelines.dispatch import WEB_WINDOW, WINDOW, Dispatch, Loss, processes_wanted, room_of
from pipelines.protocol import DetachedJob, EngineChoice, EngineWork
from pipelines.ray_options import RayOptions, ray_options, refuse_local_paths, refuse_silence

NAMESPACE = "dataprep"
LOOK_S = 1.0
"""Time between two looks at the nodes of the cluster."""
MAX_FALSE_STARTS = 10
"""Number of processes in a row that may end before they can build."""
_STARTS_AGAIN = 3
"""Number of times that Ray starts the driver of a detached job again."""
_KEPT_LINES = 20
_HEAD = "node:__internal_head__"
"""Resource of the cluster's head, by Ray's name."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Numbers of mallopt(3)."""


def check(choice: EngineChoice) -> None:
    """Refuse options that are none of this engine. Raises UsageError."""
    ray_options(choice.options)


def shards_at_once(choice: EngineChoice, _urls: tuple[str, ...]) -> int:
    """Return the number of processes: that of the options, or those for which the cluster has room now."""
    options = ray_options(choice.options)
    return options.processes or max(1, _connect(options).room)


@contextmanager
def open_engine(choice: EngineChoice, work: EngineWork) -> Iterator[Engine]:
    """Connect to the cluster.

    Raises:
        UsageError: No cluster answers at the address, it runs another Ray or Python, or its other machines cannot
            see the originals or the output.
    """
    options = ray_options(choice.options)
    cluster = _connect(options)
    refuse_local_paths(options, (work.source_url, work.output_url), cluster.other_hosts)
    try:
        yield partial(_build, options, cluster, work, choice.detach)
    finally:
        _connections.clear()
        ray.shutdown()


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The cluster as it was when the driver connected."""

    address: str
    room: int
    other_hosts: tuple[str, ...]


_connections: dict[RayOptions, _Cluster] = {}


def _connect(options: RayOptions) -> _Cluster:
    """Connect to the cluster, once. Raises UsageError."""
    if options in _connections:
        return _connections[options]
    refuse_silence(options.address)
    # Ray writes a page about each worker that dies to stdout, where only the result of the command belongs; what
    # happened is in the lines of this engine.
    ray._private.worker.print_to_stdstream = lambda *_arguments, **_options: None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=options.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(
            f"--runner ray: the cluster at --address={options.address} cannot be used ({one_line(error)}); run this "
            "command on one of its nodes, with the Ray and the Python of the cluster"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    nodes = _nodes()
    hosts = {node["NodeManagerHostname"] for node in nodes} - {socket.gethostname()}
    address = ray.get_runtime_context().gcs_address
    _connections[options] = _Cluster(address, _room(nodes, options), tuple(sorted(hosts)))
    return _connections[options]


def _nodes() -> list[Any]:
    return [node for node in ray.nodes() if node["Alive"]]


def _room(nodes: Sequence[Any], options: RayOptions) -> int:
    return room_of([node["Resources"] for node in nodes], options.need)


def _build(
    options: RayOptions, cluster: _Cluster, work: EngineWork, detach: bool, job: BuildJob, indexes: list[int]
) -> Iterator[ShardReceipt]:
    """Build shards, or follow the detached job that does."""
    # A worker has another working directory.
    job = replace(job, output_url=open_storage(job.output_url).url, source_url=open_storage(job.source_url).url)
    is_web = job.recipe == "web"
    # The limits for web hosts were divided by this number; a node that joins later replaces one that is lost.
    most = options.processes or (max(1, cluster.room) if is_web else None)
    run = RayRun(
        partial(begin_shard, job),
        tuple(indexes),
        replace(options, processes=most),
        work.stall_s,
        window=WEB_WINDOW if is_web else WINDOW,
        modules=recipe_named(job.recipe).worker_modules,
    )
    name = job_name(job)
    with _explained():
        running = _detached_job(name)
        if running is None and not detach:
            yield from supervise(run, work.warn)
            return
        if running is None:
            running = _detach(run, name, work)
        if not detach:
            yield from _follow(running, job, indexes, work)
            return
        done, _lines, error = ray.get(running.state.remote())
        if error is not None:
            ray.kill(running)
            raise error
        raise DetachedJob(name, _detached_text(name, cluster.address, done, len(indexes)))


def job_name(job: BuildJob) -> str:
    """Return the name of the detached job that builds this."""
    return f"dataprep-{hashlib.sha256(f'{job.output_url} {job.root}'.encode()).hexdigest()[:12]}"


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of the connection to the cluster into one line."""
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise BuildError(
            f"ray: the cluster cannot be reached any more ({first_line(error)}); run the same command again: it goes "
            "on where it stopped"
        ) from error


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


class Worker:
    """An actor: a process of the cluster that builds one shard at a time, in one thread."""

    def __init__(self, begin: Callable[[int], Any], modules: Sequence[str]) -> None:
        _prepare_process()
        for module in modules:
            with suppress(ImportError):  # the shard's error says what is missing
                import_module(module)
        gc.freeze()  # as in the local pool
        gc.set_threshold(COLLECT_AFTER)
        self._begin = begin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dataprep-shards")
        self._begun: dict[int, asyncio.Future[None]] = {}

    @property
    def is_free(self) -> bool:
        """Whether no shard is being begun."""
        return not self._begun

    async def node(self) -> str:
        """Return the ID of this process's node."""
        found: str = ray.get_runtime_context().get_node_id()
        return found

    async def beats(self) -> int:
        """Return a number that changes while this process makes progress."""
        return beats()

    async def build(self, index: int) -> Any:
        """Build a shard; return its receipt or a Failure."""
        loop = asyncio.get_running_loop()
        begun = self._begun[index] = loop.create_future()
        try:
            try:
                found = await loop.run_in_executor(self._thread, self._begin, index)
            finally:
                begun.set_result(None)
            return await asyncio.wrap_future(found) if isinstance(found, Future) else found
        except Exception as error:  # noqa: BLE001  whatever it is, the driver decides
            return failure_of(index, error)

    async def begun(self, index: int) -> None:
        """Return when the thread is free for the next shard; called after `build` for the same shard."""
        await self._begun[index]
        del self._begun[index]


def _prepare_process() -> None:
    """Do for a process that Ray started what the environment does for those of the local pool."""
    beat()
    for name in ("OPENBLAS_NUM_THREADS",):
        os.environ.setdefault(name, WORKER_ENVIRONMENT[name])
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, int(WORKER_ENVIRONMENT["MALLOC_MMAP_THRESHOLD_"]))
    libc.mallopt(_M_TRIM_THRESHOLD, int(WORKER_ENVIRONMENT["MALLOC_TRIM_THRESHOLD_"]))


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
        if self._dispatch.set_aside:
            raise shards_set_aside(self._dispatch.set_aside)

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
        nodes = _nodes()
        self._alive = frozenset(node["NodeID"] for node in nodes)
        options = self._run.options
        room = _room(nodes, options)
        wanted = processes_wanted(room, self._dispatch.left, options.processes)
        surplus = max(0, len(self._processes) - wanted)
        for process in [process for process in self._processes if process.node is None][:surplus]:
            self._drop(process)
        while len(self._processes) < wanted:
            self._start()
        if not room and not self._said_waiting:
            self._log(f"ray: no node has room for a process ({_need_text(options)}); waiting for one")
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
            self._log(self._dispatch.failed(index, answer, time.monotonic()))
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
            self._dispatch.refuse_hangs(len(self._processes))
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


def _need_text(options: RayOptions) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in options.need.items() if amount)


class DetachedDriver:
    """An actor that supervises a build after its command has ended; Ray starts it again if its node is lost."""

    def __init__(self, run: RayRun) -> None:
        self._run = run
        self._done = 0
        self._lines: list[str] = []
        self._error: DataprepError | None = None
        self._actor = ray.get_runtime_context().current_actor
        threading.Thread(target=self._supervise, daemon=True).start()

    def state(self) -> tuple[int, list[str], DataprepError | None]:
        """Return the number of shards done, the last lines for the user, and the error with which the job ended."""
        return self._done, self._lines, self._error

    def _supervise(self) -> None:
        try:
            for _receipt in supervise(self._run, self._log):
                self._done += 1
        except Exception as error:  # noqa: BLE001  the next command shows it
            self._error = error if isinstance(error, DataprepError) else BuildError(f"ray: {one_line(error)}")
            return
        ray.kill(self._actor)

    def _log(self, line: str) -> None:
        self._lines = [*self._lines, line][-_KEPT_LINES:]


def _detached_job(name: str) -> Any | None:
    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def _detach(run: RayRun, name: str, work: EngineWork) -> Any:
    head = {_HEAD: 0.001} if any(_HEAD in node["Resources"] for node in _nodes()) else None
    work.log(f"ray: {name} builds {len(run.indexes)} shards")
    return (
        ray.remote(DetachedDriver)
        .options(
            name=name, lifetime="detached", num_cpus=0, resources=head, max_restarts=_STARTS_AGAIN, max_concurrency=2
        )
        .remote(run)
    )


def _detached_text(name: str, address: str, done: int, shards: int) -> str:
    stop = f"import ray; ray.init('{address}', namespace='{NAMESPACE}'); ray.kill(ray.get_actor('{name}'))"
    return (
        f"{name} runs on the cluster, {done} of {shards} shards are done. Run the same command later: it finishes the "
        f'dataset when all are done. To cancel the job: python -c "{stop}"'
    )


def _follow(running: Any, job: BuildJob, indexes: list[int], work: EngineWork) -> Iterator[ShardReceipt]:
    """Wait for the end of a detached job; its progress is read from the receipts."""
    work.log(f"ray: {job_name(job)} is at work; waiting for its end, Ctrl-C leaves it running")
    receipts = ReceiptWatch(open_storage(job.output_url), job.root, indexes)
    while receipts.missing:
        beat()
        time.sleep(receipts.wait_s)
        try:
            _done, _lines, error = ray.get(running.state.remote())
        except ray.exceptions.RayActorError:  # it ends itself when it is done
            yield from receipts.receipts(now=True)
            break
        if error is not None:
            ray.kill(running)
            raise error
        yield from receipts.receipts()
    if receipts.missing:
        raise BuildError(
            f"ray: {job_name(job)} is gone; {len(receipts.missing)} of {len(indexes)} shards are missing. Run the "
            "same command again: it goes on where it stopped"
        )
