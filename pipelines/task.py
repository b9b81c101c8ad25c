"""One shard as a task on any node of a Ray or Spark cluster, and the answers to the driver.

The engine's own scheduling and retries are enough, since a shard is idempotent: a shard of a lost process is begun
again elsewhere, and a shard with a receipt is not built again. So all that a task can do wrong is an answer, not an
exception: the engine tries again only tasks whose worker was lost. A task without progress ends its own process, which
the engine then counts as lost.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dataprep import __version__
from dataprep.builder.pool import MAX_ATTEMPTS, backoff_s, failure_of, shards_set_aside
from dataprep.builder.recipe import BuildJob, build_shard
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, BuildError, DataprepError, UsageError
from dataprep.host.heartbeat import minutes, watched
from dataprep.storage import open_originals, open_storage

MAX_SET_ASIDE = 20
"""Number of shards set aside that ends a build: then the workers or the storage are at fault, not the shards."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A shard that lost its worker too often, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a task: None from a node that can build."""

    index: int
    found: ShardReceipt | DataprepError | Lost | None
    lines: tuple[str, ...] = ()
    """Messages for the user about it."""


Task = Callable[[int], Answer]
"""Function of a shard's index; it travels to the workers."""


@dataclass(frozen=True, slots=True)
class NodeTask:
    """Task that checks that a node can build: it has this version, and sees the same files."""

    paths: tuple[str, ...]
    """Paths on disk that exist where the command runs."""
    runner: str
    version: str = __version__

    def __call__(self, index: int) -> Answer:
        return Answer(index, self.fault())

    def fault(self) -> UsageError | None:
        """Return the problem of this process's node; None if there is none."""
        host = socket.gethostname()
        if self.version != __version__:
            return UsageError(
                f"`runner` {self.runner}: {host} has {DISTRIBUTION} {__version__}, this command is of {self.version}; "
                "install the same version on every node"
            )
        for path in self.paths:
            if not Path(path).exists():
                return UsageError(
                    f"`runner` {self.runner}: {host} does not see {path}; copy it to a bucket, or to a file system "
                    "that every node mounts at the same path"
                )
        return None


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Task that builds a shard. An error that may pass is tried again here, with backoff."""

    job: BuildJob
    node: NodeTask
    stall_s: float
    """Time without progress after which the process ends."""
    build: Callable[[BuildJob, int], ShardReceipt] = build_shard

    def __call__(self, index: int) -> Answer:
        if (fault := self.node.fault()) is not None:
            return Answer(index, fault)
        lines: list[str] = []
        with watched(self.stall_s, lambda idle_s: None, _end_process):
            while True:
                try:
                    return Answer(index, self.build(self.job, index), tuple(lines))
                except Exception as error:  # noqa: BLE001  it is the answer
                    failure = failure_of(index, error)
                if not failure.may_pass or len(lines) + 1 >= MAX_ATTEMPTS:
                    return Answer(index, failure.error, tuple(lines))
                delay_s = backoff_s(len(lines) + 1)
                lines.append(f"shard {index}: {failure.error}; tried again after {delay_s:g} s")
                time.sleep(delay_s)


def _end_process(idle_s: float) -> None:
    print(f"dataprep: no progress for {minutes(idle_s)} (--stall-minutes): this process ends", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def shard_task(job: BuildJob, runner: str, stall_s: float) -> ShardTask:
    """Return the task of a build; its paths are absolute, since workers have other working folders."""
    source, output = open_originals(job.source_url), open_storage(job.output_url)
    # The build's folder has a name of its own: a node with another disk at the same path does not see it.
    places = ((source, source.url), (output, str(Path(output.url, job.root))))
    paths = tuple(path for storage, path in places if storage.is_local)
    return ShardTask(replace(job, output_url=output.url, source_url=source.url), NodeTask(paths, runner), stall_s)


def source_paths(source_url: str) -> tuple[str, ...]:
    """Return the path of originals on disk; none for those elsewhere."""
    source = open_originals(source_url)
    return (source.url,) if source.is_local else ()


def receipts_in(answers: Iterable[Answer], warn: Callable[[str], object], advice: str) -> Iterator[ShardReceipt]:
    """Yield the receipts among answers.

    Args:
        answers: Answers as they arrive; no more are taken after an error.
        warn: Receives lines for the user.
        advice: Advice on giving a worker of this engine more memory.

    Raises:
        DataprepError: A task has answered with it.
        BuildError: Shards were set aside, and all others are done; or so many were set aside that the rest would be.
    """
    aside: dict[int, str] = {}
    for answer in answers:
        for line in answer.lines:
            warn(line)
        if isinstance(answer.found, DataprepError):
            raise answer.found
        if isinstance(answer.found, ShardReceipt):
            yield answer.found
        elif answer.found is not None:
            aside[answer.index] = f"{answer.found.why}; if it ran out of memory, {advice}"
            warn(f"shard {answer.index}: {aside[answer.index]}; set aside")
        if len(aside) >= MAX_SET_ASIDE:
            raise BuildError(
                f"{len(aside)} shards lost their workers, the last one: shard {answer.index}: {aside[answer.index]}. "
                "Check also whether originals and output respond (`stall_minutes`), and run the same command again"
            )
    if aside:
        raise shards_set_aside(aside)
