"""The engine of `--runner spark`, see pipelines/protocol.py.

    open_engine: context ─▶ first executor ─▶ one task that checks a node ─▶ the engine
    the engine:  one job with a task for each shard ─▶ receipts; then the suspects, one after the other

PySpark's call returns only at the job's end, so a thread waits for it; the main thread stays free for Ctrl-C. Answers
come through an accumulator: Spark merges a task's update at the driver when the task has succeeded, exactly once.
When this process dies, its Java process reads the end of its input and ends, and the executors end with it.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dataprep.builder.job import BuildJob, Engine
from dataprep.builder.pool import MAX_DEATHS, shards_set_aside
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import BuildError, DataprepError, UsageError
from dataprep.storage import open_originals, open_storage
from pipelines.protocol import EngineChoice, EngineWork
from pipelines.spark import options, session
from pipelines.spark.failures import explained
from pipelines.spark.task import (
    Answer,
    Answers,
    NodeCheck,
    NodeTask,
    ShardTask,
    Task,
    local_paths,
    run_partition,
    source_paths,
)
from pipelines.watching import JobWatch

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.1
LOOK_S = 2.0
"""Time between two looks at the number of executors."""
CANCEL_S = 15.0
"""Deadline for the end of a cancelled job."""

Run = Callable[[Task, Sequence[int]], Iterator[Answer]]
"""Function that runs a task for each index, as one job."""


def check(choice: EngineChoice) -> None:
    """Refuse options that are none of this engine. Raises UsageError."""
    options.spark_options(choice.options)
    if choice.detach:
        raise UsageError(
            f"--detach with --runner {choice.runner}: its job ends with this command; submit the command itself with "
            "spark-submit --deploy-mode cluster"
        )


def shards_at_once(choice: EngineChoice, _urls: tuple[str, ...]) -> int:
    """Return how many tasks the cluster runs at the same time; the context that is started for this stays."""
    context = session.open_context(options.spark_options(choice.options))
    try:
        session.await_executor(context, lambda line: None)
        return options.shards_at_once(session.settings(context), session.settled(lambda: context.defaultParallelism))
    except UsageError:
        session.close_context(context)
        raise


@contextmanager
def open_engine(choice: EngineChoice, work: EngineWork) -> Iterator[Engine]:
    """Start a context or join the running one, and check a node before anything is planned.

    Raises:
        UsageError: The cluster cannot be reached; or its workers have another Python, not this version of this
            package, or do not see the originals.
    """
    context = session.open_context(options.spark_options(choice.options))
    try:
        options.refuse_few_failures(session.settings(context))
        session.await_executor(context, work.log)
        run = partial(run_tasks, context, JobWatch("spark", work.stall_s, work.log))
        list(run(NodeTask(NodeCheck(source_paths(work.source_url))), [0]))
        yield partial(build, run, work.warn)
    finally:
        session.close_context(context)


def build(run: Run, warn: Callable[[str], None], job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
    """Yield the receipts of shards.

    Raises:
        BuildError: Shards were set aside, and all others are done.
    """
    # Executors have other working folders.
    job = replace(job, output_url=open_storage(job.output_url).url, source_url=open_originals(job.source_url).url)
    task = ShardTask(job, NodeCheck(local_paths(job)), MAX_DEATHS - 1)
    suspects = []
    for answer in run(task, indexes):
        if isinstance(answer, ShardReceipt):
            yield answer
        elif isinstance(answer, int):
            warn(f"shard {answer}: its task was lost {MAX_DEATHS - 1} times; tried again when all others are done")
            suspects.append(answer)
    aside = {}
    for suspect in sorted(suspects):
        for answer in run(replace(task, tries=1), [suspect]):
            if isinstance(answer, ShardReceipt):
                yield answer
            else:
                aside[suspect] = f"killed its worker {MAX_DEATHS} times"
                warn(f"shard {suspect}: {aside[suspect]}; set aside")
    if aside:
        raise shards_set_aside(aside)


@dataclass(slots=True)
class _Job:
    context: SparkContext
    group: str
    error: Exception | None = None

    def run(self, task: Task, indexes: Sequence[int], answers: object) -> None:
        """Run the job and wait for it, in a thread that Py4J knows: the job's group is the thread's."""
        try:
            self.context.setJobGroup(self.group, "dataprep build", interruptOnCancel=True)
            partitions = self.context.parallelize(indexes, len(indexes))
            partitions.foreachPartition(partial(run_partition, task, answers))
        except Exception as error:  # noqa: BLE001  `run_tasks` raises it, explained
            self.error = error


def run_tasks(context: SparkContext, watch: JobWatch, task: Task, indexes: Sequence[int]) -> Iterator[Answer]:
    """Run a task for each index, and yield the answers as they arrive; when the caller stops, the job is cancelled.

    Raises:
        DataprepError: A task has answered with it; or the job has failed, or finished no task for too long.
    """
    from pyspark import InheritableThread

    arrived = context.accumulator(deque(), Answers())
    job = _Job(context, f"dataprep-{uuid.uuid4().hex}")
    thread = InheritableThread(target=job.run, args=(task, indexes, arrived), daemon=True)
    ended, missing = threading.Event(), len(indexes)
    executors = _Executors(context, ended)
    watch.progressed()
    thread.start()
    try:
        while thread.is_alive() or arrived.value:
            thread.join(POLL_S)
            while arrived.value:
                answer: Answer = arrived.value.popleft()
                if isinstance(answer, DataprepError):
                    raise answer
                watch.progressed()
                missing -= 1
                yield answer
            executors.tell(watch)
            if (reason := watch.verdict(missing)) is not None:
                raise BuildError(f"--runner spark: {reason}. Run the same command again: it goes on where it stopped")
        if job.error is not None or missing:
            raise explained(str(job.error or f"the job ended without {missing} of {len(indexes)} shards"))
    finally:
        ended.set()
        if thread.is_alive():
            with suppress(Exception):  # Spark may be gone
                context.cancelJobGroup(job.group)
            thread.join(CANCEL_S)


class _Executors:
    """Looks at the number of executors in a thread of its own: Ctrl-C in the middle of a call would confuse Py4J."""

    def __init__(self, context: SparkContext, ended: threading.Event) -> None:
        from pyspark import InheritableThread

        self._context, self._ended = context, ended
        self._state = self._told = "RUNNING"
        InheritableThread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        with suppress(Exception):  # Spark is gone, which the job's thread finds as well
            while not self._ended.wait(LOOK_S):
                self._state = "RUNNING" if session.num_executors(self._context) else "PENDING"

    def tell(self, watch: JobWatch) -> None:
        """Tell the watch that the last executor has gone, or that one has come again: a job without any waits."""
        if self._state != self._told:
            self._told = self._state
            watch.entered(self._told)
