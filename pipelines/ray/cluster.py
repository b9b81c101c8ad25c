"""A Ray cluster: options of the runner `ray`, the connection, and the room for processes."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.job_config import JobConfig

from dataprep.builder.pool import MAX_DEATHS
from dataprep.errors import BuildError, UsageError
from dataprep.messages import first_line, one_line, shortened
from pipelines.engines import EngineParser

NAMESPACE = "dataprep"
AUTO = "auto"
_CONNECT_S = 10.0
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

    @property
    def need_text(self) -> str:
        """The same as text, such as `CPU 1, memory 2e+09`."""
        return ", ".join(f"{name} {amount:g}" for name, amount in self.need.items())


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
    """Connect to the cluster, once.

    Args:
        warn: Receives a line for each task that Ray tries again.

    Raises:
        UsageError: No cluster answers at the address, or it runs another Ray or Python.
    """
    # Ray writes a page about each worker that dies to stdout, where only the result of the command belongs.
    ray._private.worker.print_to_stdstream = partial(_tell, warn)
    if ray.is_initialized() and ray.get_runtime_context().namespace == NAMESPACE:
        return
    _refuse_silence(options.address)
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


def _refuse_silence(address: str) -> None:
    """Raise UsageError if nothing listens at the address, at once instead of after Ray's attempts."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"`runner` ray: nothing answers at --address={address} ({error}); start the cluster first, or give the "
            "address that ray start --head printed"
        ) from error


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
