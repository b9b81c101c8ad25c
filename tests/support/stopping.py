"""Run the command line and stop it, as kill -9 would, at the n-th commit boundary on disk.

    python -m tests.support.stopping N before|after build …

A boundary is every system call that changes what a reader or a rerun could see: link, rename, unlink, mkdir, rmdir,
symlink. Shards are built in this very process, so that the count is the same every time. Exits 9 when stopped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dataprep import cli
from dataprep.build import build_shard
from dataprep.commands import build as build_command
from dataprep.driver import Engine

BOUNDARIES = ("link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "symlink")
STOPPED = 9


def stop_at(boundary: int, when: str) -> None:
    count = 0

    def stopping(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == boundary and when == "before":
                os._exit(STOPPED)
            try:
                return call(*arguments, **options)
            finally:
                if count >= boundary:
                    os._exit(STOPPED)

        return wrapped

    for name in BOUNDARIES:
        setattr(os, name, stopping(getattr(os, name)))


@contextmanager
def inline_engine(*_: object) -> Iterator[Engine]:
    yield lambda job, indexes: (build_shard(job, index) for index in indexes)


if __name__ == "__main__":
    build_command._local_engine = inline_engine
    stop_at(int(sys.argv[1]), sys.argv[2])
    sys.argv = ["dataprep", *sys.argv[3:]]
    cli.main()
