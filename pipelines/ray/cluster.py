"""The connection to a Ray cluster."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.job_config import JobConfig

from dataprep.errors import BuildError, UsageError
from dataprep.messages import first_line, one_line
from pipelines.ray.options import RayOptions, refuse_silence
from pipelines.ray.room import room_of

NAMESPACE = "dataprep"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as it was when the driver connected."""

    address: str
    room: int
    other_hosts: tuple[str, ...]


class _WithoutCurrentFolder(list[str]):
    """Folders where Ray's workers look for modules first: Ray adds the current one, such as a downloaded dataset."""

    def extend(self, folders: Iterable[str]) -> None:
        super().extend(each for each in folders if each != str(Path.cwd()))


_connections: dict[RayOptions, Cluster] = {}


def connect(options: RayOptions) -> Cluster:
    """Connect to the cluster, once. Raises UsageError."""
    if options in _connections:
        return _connections[options]
    refuse_silence(options.address)
    # Ray writes a page about each worker that dies to stdout, where only the result of the command belongs; what
    # happened is in the lines of this engine.
    ray._private.worker.print_to_stdstream = lambda *_arguments, **_options: None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        config = JobConfig()
        config._py_driver_sys_path = _WithoutCurrentFolder()
        ray.init(
            address=options.address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            job_config=config,
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(
            f"--runner ray: the cluster at --address={options.address} cannot be used ({one_line(error)}); run this "
            "command on one of its nodes, with the Ray and the Python of the cluster"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    nodes = nodes_alive()
    hosts = {node["NodeManagerHostname"] for node in nodes} - {socket.gethostname()}
    address = ray.get_runtime_context().gcs_address
    _connections[options] = Cluster(address, room_for(nodes, options), tuple(sorted(hosts)))
    return _connections[options]


def nodes_alive() -> list[Any]:
    """Return the nodes of the cluster, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def room_for(nodes: Sequence[Any], options: RayOptions) -> int:
    """Return the number of processes for which nodes have room."""
    return room_of([node["Resources"] for node in nodes], options.need)


def disconnect() -> None:
    """End the connection."""
    _connections.clear()
    ray.shutdown()


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the connection to the cluster into one line."""
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise BuildError(
            f"ray: the cluster cannot be reached any more ({first_line(error)}); run the same command again: it goes "
            "on where it stopped"
        ) from error
