"""Attacks by builds that are overwritten while they run, with pools of processes as a user starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from dataprep.demo.make import write_demo
from tests.attacks import Attack
from tests.conftest import BUCKET
from tests.support.builds import build, build_arguments, command, digests
from tests.support.gcs_emulator import GCSEmulator
from tests.support.waiting import end_soon

DELAYS_S = (0.3, 0.8, 1.3, 2.0, 3.0)
SHARDS = ("--num-shards", 6, "--workers", 1)
ENDS_S = 240


def _smaller_then_larger(delay_s: float, bucket: bool, folder: Path) -> str:
    """A build of thumbnails, both with --overwrite; after a while one of the whole images begins beside it."""
    write_demo("coco", folder / "coco", images=60, odd=False)
    alone = []
    for name, more in (("smaller", ("--resize", 64)), ("whole", ())):
        build("coco-dup5", folder / "coco", folder / name, "webdataset", *SHARDS, *more)
        alone.append(digests(folder / name))
    if not bucket:
        return _both(folder, str(folder / "out"), delay_s, alone)
    with GCSEmulator(latency_ms=5) as emulator:
        emulator.create_bucket(BUCKET)
        before = os.environ.get("STORAGE_EMULATOR_HOST")
        os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
        try:
            return _both(folder, f"gs://{BUCKET}/out", delay_s, alone)
        finally:
            del os.environ["STORAGE_EMULATOR_HOST"]
            if before is not None:
                os.environ["STORAGE_EMULATOR_HOST"] = before


def _both(folder: Path, output: str, delay_s: float, alone: list[dict[str, str]]) -> str:
    arguments = [*build_arguments("coco-dup5", folder / "coco", output, "webdataset", *SHARDS), "--overwrite"]
    runs = [_start([*arguments, "--resize", 64])]
    time.sleep(delay_s)
    runs.append(_start(arguments))
    said = [run.communicate(timeout=ENDS_S)[1] for run in runs]
    codes = [run.returncode for run in runs]
    standing = digests(output)
    assert standing in alone, f"{codes}, no dataset of one plan: {said}"
    assert codes[alone.index(standing)] == 0, f"{codes}: {said}"
    assert all(code == 0 or text.startswith("dataprep: ") for code, text in zip(codes, said, strict=True)), said
    return f"the {'smaller' if standing == alone[0] else 'larger'} one stands, exit codes {codes}"


def _worker_wakes_late(folder: Path) -> str:
    """A worker is suspended, its build is killed and overwritten, and the worker resumed."""
    write_demo("coco", folder / "coco", images=60, odd=False)
    arguments = build_arguments("coco-dup5", folder / "coco", folder / "out", "webdataset", *SHARDS)
    old = _start([*arguments, "--resize", 64])
    while old.poll() is None and not list((folder / "out").rglob("receipts/*.parquet")):
        time.sleep(0.002)
    descendants = psutil.Process(old.pid).children(recursive=True)
    for process in descendants:
        process.suspend()
    old.kill()
    old.wait()  # its workers keep the pipe open
    build("coco-dup5", folder / "coco", folder / "out", "webdataset", *SHARDS, "--overwrite")
    whole = digests(folder / "out")
    for process in descendants:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    assert end_soon([process.pid for process in descendants])
    assert digests(folder / "out") == whole
    build("coco-dup5", folder / "coco", folder / "alone", "webdataset", *SHARDS)
    assert whole == digests(folder / "alone")
    return f"{len(descendants)} processes woke late, and added nothing"


def _start(words: list[object]) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


ATTACKS = [
    Attack("a worker wakes after its build was overwritten", _worker_wakes_late),
    *(
        Attack(
            f"another build after {delay_s} s, {'bucket' if bucket else 'disk'}",
            partial(_smaller_then_larger, delay_s, bucket),
        )
        for bucket in (False, True)
        for delay_s in DELAYS_S
    ),
]
