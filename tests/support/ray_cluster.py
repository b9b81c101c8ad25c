"""A real Ray cluster on loopback: a head without CPUs, and nodes of several processes each, which can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

STORE_BYTES = 80 << 20
"""Memory of a node's object store; receipts need none of it."""
# So that a node that was killed is found dead after seconds; Ray waits half a minute.
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
TITLES = "ray::run_task", "ray::DetachedDriver"
"""Titles of processes that build a shard, and of the driver of a detached job."""
IDLE_S = 300.0


@dataclass(slots=True)
class RayCluster:
    """The cluster, and its nodes in the order in which they joined."""

    cluster: Any
    nodes: list[Any] = field(default_factory=list)

    @property
    def options(self) -> tuple[str, ...]:
        """Options that `--runner ray` takes after `--`."""
        return (f"--address={self.cluster.address}",)

    def add_node(self, **settings: Any) -> Any:
        """Let a node of one CPU join."""
        self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, **settings))
        return self.nodes[-1]

    def kill_node(self) -> None:
        """Kill all processes of the node that joined first."""
        node = self.nodes.pop(0)
        raylet = psutil.Process(_raylet_pid(node))
        for process in (*raylet.children(recursive=True), raylet):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill all processes of the head. The nodes end, too, when they have tried to reach it for a while."""
        head = self.cluster.head_node
        for kind in ("gcs_server", "raylet"):
            for found in head.all_processes[kind]:
                os.kill(found.process.pid, signal.SIGKILL)

    def workers(self, *nodes: Any, title: str = TITLES[0]) -> list[int]:
        """Return the processes that build shards, on these nodes or on all; or those of another title."""
        found = []
        for node in nodes or self.nodes:
            for process in psutil.Process(_raylet_pid(node)).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any(title in word for word in process.cmdline()):
                        found.append(process.pid)
        return found

    def kill_driver(self) -> None:
        """Kill the process that drives a detached job."""
        for pid in self.workers(self.cluster.head_node, title=TITLES[1]):
            os.kill(pid, signal.SIGKILL)

    def kill_worker(self) -> None:
        """Kill a process that builds shards, if there is one."""
        for pid in self.workers()[:1]:
            os.kill(pid, signal.SIGKILL)

    def await_idle(self) -> None:
        """Wait until no process builds shards."""
        deadline_s = time.monotonic() + IDLE_S
        while time.monotonic() < deadline_s:
            if not self.workers():
                return
            time.sleep(0.05)
        raise AssertionError("workers are left")


def _raylet_pid(node: Any) -> int:
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


@contextlib.contextmanager
def ray_cluster(nodes: int) -> Iterator[RayCluster]:
    """Start a head and nodes; they are gone afterwards."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        running = RayCluster(cluster)
        for _ in range(nodes):
            running.add_node()
        yield running
    finally:
        cluster.shutdown()
