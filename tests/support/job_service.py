"""Beam's portable job service and its pool of workers on loopback: the protocol of Flink and Spark without a JVM."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
START_S = 60


@dataclass(frozen=True, slots=True)
class JobService:
    """Addresses, and the processes to kill."""

    job_endpoint: str
    worker_pool: str
    service: subprocess.Popen[bytes]
    pool: subprocess.Popen[bytes]

    @property
    def options(self) -> tuple[str, ...]:
        """Options that `--runner PortableRunner` takes."""
        return (
            f"--job_endpoint={self.job_endpoint}",
            "--environment_type=EXTERNAL",
            f"--environment_config={self.worker_pool}",
        )


@contextlib.contextmanager
def job_service(workers: str = sys.executable) -> Iterator[JobService]:
    """Both servers; they and their workers, which run with the Python `workers`, are gone afterwards."""
    job_port, pool_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="job-service-") as staging, contextlib.ExitStack() as stack:
        service = stack.enter_context(
            server("portability.local_job_service_main", "--port", job_port, "--staging_dir", staging)
        )
        pool = stack.enter_context(server("worker.worker_pool_main", f"--service_port={pool_port}", python=workers))
        for port, process in ((job_port, service), (pool_port, pool)):
            wait_until_listening(port, process)
        yield JobService(f"127.0.0.1:{job_port}", f"127.0.0.1:{pool_port}", service, pool)


@contextlib.contextmanager
def server(module: str, *arguments: object, python: str = sys.executable) -> Iterator[subprocess.Popen[bytes]]:
    """A module of Beam's runners as a process with a group of its own, which ends with the block."""
    command = [python, "-m", f"apache_beam.runners.{module}", *map(str, arguments)]
    with running(command) as process:
        yield process


@contextlib.contextmanager
def running(command: list[str], log: Path | None = None, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, which is killed with the block's end."""
    # Beam's pool starts its workers as "python".
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ["PATH"]])
    with (log or Path(os.devnull)).open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment, "PATH": path},
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """A port of loopback that nothing listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Raises RuntimeError when the process ends first, or takes a minute."""
    deadline_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args} does not listen at port {port}; exit code {process.poll()}")
