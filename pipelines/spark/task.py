"""One shard on an executor: the code that Spark's tasks run. Nothing but the answer returns to the driver."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep import __version__
from dataprep.builder.job import BuildJob, build_shard
from dataprep.builder.pool import MAX_ATTEMPTS, backoff_s, failure_of
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, DataprepError, UsageError
from dataprep.storage import open_originals, open_storage

Task = Callable[[int, int], "Answer"]
"""Function of a shard's index and the number of the attempt, from 0; it travels to the executors."""
Answer = ShardReceipt | DataprepError | int | None
"""The answer of a task: a receipt; the error that ends the build; or the index of a shard that was not tried again."""


class Answers:
    """Accumulates the answers of tasks, for `SparkContext.accumulator`. The driver takes them from the left of the
    same deque while Spark's thread adds others on the right."""

    def zero(self, _value: deque[Answer]) -> deque[Answer]:
        """Return what a task begins with."""
        return deque()

    def addInPlace(self, value1: deque[Answer], value2: deque[Answer]) -> deque[Answer]:
        """Add the answers of a task."""
        value1.extend(value2)
        return value1


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """Checks that a node can build: it has this version, and sees the same files."""

    paths: tuple[str, ...]
    """Paths on disk that exist where the command runs."""
    version: str = __version__

    def fault(self) -> UsageError | None:
        """Return what is wrong with the node of this process."""
        host = socket.gethostname()
        if self.version != __version__:
            return UsageError(
                f"--runner spark: {host} has {DISTRIBUTION} {__version__}, this command is of {self.version}; install "
                "the same version on every node"
            )
        for path in self.paths:
            if not Path(path).exists():
                return UsageError(
                    f"--runner spark: {host} does not see {path}; copy it to a bucket, or to a file system that every "
                    "node mounts at the same path"
                )
        return None


@dataclass(frozen=True, slots=True)
class NodeTask:
    """Task that checks the node on which it runs."""

    check: NodeCheck

    def __call__(self, _index: int, _attempt: int) -> Answer:
        return self.check.fault()


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Task that builds a shard, unless it was lost too often.

    A retryable error is tried again here, with backoff: so a higher number of the attempt means that a process or node
    was lost, and nothing else.
    """

    job: BuildJob
    check: NodeCheck
    tries: int
    """Number of attempts; Spark makes another one when the process or its node is lost."""

    def __call__(self, index: int, attempt: int) -> Answer:
        if attempt >= self.tries:
            return index
        return self.check.fault() or _built(self.job, index)


def _built(job: BuildJob, index: int) -> ShardReceipt | DataprepError:
    attempts = 0
    while True:
        try:
            return build_shard(job, index)
        except Exception as error:  # noqa: BLE001  it is the answer
            failure = failure_of(index, error)
        attempts += 1
        if not failure.may_pass or attempts >= MAX_ATTEMPTS:
            return failure.error
        time.sleep(backoff_s(attempts))


def run_partition(task: Task, answers: Any, indexes: Iterable[int]) -> None:
    """Run a task for the one index of a partition, and add its answer to the accumulator."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    for index in indexes:
        answers.add(deque([task(index, attempt)]))


def local_paths(job: BuildJob) -> tuple[str, ...]:
    """Return the paths on disk that a worker of this job must see: the originals, and the output's folder."""
    output = open_storage(job.output_url)
    return (*source_paths(job.source_url), *((output.url,) if output.is_local else ()))


def source_paths(source_url: str) -> tuple[str, ...]:
    """Return the path of originals on disk; none for those elsewhere."""
    source = open_originals(source_url)
    return (source.url,) if source.is_local else ()
