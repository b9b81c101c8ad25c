"""The engine of the runner `ray`: one Ray task for each shard, a bounded number of them in flight.

    driver ── run_task(index) ──▶ any process of the cluster ── receipt ──▶ driver

Ray places tasks on nodes, also on those that join later, and tries a task again whose process or node was lost.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dataprep import __version__
from dataprep.builder.pool import MAX_DEATHS
from dataprep.builder.recipe import BuildJob, Engine
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, BuildError, DataprepError, UsageError
from dataprep.host.heartbeat import beat
from dataprep.host.processes import BUILD_ENVIRONMENT
from dataprep.host.program import COLLECT_AFTER
from dataprep.messages import first_line, one_line, shortened
from pipelines.engines import EngineChoice, EngineParser, EngineWork, unreachable
from pipelines.task import Answer, Lost, NodeTask, Task, receipts_in, shard_task, source_paths

NAMESPACE = "dataprep"
AUTO = "auto"
_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
_LONGEST = 200
OOM_RETRIES = {"RAY_task_oom_retries": str(MAX_DEATHS - 1)}
"""Variable of a driver that limits how often Ray tries a task again after killing it because memory ran out. By default
there is no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RayOptions:
    """Options for the cluster."""

    address: str
    """`auto`, or HOST:PORT of the cluster's head."""
    cpus: float
    """CPUs of a process; each builds one shard at a time."""
    memory: int
    """Memory that a process needs, in bytes, for Ray's scheduler; 0: not given."""
    resource: tuple[tuple[str, float], ...]
    """Other resources that a process needs, by the names that the nodes give them."""
    processes: int | None
    """Number of processes; None: as many as the nodes have room for, also those that join later."""

    @property
    def need(self) -> dict[str, float]:
        """Resources of a process, by Ray's names; resources of 0 are left out."""
        need = {"CPU": self.cpus, "memory": float(self.memory), **dict(self.resource)}
        return {name: amount for name, amount in need.items() if amount}


def ray_options(arguments: Sequence[str]) -> RayOptions:
    """Return the options among a user's arguments after `--`. Raises UsageError for any other."""
    parser = EngineParser("ray")
    parser.add_argument("--address", type=_address, default=AUTO, metavar="HOST:PORT")
    parser.add_argument("--cpus", type=_positive, default=1.0, metavar="N")
    parser.add_argument("--memory", type=_gib, default=0, metavar="GIB")
    parser.add_argument("--resource", type=_resource, action="append", default=[], metavar="NAME=N")
    parser.add_argument("--processes", type=_count, metavar="N")
    found = vars(parser.parse_args(list(arguments)))
    return RayOptions(**found | {"resource": tuple(found["resource"])})


def _address(text: str) -> str:
    if text != AUTO and not _ADDRESS.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"got {text}, expected auto, or HOST:PORT of the cluster's head; run this command on a node of the cluster"
        )
    return text


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1_000_000:
        raise ValueError(text)
    return value


def _gib(text: str) -> int:
    return int(_positive(text) * (1 << 30))


def _count(text: str) -> int:
    _positive(text)
    return int(text)


def _resource(text: str) -> tuple[str, float]:
    name, equals, amount = text.partition("=")
    if not (name and equals):
        raise ValueError(text)
    return name, _positive(amount)


class _WithoutCurrentFolder(list[str]):
    """Folders where Ray's workers look for modules first: Ray adds the current one, such as a downloaded dataset."""

    def extend(self, folders: Iterable[str]) -> None:
        super().extend(each for each in folders if each != str(Path.cwd()))


def connect(options: RayOptions, warn: Callable[[str], object] = lambda line: None) -> None:
    """Connect to the cluster, once; `warn` receives a line for each task that Ray tries again. Raises UsageError if no
    cluster answers at the address, or it runs another Ray or Python."""
    # Ray writes a page about each worker that dies to stdout, where only the result of the command belongs.
    ray._private.worker.print_to_stdstream = partial(_tell, warn)
    if ray.is_initialized() and ray.get_runtime_context().namespace == NAMESPACE:
        return
    if options.address != AUTO and (error := unreachable(options.address)):
        raise UsageError(
            f"`runner` ray: nothing answers at --address={options.address} ({error}); start the cluster first, or give "
            "the address that ray start --head printed"
        ) from error
    os.environ |= OOM_RETRIES
    handler = signal.getsignal(signal.SIGTERM)
    try:
        config = JobConfig()
        config._py_driver_sys_path = _WithoutCurrentFolder()
        ray.init(
            address=options.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", job_config=config
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(
            f"`runner` ray: the cluster at --address={options.address} cannot be used ({one_line(error)}); run this "
            "command on one of its nodes, with the Ray and the Python of the cluster"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _tell(warn: Callable[[str], object], data: Mapping[str, Any], **_options: Any) -> None:
    """Pass on Ray's messages about tasks that it tries again, each in one line."""
    for line in data["lines"]:
        if line.startswith("Task "):
            warn(f"ray: {shortened(' '.join(line.split()), _LONGEST)}")


def room(options: RayOptions, nodes: Iterable[Any] | None = None) -> int:
    """Return the number of processes for which nodes have room, by default all of the cluster."""
    alive = [node["Resources"] for node in (ray.nodes() if nodes is None else nodes) if node["Alive"]]
    return sum(min(int(node.get(name, 0) / amount) for name, amount in options.need.items()) for node in alive)


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the connection to the cluster into one line."""
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise BuildError(
            f"ray: the cluster cannot be reached any more ({first_line(error)}); run the same command again: it "
            "continues where it stopped"
        ) from error


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
    """Connect to the cluster, and check its nodes before anything is planned. Raises UsageError if no cluster answers
    at the address, or it runs another Ray or Python; or a node has another version of this package, or does not see
    the originals."""
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
    gpus = need.pop("GPU", None)  # Ray leaves a process only its own
    return ray.remote(run_task).options(
        num_cpus=cpus, num_gpus=gpus, memory=memory or None, resources=need or None, max_retries=MAX_DEATHS - 1
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
            need = ", ".join(f"{name} {amount:g}" for name, amount in options.need.items())
            work.warn(f"ray: no node has room for a process ({need}); waiting for one")
        yield from receipts_in(run.answers(), work.warn, ADVICE)
