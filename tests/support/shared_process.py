"""Processes that all workers of a run of the tests share: each is started by whichever worker needs it first.

The module that runs in one is given the number of a listening socket and says `1` to each worker that connects, when it
has imported what it needs. It ends when the last worker has closed its connection.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
POLL_S = 0.005
RUN = "PYTEST_XDIST_TESTRUNUID"
LONGEST_END_S = 5
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""For a process that forks programs. Read when libgomp and pyarrow are loaded: threads would not be forked, too."""


def run_id() -> str:
    """What tells a run of the tests from others."""
    return os.environ.get(RUN, str(os.getpid()))


@functools.cache
def connect(kind: socket.SocketKind, module: str, *arguments: str) -> socket.socket:
    """Return a connection to the process that runs a module with these arguments; one of each in this process."""
    spaces = [os.readlink(f"/proc/self/ns/{each}") for each in ("mnt", "user")]  # another one has other disks
    digest = hashlib.sha256(repr((module, arguments, spaces)).encode()).hexdigest()
    address = f"\0dataprep-tests-{run_id()}-{digest[:16]}"  # no file: it goes with the process
    started = None
    while True:
        connection = _socket(kind)
        with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
            connection.connect(address)
            if connection.recv(1):  # nothing from one that is ending
                atexit.register(connection.close)
                return connection
        connection.close()
        if started is not None and started.wait() != 0:
            raise RuntimeError(f"{module} {' '.join(arguments)} ended with {started.returncode}")
        started = _start(kind, address, module, *arguments)


def _socket(kind: socket.SocketKind) -> socket.socket:
    created = socket.socket(socket.AF_UNIX, kind)
    created.setblocking(True)  # Beam's credentials give all new sockets a timeout
    return created


def _start(kind: socket.SocketKind, address: str, module: str, *arguments: str) -> subprocess.Popen[bytes] | None:
    """Start the process, unless another worker is doing so."""
    with _socket(kind) as listening:
        try:
            listening.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            time.sleep(POLL_S)
            return None
        listening.listen()
        number = listening.fileno()
        environment = {**os.environ, **ONE_THREAD, "PJRT_DEVICE": "CPU", "TPU_SKIP_MDS_QUERY": "1"}
        words = [sys.executable, "-m", module, str(number), *arguments]
        process = subprocess.Popen(words, pass_fds=[number], env=environment, cwd=REPOSITORY)
    atexit.register(_wait, process)
    return process


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, but not for workers that still use it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LONGEST_END_S)
