"""A real Spark on loopback, from the package: a standalone master, and nodes whose processes can be killed together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.support.job_service import free_port

START_S = 300
SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of each Java process: they compile less, so that a build on two cores starts in half of the time."""
DAEMON = b"pyspark.daemon"


def spark_home() -> Path:
    """Return the folder of the package with Spark's scripts and jars."""
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None, "make cluster-test CLUSTER=spark installs PySpark"
    return Path(found.origin).parent


@dataclass(slots=True)
class SparkNode:
    """A worker of the cluster: its own process, and all that it starts, are one session."""

    process: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        """Return all processes of the node."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getsid(int(folder.name)) == self.process.pid:
                    found.append(int(folder.name))
        return found

    def kill(self) -> None:
        """Kill all processes of the node, as a machine that is lost."""
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)  # else it stays in the table of processes


@dataclass(slots=True)
class SparkCluster:
    """A running cluster."""

    master: str
    folder: Path
    cores: int
    """Cores of each node."""
    nodes: list[SparkNode] = field(default_factory=list)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of spark-submit that choose this cluster, and small processes."""
        settings = {
            "spark.executor.memory": "480m",
            "spark.driver.memory": "480m",
            "spark.ui.enabled": "false",
            "spark.cores.max": str(2 * self.cores),
            "spark.executor.extraJavaOptions": SMALL_JAVA,
            "spark.driver.extraJavaOptions": SMALL_JAVA,
        }
        pairs = (("--conf", f"{name}={value}") for name, value in settings.items())
        return ("--master", self.master, *(word for pair in pairs for word in pair))

    @property
    def options(self) -> tuple[str, ...]:
        """Arguments of `dataprep build` that choose this cluster, to be given last."""
        return ("--runner", "spark", "--", *self.arguments)

    def add_node(self) -> SparkNode:
        """Start a node, and return at once; it joins by itself."""
        number = len(list(self.folder.glob("work-*")))
        work = self.folder / f"work-{number}"
        work.mkdir()
        size = ["--cores", self.cores, "--memory", "1g", "--work-dir", work, "--webui-port", 0]
        node = SparkNode(_start(self.folder, "worker.Worker", "--host", "127.0.0.1", *size, self.master))
        self.nodes.append(node)
        return node

    def lose_node(self, node: SparkNode) -> None:
        """Kill all processes of a node; it does not come back."""
        self.nodes.remove(node)
        node.kill()

    def await_idle(self, timeout_s: float = START_S) -> None:
        """Wait until no Python runs on any node: builds that have ended leave none."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if not any(DAEMON in _command_line(pid) for node in self.nodes for pid in node.pids()):
                return
            time.sleep(0.1)
        raise AssertionError("Python runs on after the end of its build")


@contextmanager
def spark_cluster(folder: Path, nodes: int, cores: int = 1) -> Iterator[SparkCluster]:
    """Run a master and some nodes; they and all that they started are gone afterwards."""
    port = free_port()
    master = SparkNode(_start(folder, "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", 0))
    cluster = SparkCluster(f"spark://127.0.0.1:{port}", folder, cores)
    try:
        _await_listener(port, master.process, folder)
        for _ in range(nodes):
            cluster.add_node()
        yield cluster
    finally:
        for node in [*cluster.nodes, master]:
            node.kill()


def _start(folder: Path, name: str, *arguments: object) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": SMALL_JAVA,
    }
    command: Sequence[object] = [spark_home() / "bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
    with (folder / "spark.log").open("ab") as log:
        return subprocess.Popen(
            [str(word) for word in command], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def _await_listener(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"Spark's master did not start: {(folder / 'spark.log').read_text()[-2000:]}")


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
