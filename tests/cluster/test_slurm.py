"""A build as a job array of a real Slurm: a task is killed and requeued, another is cancelled for good."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.builds import build, build_arguments, command, digests
from tests.support.crashes import receipts_of

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
PACKAGES = "slurmctld slurmd slurm-client munge"
CONFIGURATION = """
ClusterName=dataprep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=6
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
ReturnToService=2
KillWait=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1,requeue_delay=0
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def slurm_is_installed() -> bool:
    """Slurm's daemons run as root here."""
    return os.geteuid() == 0 and all(shutil.which(name, path=_path()) for name in PROGRAMS)


def _path() -> str:
    return f"{os.environ['PATH']}{os.pathsep}/usr/sbin"


@dataclass(frozen=True)
class SlurmCluster:
    """Runs commands of a running cluster."""

    folder: Path

    def run(self, *words: object) -> str:
        """Run one of Slurm's commands and return what it prints."""
        done = subprocess.run(
            [str(word) for word in words], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which the commands find this cluster."""
        return {**os.environ, "PATH": _path(), "SLURM_CONF": str(self.folder / "slurm.conf")}

    def states(self, job: str) -> list[str]:
        """Return the states of the tasks of a job that are in the queue."""
        return self.run("squeue", "--noheader", "--array", "--format=%T", f"--jobs={job}").split()

    def await_end(self, job: str) -> None:
        """Wait until no task of a job waits or runs."""
        while set(self.states(job)) - {"COMPLETED", "FAILED"}:
            time.sleep(0.2)


@contextmanager
def slurm_cluster(folder: Path, nodes: int) -> Iterator[SlurmCluster]:
    """Run a controller and some nodes of one core each."""
    ports = _free_ports(nodes + 1)
    host = socket.gethostname().partition(".")[0]
    lines = [
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN"
        for number, port in enumerate(ports[1:], 1)
    ]
    configuration = CONFIGURATION.format(host=host, ports=ports, folder=folder, nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(configuration)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    cluster = SlurmCluster(folder)
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={key}"]
        + [f"--{option}={folder}/munge.{suffix}" for option, suffix in files.items()],
        ["slurmctld", "-D", "-f", folder / "slurm.conf"],
        *(["slurmd", "-D", "-f", folder / "slurm.conf", "-N", f"n{number}"] for number in range(1, nodes + 1)),
    ]
    running = []
    try:
        for words in daemons:
            running.append(_started(words, cluster, folder))
        _await_nodes(cluster, nodes, running)
        yield cluster
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _started(words: Sequence[object], cluster: SlurmCluster, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "daemons.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in words], env=cluster.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    if words[0] == "munged":
        while not (folder / "munge.socket").exists():
            assert process.poll() is None, (folder / "daemons.log").read_text()[-2000:]
            time.sleep(0.05)
    return process


def _await_nodes(cluster: SlurmCluster, nodes: int, daemons: Sequence[subprocess.Popen[bytes]]) -> None:
    while True:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%T"],
            env=cluster.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.stdout.split() == ["idle"] * nodes:
            return
        ended = [process.args for process in daemons if process.poll() is not None]
        assert not ended, f"{ended} ended: {(cluster.folder / 'daemons.log').read_text()[-2000:]}"
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


pytestmark = pytest.mark.skipif(
    not slurm_is_installed(), reason=f"Slurm is not installed, or not run by root (Debian: apt install {PACKAGES})"
)
SHARDS = ("--num-shards", 8, "--split", "train")
DOCUMENTED = ["sbatch", "--array=1-8", "--requeue", "--wrap"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=3) as cluster:
        yield cluster


def submit(cluster: SlurmCluster, folder: Path, words: list[object]) -> str:
    """Submit an array of three tasks, as the document does."""
    line = shlex.join(command(*words, "--workers", 1, "--part", "auto"))
    options = ["--parsable", f"--chdir={folder}", "--output=%a.log", "--open-mode=append"]
    return cluster.run("sbatch", "--array=1-3", "--requeue", *options, "--wrap", line).strip()


def await_receipts(output: Path, count: int) -> None:
    while len(receipts_of(output)) < count and not (output / "dataset.json").exists():
        time.sleep(0.02)


def test_the_documented_job_array_has_these_options():
    document = (Path(__file__).parents[2] / "docs/clusters.md").read_text()
    (line,) = [line for line in document.splitlines() if line.startswith("sbatch ")]
    words = shlex.split(line)
    assert words[:4] == DOCUMENTED
    assert shlex.split(words[4])[-2:] == ["--part", "auto"]


def test_an_array_with_a_task_that_is_requeued_and_one_that_is_cancelled_makes_the_same_dataset(
    cluster, originals, tmp_path
):
    arguments = ("imagenet", originals["imagenet"])
    build(*arguments, tmp_path / "plain", "webdataset", *SHARDS)
    output = tmp_path / "out"
    job = submit(cluster, tmp_path, build_arguments(*arguments, output, "webdataset", *SHARDS))
    await_receipts(output, 1)
    cluster.run("scontrol", "requeue", f"{job}_1")
    cluster.run("scancel", "--signal=KILL", "--full", f"{job}_2")
    cluster.await_end(job)
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))
    assert digests(output) == digests(tmp_path / "plain"), logs
    assert "CANCELLED" in (tmp_path / "1.log").read_text(), "the task was not stopped"
    assert '"name": "imagenet"' in (tmp_path / "1.log").read_text(), "it did not run again to the end"
