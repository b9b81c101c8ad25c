"""Builds on a real Spark of a master and two nodes on loopback: the same bytes, whatever is killed meanwhile.

`make cluster-test CLUSTER=spark KILLS=30` kills workers, nodes and drivers at random moments.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import psutil
import pytest

from tests.support.builds import build_arguments, command, dataprep, digests, is_finished
from tests.support.crashes import receipts_of
from tests.support.job_service import free_port
from tests.support.other_environment import OTHER_PILLOW, other_environment
from tests.support.picture_web import PictureWeb, laion_arguments, picture_web

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


KILLS = int(os.environ.get("KILLS", "1"))
"""Kills of each kind."""
BUILD_S = 900
ROWS = 80
ROWS_A_SHARD = 10
NODES = 2
SCRIPT = "from dataprep.cli import main\nmain()\n"
"""The program for spark-submit that docs/clusters.md names."""
LATENCY_S = 0.8
POISON = 47
"""Number of the picture whose server kills those who ask for it."""


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark"), NODES) as cluster:
        yield cluster


@pytest.fixture
def cluster(running) -> SparkCluster:
    """The cluster with its two nodes; a test may have killed some."""
    while len(running.nodes) < NODES:
        running.add_node()
    return running


@pytest.fixture(scope="module")
def web() -> Iterator[PictureWeb]:
    with picture_web() as web:
        yield web


@pytest.fixture(scope="module")
def laion(web, tmp_path_factory) -> tuple[Callable[..., list[object]], dict[str, str]]:
    """The command line for an output and an engine, and the digests of the local pool's build."""
    folder = tmp_path_factory.mktemp("laion")
    table = web.write_table(folder / "laion.parquet", ROWS)

    def line(output: Path, *more: object) -> list[object]:
        return laion_arguments(table, output, "webdataset", *more)

    run = dataprep(*line(folder / "local", "--workers", 2))
    assert run.returncode == 0, run.stderr
    return line, digests(folder / "local")


@pytest.fixture(autouse=True)
def slowly(web) -> Iterator[None]:
    """Make pictures so slow that a build is still under way when something is killed."""
    web.latency_s = LATENCY_S
    web.asked.clear()
    yield
    web.latency_s = 0.0


