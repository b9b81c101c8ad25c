"""Programs whose imports take longer than their work, each in a process forked from one that has imported them.

    with start("train.pretrain_mae", "--epochs", "1", environment=os.environ, folder=REPOSITORY) as process:
        out, err = process.communicate()

Importing torch, torch_xla and timm takes six seconds of a processor, the commands of dataprep half a second, and most
programs of the tests run for less. A program runs as `python -m MODULE` runs it: with its own environment, arguments
and generators, and it ends as an interpreter does. All workers of a run of the tests share the process that forks. What
is forked has the hash seed of that process, so tests that compare bytes start interpreters of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tests.support import shared_process
from tests.support.shared_process import POLL_S, REPOSITORY

TORCH = (
    "torch",
    "torchvision.transforms.v2",
    "torch_xla",
    "torch_xla.core.xla_model",
    "torch_xla.runtime",
    "timm.data",
    "albumentations",
)
"""Imports of the training programs on torch, and of augmentations."""
DATAPREP = (
    "dataprep.cli",
    "dataprep.builder.archives",
    "dataprep.builder.driver",
    "dataprep.builder.pool",
    "dataprep.commands.adopt",
    "dataprep.commands.build_laion",
    "dataprep.commands.card",
    "dataprep.commands.convert",
    "dataprep.commands.inspect",
    "dataprep.commands.retry_failed",
    "dataprep.commands.verify",
    "dataprep.fetched.fetching",
    "dataprep.fetched.recipe",
    "dataprep.sources.folder",
    "dataprep.sources.image_tables",
    "dataprep.verification.run",
    "numpy",
    "obstore",
    "PIL.Image",
    "pyarrow.compute",
    "pyarrow.parquet",
    "simplejpeg",
    "rich.progress",
    "google.cloud.storage",
)
"""Imports of the commands of dataprep."""
MAX_REQUEST_BYTES = 1 << 17


class Process:
    """A program that was started; what `subprocess.Popen` has of it under the same names."""

    def __init__(self, imported: tuple[str, ...], pid: int, stdout: int, stderr: int) -> None:
        self._imported = imported
        self.pid = pid
        self.returncode: int | None = None
        self.stdout, self.stderr = os.fdopen(stdout), os.fdopen(stderr)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self.stdout.close()
        self.stderr.close()

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _ask(self._imported, {"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout)
            finally:
                os.close(ended)
        while self.poll() is None:
            time.sleep(POLL_S)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """Read both streams to their ends, close them, and wait."""
        read: dict[str, str] = {}
        streams = {"out": self.stdout, "err": self.stderr}
        threads = [
            threading.Thread(target=lambda name=name, stream=stream: read.update({name: stream.read()}), daemon=True)
            for name, stream in streams.items()
        ]
        for thread in threads:
            thread.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        for thread in threads:
            thread.join()
        self.stdout.close()
        self.stderr.close()
        return read["out"], read["err"]


def start(
    module: str, *arguments: str, environment: Mapping[str, str], folder: Path, imported: tuple[str, ...] = TORCH
) -> Process:
    """Start a Python module in a process forked from one that has imported the modules `imported`."""
    out, theirs_out = os.pipe()
    err, theirs_err = os.pipe()
    request = {"module": module, "arguments": arguments, "environment": dict(environment), "folder": str(folder)}
    try:
        pid = _ask(imported, request, theirs_out, theirs_err)
    finally:
        os.close(theirs_out)
        os.close(theirs_err)
    return Process(imported, pid, out, err)


def stand_in(folder: Path) -> dict[str, str]:
    """Write a `dataprep` that runs the command line in a process that is forked here; the variables of its callers."""
    shared_process.connect(socket.SOCK_SEQPACKET, __name__, *DATAPREP)  # what forks stays until this process ends
    lines = ("import sys", f"sys.path.insert(0, {str(REPOSITORY)!r})", "from tests.support import warm", "warm.main()")
    path = folder / "dataprep"
    path.write_text("\n".join([f"#!{sys.executable} -S", *lines, ""]))
    path.chmod(0o755)
    names = (str(folder), str(Path(sys.executable).parent), os.environ["PATH"])
    return {"PATH": os.pathsep.join(names), shared_process.RUN: shared_process.run_id()}


def main() -> NoReturn:
    """Run `dataprep` with the streams, arguments and environment of this process, and end as it does."""
    request = {
        "module": "dataprep",
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
    }
    pid = _ask(DATAPREP, request, 1, 2)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    select.select([os.pidfd_open(pid)], [], [])
    code = None
    while code is None:
        code = _ask(DATAPREP, {"poll": pid})
    os._exit(code if code >= 0 else 128 - code)


def _ask(imported: tuple[str, ...], request: dict[str, Any], *descriptors: int) -> Any:
    server = shared_process.connect(socket.SOCK_SEQPACKET, __name__, *imported)
    socket.send_fds(server, [json.dumps(request).encode()], list(descriptors))
    return json.loads(server.recv(MAX_REQUEST_BYTES))


def _serve(listening: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a process for every request, which alone returns, with that request; None when no client is left."""
    clients: list[socket.socket] = []
    while True:
        for ready in select.select([listening, *clients], [], [])[0]:
            if ready is listening:
                clients.append(listening.accept()[0])
                clients[-1].send(b"1")
                continue
            message, descriptors, _, _ = socket.recv_fds(ready, MAX_REQUEST_BYTES, 2)
            if message and _answer(ready, json.loads(message), descriptors):
                for each in (listening, *clients):
                    each.close()
                return json.loads(message), descriptors
            if not message:
                clients.remove(ready)
                ready.close()
                if not clients:
                    return None


