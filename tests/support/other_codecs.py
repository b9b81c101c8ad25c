"""Worker processes that have another Pillow, or say so, than the command that plans for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

IN_WORKERS = """
import importlib.metadata as metadata
import sys

if any("forkserver" in word or "sdk_worker_main" in word for word in sys.orig_argv):
    real = metadata.version
    metadata.version = lambda package: "0.0.1" if package == "pillow" else real(package)
"""


def other_pillow(folder: Path) -> dict[str, str]:
    """The environment for a command whose workers report Pillow 0.0.1; what they import lies in this folder."""
    (folder / "sitecustomize.py").write_text(IN_WORKERS)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


@contextmanager
def made_with_pillow(version: str) -> Iterator[None]:
    """Let this process say that it has another Pillow."""
    real = metadata.version
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", lambda package: version if package == "pillow" else real(package))
        yield
