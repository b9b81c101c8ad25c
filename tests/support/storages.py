"""What tests do with a storage: publish objects, look at its spool files, and act in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dataprep.storage import Storage, gcs_client
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.local import LocalStorage

LARGE_BYTES = (17 << 20) + 3
"""Size of an object that is uploaded in several chunks, the last of them odd."""
SPAWN = get_context("spawn")


@pytest.fixture
def local_storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


@pytest.fixture
def quick_bucket(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> GCSStorage:
    """A bucket whose requests are repeated soon."""
    monkeypatch.setattr(gcs_client, "RETRY_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(gcs_client, "RETRY_LONGEST_WAIT_S", 0.02)
    return GCSStorage(bucket_url)


def publish(storage: Storage, name: str, data: bytes, crc32c: str = "") -> None:
    """Write a spool file and put it in place."""
    spool = storage.spool_path(name)
    spool.write_bytes(data)
    storage.publish(spool, name, crc32c or crc32c_of_bytes(data))


def spool_files(storage: LocalStorage) -> list[Path]:
    return list((storage.root / "_build/tmp").iterdir())


def in_process(function: Callable[..., None], *arguments: Any) -> int | None:
    """Run what changes a whole process in one of its own; the exit code, negative for the signal that ended it."""
    process = SPAWN.Process(target=function, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


def run_python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=800)


def all_calls(storage: GCSStorage) -> list[Callable[[], Any]]:
    """List every call that makes a request, on the object x that exists."""
    return [
        lambda: storage.stat("x"),
        lambda: list(storage.list()),
        lambda: storage.read("x"),
        lambda: storage.read_range("x", 0, 1),
        lambda: storage.open("x"),
        lambda: storage.create("y", b"1"),
        lambda: publish(storage, "y", b"1"),
        lambda: publish(storage, "y", bytes(LARGE_BYTES)),
        lambda: storage.delete("x"),
        lambda: storage.delete_tree("folder"),
    ]
