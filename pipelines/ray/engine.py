"""The engine of the runner `ray`: one Ray task for each shard, a bounded number of them in flight.

    driver ── run_task(index) ──▶ any process of the cluster ── receipt ──▶ driver

Ray places tasks on nodes, also on those that join later, and tries a task again whose process or node was lost. With
`detach` the same driver runs in an actor of the cluster.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dataprep import __version__
from dataprep.builder.pool import MAX_DEATHS
from dataprep.builder.receipts import ReceiptWatch
from dataprep.builder.recipe import BuildJob, Engine
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, BuildError, DataprepError, UsageError
from dataprep.host.heartbeat import beat
from dataprep.host.processes import BUILD_ENVIRONMENT
from dataprep.host.program import COLLECT_AFTER
from dataprep.messages import one_line
from dataprep.storage import open_storage
from pipelines.engines import DetachedJob, EngineChoice, EngineWork
from pipelines.ray.cluster import NAMESPACE, OOM_RETRIES, RayOptions, connect, explained, ray_options, room
from pipelines.task import Answer, Lost, NodeTask, Task, receipts_in, shard_task, source_paths

MIN_IN_FLIGHT = 64
"""Tasks that are submitted to a cluster without room, so that an autoscaler sees a demand."""
LOOK_S = 1.0
"""Time between two looks at the cluster's room."""
ADVICE = "give each process more with --memory=GIB after --"
_STARTS_AGAIN = 3
"""Number of times that Ray starts the driver of a detached job again."""
_HEAD = "node:__internal_head__"
"""Resource of the cluster's head, by Ray's name."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Numbers of mallopt(3)."""


def check(choice: EngineChoice) -> None:
    """Refuse options that this engine does not have. Raises UsageError."""
    ray_options(choice.options)


def shards_at_once(choice: EngineChoice, _urls: tuple[str, ...]) -> int:
    """Return the number of processes: from the options, or as many as the cluster has room for now."""
    options = ray_options(choice.options)
    if options.processes is None:
        connect(options)
    return options.processes or max(1, room(options))


@contextmanager
def open_engine(choice: EngineChoice, work: EngineWork) -> Iterator[Engine]:
    """Connect to the cluster, and check its nodes before anything is planned.

    Raises:
        UsageError: No cluster answers at the address, or it runs another Ray or Python; or a node has another version
            of this package, or does not see the originals.
    """
    options = ray_options(choice.options)
    connect(options, work.warn)
    try:
        with explained():
            _check_nodes(options, NodeTask(source_paths(work.source_url), "ray"))
        yield partial(_build, options, work, choice.detach)
    finally:
        ray.shutdown()


@dataclass(frozen=True, slots=True)
class Run:
    """Tasks to run on a cluster; it can be sent to another process."""

    task: Task
    indexes: tuple[int, ...]
    options: RayOptions
    most: int | None
    """Number of tasks in flight; None: as many as keep all nodes busy, also those that join later."""

    @property
    def in_flight(self) -> int:
        """Number of tasks to have in flight now: beyond those that run, so that no process waits for the driver."""
        return self.most or max(MIN_IN_FLIGHT, 2 * room(self.options))

    def answers(self) -> Iterator[Answer]:
        """Run the tasks on the cluster to which this process is connected; yield answers as they arrive."""
        submit = _remote(self.options)
        left = iter(self.indexes)
        running: dict[Any, int] = {}
        try:
            while True:
                beat()
                for index in islice(left, max(0, self.in_flight - len(running))):
                    running[submit.remote(self.task, index)] = index
                if not running:
                    return
                ray.wait(list(running), timeout=LOOK_S)
                for done in ray.wait(list(running), num_returns=len(running), timeout=0)[0]:
                    yield _answer(done, running.pop(done))
        finally:
            for each in running:
                with suppress(Exception):  # the cluster may be gone
                    ray.cancel(each, force=True)


def _remote(options: RayOptions) -> Any:
    need = options.need
    cpus, memory = need.pop("CPU"), int(need.pop("memory", 0))
    return ray.remote(run_task).options(
        num_cpus=cpus, memory=memory or None, resources=need or None, max_retries=MAX_DEATHS - 1
    )


def run_task(task: Task, index: int) -> Answer:
    """Run a task in a process of the cluster."""
    _prepare_process()
    return task(index)