def _answer(client: socket.socket, request: dict[str, Any], descriptors: list[int]) -> bool:
    """Tell how a process ended, or fork one; whether this is that process."""
    if "poll" in request:
        pid, status = os.waitpid(request["poll"], os.WNOHANG)
        client.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
        return False
    child = os.fork()
    if child == 0:
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    client.send(json.dumps(child).encode())
    return False


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run a module as an interpreter of its own would."""
    import numpy as np

    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), *descriptors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.chdir(request["folder"])
    sys.argv = [request["module"], *request["arguments"]]
    if request["module"] == "dataprep":
        _lend_fork_server()
    random.seed()
    np.random.seed()
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _end(program: Callable[[], None]) -> NoReturn:
    """Run a program and end as an interpreter does, but without taking its modules apart.

    Their memory is shared until it is written to: to free it costs as much as most programs.
    """
    code = 0
    try:
        program()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - shown as an interpreter shows it
        code = 1
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _lend_fork_server() -> None:
    """Fork a process that becomes the program's fork server, if the program starts one.

    The server of multiprocessing would be a new interpreter, which imports for half a second what this process has. It
    is forked now because a program has threads later.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _become_fork_server(theirs)
    theirs.close()
    start_anew = multiprocessing.util.spawnv_passfds

    def start(path: Any, arguments: Any, descriptors: Any) -> int:
        if "multiprocessing.forkserver" not in arguments[-1]:
            return start_anew(path, arguments, descriptors)
        asked = {"code": arguments[-1], "numbers": list(descriptors), "environment": dict(os.environ)}
        socket.send_fds(ours, [json.dumps(asked).encode()], descriptors)
        multiprocessing.util.spawnv_passfds = start_anew
        return pid

    multiprocessing.util.spawnv_passfds = start


def _become_fork_server(control: socket.socket) -> NoReturn:
    """Wait until the program starts its fork server, and run that; end with the program."""
    message, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 2)
    if message:
        asked = json.loads(message)
        os.environ.clear()
        os.environ.update(asked["environment"])
        above = max(*descriptors, *asked["numbers"]) + 1
        copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
        os.closerange(3, above)
        for copy, number in zip(copies, asked["numbers"], strict=True):
            os.dup2(copy, number)
        os.closerange(above, max(copies) + 1)
        exec(asked["code"], {})  # noqa: S102
    os._exit(0)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # or each program looks at all objects of these modules when it ends, which copies their memory: 0.2 s
    sys.modules.setdefault("torchax", None)  # torch_xla would look for tensors of it, and it imports TensorFlow: 6 s
    if len(os.listdir("/proc/self/task")) > 1:
        raise SystemExit(f"importing {sys.argv[2:]} starts threads, which a forked process would not have")
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        _end(partial(_become, *asked))
