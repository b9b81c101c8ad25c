"""Calls of libraries in processes of their own, which all workers of a run share: to import TensorFlow takes seconds.

    in_process("tensorflow", read, folder)

TensorFlow must not come into a process that may import torch_xla later, and Hugging Face datasets reads its settings
from the environment once.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import io
import os
import pickle
import runpy
import select
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tests.support import shared_process

P = ParamSpec("P")
R = TypeVar("R")
LONGEST_S = 800


def in_process(name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of a module in the process of this name; what it returns, or raises."""
    process = _connection(name)
    process.send((function, args, kwargs))
    if not process.poll(LONGEST_S):
        raise TimeoutError(f"{function} did not return within {LONGEST_S} s")
    result, error, trace = process.recv()
    if error is not None:
        error.add_note(trace)
        raise error
    returned: R = result
    return returned


def in_process_of(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let all calls of a function of a module happen in the process of this name."""

    def moved(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return in_process(name, call, *args, **kwargs)

        return call

    return moved


def output_of(program: Path) -> str:
    """Run a program in its folder; what it prints."""
    printed = io.StringIO()
    with contextlib.chdir(program.parent), contextlib.redirect_stdout(printed):
        runpy.run_path(str(program))
    return printed.getvalue()


@functools.cache
def _connection(name: str) -> Connection:
    connection = Connection(shared_process.connect(socket.SOCK_STREAM, __name__, name).detach())
    atexit.register(connection.close)
    return connection


def _prepare() -> None:
    home = tempfile.TemporaryDirectory(prefix="interop-")
    atexit.register(home.cleanup)
    os.environ.update(
        HF_HOME=home.name,
        CROISSANT_CACHE=home.name,
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
        TF_CPP_MIN_LOG_LEVEL="3",
        CUDA_VISIBLE_DEVICES="",
        NO_GCE_CHECK="true",
    )


def _serve(listening: socket.socket) -> None:
    """Answer one call after another, until no client is left."""
    clients: list[Connection] = []
    while True:
        for ready in select.select([listening, *clients], [], [])[0]:
            if ready is listening:
                client, _ = listening.accept()
                client.send(b"1")
                clients.append(Connection(client.detach()))
                continue
            try:
                call = ready.recv()
            except EOFError:
                clients.remove(ready)
                ready.close()
                if not clients:
                    return
            else:
                ready.send(_answer(*call))


def _answer(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None, str]:
    """Return what a call returned, or what it raised with its trace."""
    try:
        result = inspect.unwrap(function)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  the client's to raise
        return None, _sent(error), traceback.format_exc()
    return result, None, ""


def _sent(error: Exception) -> Exception:
    """Return an error as it can be sent: some of them cannot be made again from their words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  of any kind
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    _prepare()
    _serve(socket.socket(fileno=int(sys.argv[1])))