class Build:
    """A build on the cluster that runs beside the test."""

    def __init__(self, line: list[object], output: Path) -> None:
        self.output = output
        self.process = subprocess.Popen(
            command(*line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=output.parent
        )

    def await_receipts(self, count: int) -> None:
        deadline_s = time.monotonic() + BUILD_S
        while time.monotonic() < deadline_s and self.process.poll() is None and not is_finished(self.output):
            if len(receipts_of(self.output)) >= count:
                return
            time.sleep(0.02)
        assert is_finished(self.output), self.process.communicate(timeout=5)[1][-3000:]

    def end(self) -> tuple[int, str]:
        """Wait for the end, and return exit code and stderr."""
        try:
            _, errors = self.process.communicate(timeout=BUILD_S)
        finally:
            self.process.kill()
        return self.process.returncode, errors


def test_a_build_of_archives_under_spark_submit_has_the_bytes_of_a_local_one(cluster, originals, tmp_path):
    """Paths relative to the driver's folder are meant, though executors run elsewhere."""
    (tmp_path / "originals").symlink_to(originals["imagenet"])
    arguments = ("--split", "train", "--num-shards", 6)
    local = build_arguments("imagenet", tmp_path / "originals", tmp_path / "local", "tfrecord", *arguments)
    assert dataprep(*local).returncode == 0
    (tmp_path / "build.py").write_text(SCRIPT)
    line = build_arguments("imagenet", "originals", "spark", "tfrecord", *arguments, "--runner", "spark")
    submit = [spark_home() / "bin/spark-submit", *cluster.arguments, "build.py", *line]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    run = subprocess.run(
        [str(word) for word in submit], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BUILD_S
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout)["shards_built"] == 6
    assert digests(tmp_path / "spark") == digests(tmp_path / "local")


def readers_at(address: tuple[str, int]) -> set[int]:
    """Return the processes that hold the connection from this address: who asks for the picture, and whom it forked."""
    found = {connection.pid for connection in psutil.net_connections("tcp") if connection.laddr == address}
    return {pid for pid in found if pid not in (None, os.getpid())}


def kill(readers: set[int]) -> None:
    for reader in readers:
        os.kill(reader, signal.SIGKILL)


def kill_worker(_cluster: SparkCluster, readers: set[int]) -> None:
    """Kill the process that builds a shard."""
    kill(readers)


def kill_node(cluster: SparkCluster, readers: set[int]) -> None:
    """Kill its machine; the other goes on alone."""
    (node,) = [node for node in cluster.nodes if readers & set(node.pids())]
    cluster.lose_node(node)


def kill_all_nodes(cluster: SparkCluster, _readers: set[int]) -> None:
    """Kill all machines; a new one joins later."""
    for node in list(cluster.nodes):
        cluster.lose_node(node)
    time.sleep(random.uniform(0, 2))
    cluster.add_node()


LOSSES = {"worker": kill_worker, "node": kill_node, "all nodes": kill_all_nodes}


@pytest.mark.parametrize("kill", range(KILLS))
@pytest.mark.parametrize("lost", LOSSES)
def test_a_build_goes_on_by_itself_when_something_is_lost(kill, lost, cluster, laion, web, tmp_path, monkeypatch):
    """What is lost is building a shard: the moment is a picture on its way."""
    line, expected = laion
    picture = ROWS // 2 if KILLS == 1 else random.randrange(ROWS)

    visits, losses = count(), []

    def lose(number: int, address: tuple[str, int]) -> None:
        if number == picture and next(visits) == 0:
            LOSSES[lost](cluster, readers_at(address))
            losses.append(lost)

    monkeypatch.setattr(web, "visit", lose)
    code, errors = Build(line(tmp_path / "out", *cluster.options), tmp_path / "out").end()
    assert code == 0, errors[-3000:]
    assert losses == [lost]
    assert digests(tmp_path / "out") == expected
    again = {number // ROWS_A_SHARD for number, asked in web.asked.items() if asked > 1}
    assert picture // ROWS_A_SHARD in again
    assert len(again) <= 2 * NODES
    print(f"{lost} lost: {len(again)} shards begun again")


@pytest.mark.parametrize("kill", range(KILLS))
def test_one_rerun_finishes_the_build_of_a_driver_that_was_ended(kill, cluster, laion, tmp_path):
    line, expected = laion
    words, output = line(tmp_path / "out", *cluster.options), tmp_path / "out"
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        done = len(receipts_of(output))
        run = Build(words, output)
        run.await_receipts(done + (1 if KILLS == 1 else random.randint(1, 3)))
        run.process.send_signal(number)
        ended, errors = run.end()
        if not is_finished(output):
            assert ended == code, errors[-3000:]
        assert "Traceback" not in errors, errors
        cluster.await_idle()
    code, errors = Build(words, output).end()
    assert code == 0, errors[-3000:]
    assert digests(output) == expected


def kill_reader_of_poison(number: int, address: tuple[str, int]) -> None:
    """Kill the process that asks for one of the pictures."""
    if number == POISON:
        kill(readers_at(address))


def test_a_shard_that_kills_its_workers_is_set_aside_and_named(cluster, laion, web, tmp_path, monkeypatch):
    line, expected = laion
    monkeypatch.setattr(web, "visit", kill_reader_of_poison)
    code, errors = Build(line(tmp_path / "out", *cluster.options), tmp_path / "out").end()
    monkeypatch.undo()
    shard = POISON // ROWS_A_SHARD
    assert code == 1, errors[-3000:]
    assert (
        f"dataprep: 1 of the shards could not be built: shard {shard}: lost its worker 3 times; if it ran out of "
        "memory, give each executor more memory with --conf spark.executor.memoryOverhead=1g after --, or fewer "
        "cores. All others are done; run the same command again to try these\n" in errors
    ), errors[-3000:]
    assert "Traceback" not in errors
    assert receipts_of(tmp_path / "out") == set(range(ROWS // ROWS_A_SHARD)) - {shard}
    assert web.asked[POISON] == 3
    code, errors = Build(line(tmp_path / "out", *cluster.options), tmp_path / "out").end()
    assert code == 0, errors[-3000:]
    assert digests(tmp_path / "out") == expected


def other_python() -> str | None:
    """Return a Python of another minor version, if this machine has one."""
    for minor in sorted({11, 12, 13} - {sys.version_info.minor}):
        installed = sorted(str(path) for path in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for found in (*installed, shutil.which(f"python3.{minor}")):
            # A program of this name may only say that no such version was chosen.
            if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
                return found
    return None


@pytest.mark.skipif(other_python() is None, reason="needs a Python of another minor version")
def test_workers_with_another_python_are_refused_with_both_versions(cluster, originals, tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", str(other_python()))
    line = build_arguments("imagenet", originals["imagenet"], tmp_path / "out", "tfrecord", *cluster.options)
    code, errors = Build(line, tmp_path / "out").end()
    assert code == 2, errors[-3000:]
    assert re.search(
        r"^dataprep: --runner spark: the workers' Python is 3\.\d+, this command's is 3\.\d+; set PYSPARK_PYTHON to a "
        r"Python 3\.\d+ that is on every node, with tpu-dataprep \S+$", errors, re.MULTILINE
    ), errors  # fmt: skip
    assert not (tmp_path / "out").exists(), "the build began"


def test_workers_with_another_pillow_are_refused_with_both_versions(cluster, originals, tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", str(other_environment(tmp_path / "other")))
    line = build_arguments("imagenet", originals["imagenet"], tmp_path / "out", "tfrecord", *cluster.options)
    code, errors = Build(line, tmp_path / "out").end()
    assert code == 2, errors[-3000:]
    assert f"this worker has pillow {OTHER_PILLOW}, but the plan was made with pillow {version('pillow')}" in errors
    assert "Traceback" not in errors
    assert not is_finished(tmp_path / "out")
