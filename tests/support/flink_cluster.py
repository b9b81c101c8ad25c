"""A real Flink on loopback: one JobManager and some TaskManagers in plain Java processes, and Beam's job server.

Flink's jars come from PyPI's apache-flink-libraries, the job server's from Maven Central, both through their ordinary
clients, once a version: they are kept in dataprep's folder of engines.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.beam.runners import BEAM_VERSION, engines_folder, jar_command
from tests.support.job_service import free_port, running

FLINK_VERSION = "1.19.3"
JOB_SERVER = f"beam-runners-flink-{FLINK_VERSION.rpartition('.')[0]}-job-server"
START_S = 90
TASK_MANAGERS = 2
SLOTS = 2
"""Slots of each TaskManager: a job takes half of all slots, so that one TaskManager that is left suffices."""
# Java 17 hides from libraries what Flink's serialisation looks into.
OPENS = tuple(
    f"--add-opens=java.base/{name}=ALL-UNNAMED"
    for name in ("java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text", "java.time", "java.util")
)
# Every part by itself: without Flink's shell scripts nobody divides a whole among them.
MEMORY = {
    "framework.heap.size": "64m",
    "framework.off-heap.size": "64m",
    "task.heap.size": "256m",
    "task.off-heap.size": "64m",
    "network.min": "32m",
    "network.max": "32m",
    "managed.size": "64m",
    "jvm-metaspace.size": "192m",
    "jvm-overhead.min": "128m",
    "jvm-overhead.max": "128m",
}
ENTRY_POINTS = {
    "jobmanager": "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
    "taskmanager": "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
}


@dataclass(slots=True)
class FlinkCluster:
    """A running cluster."""

    master: str
    """`HOST:PORT` of its REST interface."""
    logs: Path
    start_task_manager: Callable[[], subprocess.Popen[bytes]]
    task_managers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def options(self) -> tuple[str, ...]:
        """Options that `--runner FlinkRunner` takes."""
        return (f"--flink_master={self.master}", f"--parallelism={SLOTS}")

    def overview(self) -> dict[str, int]:
        """What the JobManager says of its TaskManagers and slots."""
        with urllib.request.urlopen(f"http://{self.master}/overview", timeout=10) as answer:
            document: dict[str, int] = json.load(answer)
            return document

    def lose_task_manager(self) -> None:
        """Kill one, and start another as a cluster's operator does; those that are left suffice meanwhile."""
        self.task_managers.pop(0).kill()
        self.task_managers.append(self.start_task_manager())


def flink_jars() -> Path:
    """The folder with Flink's jars; brought from PyPI when they are not there."""
    folder = engines_folder() / f"flink-{FLINK_VERSION}"
    if (folder / "complete").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        command += ["--no-binary", ":all:", "--dest", temporary, f"apache-flink-libraries=={FLINK_VERSION}"]
        subprocess.run(command, check=True)
        with tarfile.open(next(Path(temporary).glob("*.tar.gz"))) as archive:
            for member in archive:
                name = Path(member.name)
                if name.suffix == ".jar" and name.parent.name == "lib":
                    member.name = name.name
                    archive.extract(member, folder, filter="data")
    (folder / "complete").touch()
    return folder


def job_server_jar() -> Path:
    """Beam's job server for this Flink; brought from Maven Central when it is not there.

    Raises:
        subprocess.CalledProcessError: It cannot be had.
    """
    jar = engines_folder() / f"{JOB_SERVER}-{BEAM_VERSION}.jar"
    if not jar.exists():
        subprocess.run([*shlex.split(jar_command(JOB_SERVER)), "--quiet", "--batch-mode"], check=True)
    return jar


@contextlib.contextmanager
def flink_cluster() -> Iterator[FlinkCluster]:
    """One JobManager and two TaskManagers; they and all that they started are gone afterwards."""
    jars = flink_jars()
    with tempfile.TemporaryDirectory(prefix="flink-") as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        rpc_port, rest_port = free_port(), free_port()
        (root / "flink-conf.yaml").write_text(_configuration(root, rpc_port, rest_port))
        stack.enter_context(_process(root, jars, "jobmanager", 512))

        def start_task_manager() -> subprocess.Popen[bytes]:
            return stack.enter_context(_process(root, jars, "taskmanager", 384))

        cluster = FlinkCluster(f"127.0.0.1:{rest_port}", root, start_task_manager)
        cluster.task_managers += [start_task_manager() for _ in range(TASK_MANAGERS)]
        _wait_for_slots(cluster)
        yield cluster


def _configuration(root: Path, rpc_port: int, rest_port: int) -> str:
    settings = {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": rpc_port,
        "jobmanager.bind-host": "127.0.0.1",
        "jobmanager.memory.process.size": "1g",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": SLOTS,
        "taskmanager.cpu.cores": 1,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": rest_port,
        "heartbeat.interval": 1000,
        "heartbeat.timeout": 10000,
        "io.tmp.dirs": root,
        "web.upload.dir": root / "upload",
        "blob.storage.directory": root / "blobs",
    }
    memory = {f"taskmanager.memory.{name}": size for name, size in MEMORY.items()}
    return "".join(f"{name}: {value}\n" for name, value in (settings | memory).items())


@contextlib.contextmanager
def _process(root: Path, jars: Path, role: str, heap_mb: int) -> Iterator[subprocess.Popen[bytes]]:
    command = ["java", f"-Xmx{heap_mb}m", *OPENS, "-cp", f"{jars}/*", ENTRY_POINTS[role], "--configDir", str(root)]
    with running(command, root / f"{role}.log") as process:
        yield process


def _wait_for_slots(cluster: FlinkCluster) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            if cluster.overview()["slots-total"] == TASK_MANAGERS * SLOTS:
                return
        time.sleep(0.5)
    tails = [f"{path.name}: {path.read_text()[-1500:]}" for path in cluster.logs.glob("*.log")]
    raise RuntimeError("Flink did not start: " + "\n".join(tails))
