"""The engine of the runner `ray`: one Ray task for each shard, a bounded number of them in flight.

    driver ── run_task(index) ──▶ any process of the cluster ── receipt ──▶ driver

Ray places tasks on nodes, also on those that join later, and tries a task again whose process or node was lost.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
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
from dataprep.builder.recipe import BuildJob, Engine
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, DataprepError, UsageError
from dataprep.host.heartbeat import beat
from dataprep.host.processes import BUILD_ENVIRONMENT
from dataprep.host.program import COLLECT_AFTER
from dataprep.messages import one_line
from pipelines.engines import EngineChoice, EngineWork
from pipelines.ray.cluster import RayOptions, connect, explained, ray_options, room
from pipelines.task import Answer, Lost, NodeTask, Task, receipts_in, shard_task, source_paths

MIN_IN_FLIGHT = 64
"""Tasks that are submitted to a cluster without room, so that an autoscaler sees a demand."""
LOOK_S = 1.0
"""Time between two looks at the cluster's room."""
ADVICE = "give each process more with --memory=GIB after --"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Numbers of mallopt(3)."""


def check(choice: EngineChoice) -> None:
    """Refuse options that this engine does not have. Raises UsageError."""
    ray_options(choice.options)
    if choice.detach:
        raise UsageError(
            f"`detach` with `runner` {choice.runner}: its tasks end with this command; submit the command itself with "
            "ray job submit --no-wait"
        )


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
        yield partial(_build, options, work)
    finally:
        ray.shutdown()


@dataclass(frozen=True, slots=True)
class Run:
    """Tasks to run on a cluster."""

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


def _build(options: RayOptions, work: EngineWork, job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
    # The limits for web hosts were divided by this number; a node that joins later replaces one that is lost.
    most = options.processes or (max(1, room(options)) if job.recipe == "web" else None)
    run = Run(shard_task(job, "ray", work.stall_s), tuple(indexes), options, most)
    with explained():
        if not room(options):
            work.warn(f"ray: no node has room for a process ({options.need_text}); waiting for one")
        yield from receipts_in(run.answers(), work.warn, ADVICE)
