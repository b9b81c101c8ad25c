"""Suspended processes, servers that never answer, transforms without end: each is named and comes to an end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import psutil
import pytest

from dataprep.demo.make import write_demo
from dataprep.errors import StorageError
from loaders import open_loader
from tests.attacks import Attack
from tests.support.builds import build, build_arguments, command, digests
from tests.support.slow_transforms import without_end

ENDS_S = 480
"""Whatever has not ended by then hangs."""


def _suspended_build_workers(times: int, folder: Path) -> str:
    """A worker of a build is suspended, several times: the dataset is the one of an undisturbed build."""
    write_demo("coco", folder / "coco", images=240, odd=False)
    more = ("--num-shards", 6, "--workers", 2)
    build("coco-dup5", folder / "coco", folder / "expected", "webdataset", *more)
    for attempt in range(10):  # a build may end before a worker of it is seen at work
        output = folder / f"out-{attempt}"
        arguments = build_arguments("coco-dup5", folder / "coco", output, "webdataset", *more, "--stall-minutes", 0.2)
        suspended, killed = _suspend_workers(arguments, times)
        assert digests(output) == digests(folder / "expected")
        if killed:
            return f"{suspended} workers suspended, {killed} of them killed, the same bytes"
    raise AssertionError("no build lasted until one of its workers was suspended at work")


def _suspend_workers(arguments: list[object], times: int) -> tuple[int, int]:
    """Suspend workers of a build that are at work; how many, and how many of them the build killed."""
    run = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    suspended: set[int] = set()
    while run.poll() is None and len(suspended) < times:
        with contextlib.suppress(psutil.Error):
            for worker in _busy_workers(run.pid, 0.03):
                if worker.pid not in suspended and len(suspended) < times:
                    worker.suspend()
                    suspended.add(worker.pid)
        time.sleep(0.01)
    out, err = run.communicate(timeout=ENDS_S)
    assert run.returncode == 0, err
    assert json.loads(out)["name"] == "coco-dup5"
    return len(suspended), err.count("and was killed")


def _suspended_without_an_option(folder: Path) -> str:
    """Without any option a suspended worker is named; once it goes on, so does the build."""
    write_demo("coco", folder / "coco", images=300, odd=False)
    arguments = build_arguments("coco-dup5", folder / "coco", folder / "out", "webdataset", "--num-shards", 2)
    with subprocess.Popen(
        command(*arguments, "--workers", 1), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        suspended = None
        while suspended is None and run.poll() is None:
            with contextlib.suppress(psutil.Error):
                suspended = next(iter(_busy_workers(run.pid, 0.03)), None)
        assert suspended is not None, "the build ended before its worker could be suspended"
        suspended.suspend()
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(run.stderr.readline() if run.stderr else ""), daemon=True)
        reader.start()
        reader.join(150)
        named = "".join(said)
        suspended.resume()
        run.wait(ENDS_S)
    assert named, "nothing was said of the suspended worker in 150 s"
    assert "worker process" in named, named
    assert run.returncode == 0
    return named.strip()


def _busy_workers(pid: int, for_s: float) -> list[psutil.Process]:
    """Worker processes of a build that have computed for so long."""
    servers = [child for child in psutil.Process(pid).children() if "forkserver" in " ".join(child.cmdline())]
    workers = [worker for server in servers for worker in server.children()]
    return [worker for worker in workers if worker.cpu_times().user > for_s]


def _originals_that_never_answer(folder: Path) -> str:
    """A server takes every connection and says nothing."""
    arguments = build_arguments("coco-dup5", "gs://silent/coco", folder / "out", "webdataset", "--region-policy=off")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        run = subprocess.run(
            command(*arguments, "--stall-minutes", "0.1"),
            capture_output=True,
            text=True,
            timeout=ENDS_S,
            env={**os.environ, "STORAGE_EMULATOR_HOST": address},
            check=False,
        )
    assert run.returncode == 1, run.stderr
    assert "nothing was read or written for 6 s (--stall-minutes)" in run.stderr
    return run.stderr.splitlines()[-1]


def _transform_without_end(processes: int, folder: Path) -> str:
    """A transform never returns."""
    hanging = {"batch_size": 4, "image_size": 32, "transform": without_end, "processes": processes, "stall_s": 20}
    with (
        open_loader(_loaded(folder), **hanging) as loader,
        pytest.raises(StorageError, match="in progress: transforming ") as caught,
    ):
        next(iter(loader))
    return str(caught.value)


def _suspended_loader_worker(folder: Path) -> str:
    """A worker process of a loader is suspended."""
    with open_loader(_loaded(folder), batch_size=4, image_size=32, processes=2, stall_s=20) as loader:
        next(iter(loader))
        workers = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
        workers[-1].send_signal(signal.SIGSTOP)
        with pytest.raises(StorageError, match="gave no sign of life") as caught:
            deque(chain.from_iterable(repeat(loader)), maxlen=0)
    return str(caught.value)


def _loaded(folder: Path) -> Path:
    write_demo("coco", folder / "coco", images=20, odd=False)
    build("coco-dup5", folder / "coco", folder / "shards", "webdataset")
    return folder / "shards"


ATTACKS = [
    Attack("originals that never answer", _originals_that_never_answer),
    Attack("a suspended worker is named without an option", _suspended_without_an_option),
    Attack("a suspended worker of a build", partial(_suspended_build_workers, 1)),
    Attack("suspended workers of a build", partial(_suspended_build_workers, 4)),
    Attack("a suspended worker of a loader", _suspended_loader_worker),
    Attack("a transform without end in threads", partial(_transform_without_end, 0)),
    Attack("a transform without end in processes", partial(_transform_without_end, 2)),
]