@cache
def _prepare_process() -> None:
    """Set up a process that Ray started as the environment does for the local pool's processes."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", BUILD_ENVIRONMENT["OPENBLAS_NUM_THREADS"])
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, int(BUILD_ENVIRONMENT["MALLOC_MMAP_THRESHOLD_"]))
    libc.mallopt(_M_TRIM_THRESHOLD, int(BUILD_ENVIRONMENT["MALLOC_TRIM_THRESHOLD_"]))
    libc.mallopt(_M_ARENA_MAX, int(BUILD_ENVIRONMENT["MALLOC_ARENA_MAX"]))
    gc.set_threshold(COLLECT_AFTER)


def _answer(done: Any, index: int) -> Answer:
    """Return the answer of a task that has ended, for whatever reason."""
    try:
        found: Answer = ray.get(done)
    except ray.exceptions.RayTaskError as error:  # every failure in a task is an answer
        cause = str(error).strip().splitlines()[-1]
        raise UsageError(
            f"`runner` ray: a worker cannot run this package ({cause}); install {DISTRIBUTION} {__version__} with the "
            "same extras on every node of the cluster"
        ) from error
    except ray.exceptions.RayError as error:
        how = one_line(error, 120)
        return Answer(index, Lost(f"lost its worker {MAX_DEATHS} times, last: {how}"))
    return found


def _check_nodes(options: RayOptions, task: NodeTask) -> None:
    """Run a task on each node with room for a process. Raises UsageError if one cannot build."""
    nodes = [node["NodeID"] for node in ray.nodes() if room(options, [node])]
    where = (NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes)
    ask = ray.remote(run_task)
    asked = [ask.options(num_cpus=0, scheduling_strategy=each).remote(task, 0) for each in where]
    for each in asked:
        found = _answer(each, 0).found
        if isinstance(found, DataprepError):
            raise found


def _build(
    options: RayOptions, work: EngineWork, detach: bool, job: BuildJob, indexes: list[int]
) -> Iterator[ShardReceipt]:
    """Build shards, or follow the detached job that does."""
    # The limits for web hosts were divided by this number; a node that joins later replaces one that is lost.
    most = options.processes or (max(1, room(options)) if job.recipe == "web" else None)
    task = shard_task(job, "ray", work.stall_s)
    run = Run(task, tuple(indexes), options, most)
    name = job_name(task.job)
    with explained():
        if not room(options):
            work.warn(f"ray: no node has room for a process ({options.need_text}); waiting for one")
        running = _detached_job(name)
        if running is None and not detach:
            yield from receipts_in(run.answers(), work.warn, ADVICE)
            return
        if running is None:
            running = _start_detached(run, name, work)
        if not detach:
            yield from _follow(running, task.job, indexes, work)
            return
        done, error = ray.get(running.state.remote())
        if error is not None:
            ray.kill(running)
            raise error
        raise DetachedJob(name, _detached_text(name, done, len(indexes)))


def job_name(job: BuildJob) -> str:
    """Return the name of the detached job that builds this."""
    return f"dataprep-{hashlib.sha256(f'{job.output_url} {job.root}'.encode()).hexdigest()[:12]}"


class DetachedDriver:
    """An actor that drives a build after its command has ended; Ray starts it again if its process or node is lost."""

    def __init__(self, run: Run) -> None:
        self._run, self._done = run, 0
        self._error: DataprepError | None = None
        self._actor = ray.get_runtime_context().current_actor
        threading.Thread(target=self._drive, daemon=True).start()

    def state(self) -> tuple[int, DataprepError | None]:
        """Return the number of shards done, and the error that the job ended with."""
        return self._done, self._error

    def _drive(self) -> None:
        try:
            for _receipt in receipts_in(self._run.answers(), lambda line: None, ADVICE):
                self._done += 1
        except Exception as error:  # noqa: BLE001  the next command shows it
            self._error = error if isinstance(error, DataprepError) else BuildError(f"ray: {one_line(error)}")
            return
        ray.kill(self._actor)


def _detached_job(name: str) -> Any | None:
    """Return the actor of a detached job; None if there is none."""
    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def _start_detached(run: Run, name: str, work: EngineWork) -> Any:
    """Start a detached job and return its actor."""
    head = {_HEAD: 0.001} if any(_HEAD in node["Resources"] for node in ray.nodes() if node["Alive"]) else None
    work.log(f"ray: {name} builds {len(run.indexes)} shards")
    return (
        ray.remote(DetachedDriver)
        .options(
            name=name,
            lifetime="detached",
            num_cpus=0,
            resources=head,
            max_restarts=_STARTS_AGAIN,
            max_concurrency=2,
            runtime_env={"env_vars": OOM_RETRIES},
        )
        .remote(run)
    )


def _detached_text(name: str, done: int, shards: int) -> str:
    """Return the message about a detached job that is running."""
    address = ray.get_runtime_context().gcs_address
    stop = f"import ray; ray.init('{address}', namespace='{NAMESPACE}'); ray.kill(ray.get_actor('{name}'))"
    return (
        f"{name} runs on the cluster, {done} of {shards} shards are done. Run the same command later: it finishes the "
        f'dataset when all are done. To cancel the job: python -c "{stop}"'
    )


def _follow(running: Any, job: BuildJob, indexes: Sequence[int], work: EngineWork) -> Iterator[ShardReceipt]:
    """Wait for the end of a detached job; its progress is read from the receipts."""
    work.log(f"ray: {job_name(job)} is at work; waiting for its end, Ctrl-C leaves it running")
    receipts = ReceiptWatch(open_storage(job.output_url), job.root, indexes)
    while receipts.missing:
        beat()
        time.sleep(receipts.wait_s)
        try:
            _done, error = ray.get(running.state.remote())
        except ray.exceptions.ActorUnavailableError:  # Ray starts it again
            continue
        except ray.exceptions.RayActorError:  # the actor ends itself when it is done
            yield from receipts.receipts(now=True)
            break
        if error is not None:
            ray.kill(running)
            raise error
        yield from receipts.receipts()
    if receipts.missing:
        raise BuildError(
            f"ray: {job_name(job)} is gone; {len(receipts.missing)} of {len(indexes)} shards are missing. Run the "
            "same command again: it continues where it stopped"
        )
