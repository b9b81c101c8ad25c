"""Folders that all processes of a run share: made once, by whichever worker of pytest-xdist needs one first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder that every worker of this run sees under the same path."""
    own = factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    return root / "shared"


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` fills, unless another process has done so; only ever read afterwards.

    Args:
        folder: Where the folder is to be.
        make: Fills the folder at the path that it is given, which does not exist yet.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            make(unfinished)
            unfinished.rename(folder)
    return folder
