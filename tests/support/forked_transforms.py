"""Processes of transforms, forked from one that has imported timm, torchvision and albumentations, which takes seconds.

A module's tests use them with `pytestmark = pytest.mark.usefixtures("forked_transforms")`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Client, Listener

import pytest

from loaders.decode import seeding
from tests.support import warm
from tests.support.shared_process import REPOSITORY

_starting = threading.Lock()
"""The connection to the process that forks is for one thread at a time."""


class _Forked(seeding._Helper):
    def __init__(self, transform: bytes) -> None:
        with _starting, Listener(family="AF_UNIX") as listener:
            self._process = warm.start(__name__, listener.address, environment=os.environ, folder=REPOSITORY)
            self._pipe = listener.accept()
        self._pipe.send(({}, transform))

    def end(self) -> None:
        with _starting:
            super().end()
        self._process.stdout.close()
        self._process.stderr.close()


@pytest.fixture(scope="module")
def forked_transforms() -> Iterator[None]:
    """Where torch is installed, transforms get forked processes in a module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch"):
            patch.setattr(seeding, "_Helper", _Forked)
        yield


if __name__ == "__main__":
    with Client(sys.argv[1]) as pipe:
        seeding.serve(os.dup(pipe.fileno()), os.getppid())
