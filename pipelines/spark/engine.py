"""The engine of the runner `spark`: one job with one task for each shard; Spark tries lost tasks again.

    open_engine: context ─▶ one task that checks a node ─▶ the engine
    the engine:  one job with a task for each shard ─▶ receipts

PySpark's call returns only at the job's end, so a thread waits for it; the main thread stays free for Ctrl-C. Answers
come through an accumulator: Spark merges a task's update at the driver when the task has succeeded, exactly once.
When this process dies, its Java process reads the end of its input and ends, and the executors end with it.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dataprep.builder.pool import MAX_DEATHS
from dataprep.builder.recipe import BuildJob, Engine
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import UsageError
from dataprep.host.heartbeat import beat
from pipelines.engines import EngineChoice, EngineWork
from pipelines.spark.session import close_context, cores_at_most, explained, open_context, spark_options
from pipelines.task import Answer, Lost, NodeTask, Task, receipts_in, shard_task, source_paths

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.1
CANCEL_S = 15.0
"""Deadline for the end of a cancelled job."""
ADVICE = "give each executor more memory with --conf spark.executor.memoryOverhead=1g after --, or fewer cores"


def check(choice: EngineChoice) -> None:
    """Refuse options that this engine does not have. Raises UsageError."""
    spark_options(choice.options)
    if choice.detach:
        raise UsageError(
            f"`detach` with `runner` {choice.runner}: its job ends with this command; submit the command itself with "
            "spark-submit --deploy-mode cluster"
        )


def shards_at_once(choice: EngineChoice, _urls: tuple[str, ...]) -> int:
    """Return the number of tasks that the cluster runs at the same time; the context that is started for this stays."""
    context = open_context(spark_options(choice.options))
    try:
        return cores_at_most(dict(context.getConf().getAll()))
    except UsageError:
        close_context(context)
        raise


@contextmanager
def open_engine(choice: EngineChoice, work: EngineWork) -> Iterator[Engine]:
    """Start a context or join the running one, and check a node before anything is planned.

    Raises:
        UsageError: The cluster cannot be reached, or its workers run another Python, lack this version of dataprep, or
            cannot read the originals.
    """
    context = open_context(spark_options(choice.options))
    try:
        node = NodeTask(source_paths(work.source_url), choice.runner)
        list(receipts_in(run_tasks(context, node, [0]), work.warn, ADVICE))
        yield partial(_build, context, work)
    finally:
        close_context(context)


def _build(context: SparkContext, work: EngineWork, job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
    task = shard_task(job, "spark", work.stall_s)
    yield from receipts_in(run_tasks(context, task, indexes), work.warn, ADVICE)


class Answers:
    """Accumulates the answers of tasks, for `SparkContext.accumulator`. The driver takes them from the left of the
    same deque while Spark's thread adds others on the right."""

    def zero(self, _value: deque[Answer]) -> deque[Answer]:
        """Return the initial value of a task."""
        return deque()

    def addInPlace(self, value1: deque[Answer], value2: deque[Answer]) -> deque[Answer]:
        """Add the answers of a task."""
        value1.extend(value2)
        return value1


@dataclass(slots=True)
class _Job:
    context: SparkContext
    group: str
    error: Exception | None = None

    def run(self, task: Task, indexes: Sequence[int], answers: Any) -> None:
        """Run the job and wait for it, in a thread that Py4J knows, because the job's group belongs to the thread."""
        try:
            self.context.setJobGroup(self.group, "dataprep build", interruptOnCancel=True)
            partitions = self.context.parallelize(indexes, len(indexes))
            partitions.foreachPartition(partial(run_partition, task, answers))
        except Exception as error:  # noqa: BLE001  `run_tasks` raises it, explained
            self.error = error


def run_partition(task: Task, answers: Any, indexes: Iterable[int]) -> None:
    """Run a task on an executor for the index of a partition, unless its worker was lost too often."""
    from pyspark import TaskContext

    context = TaskContext.get()
    losses = 0 if context is None else context.attemptNumber()
    for index in indexes:
        lost = Answer(index, Lost(f"lost its worker {losses} times"))
        answers.add(deque([lost if losses >= MAX_DEATHS else task(index)]))


def run_tasks(context: SparkContext, task: Task, indexes: Sequence[int]) -> Iterator[Answer]:
    """Run a task for each index, and yield the answers as they arrive; when the caller stops, the job is cancelled.

    Raises:
        DataprepError: The job has failed.
    """
    from pyspark import InheritableThread

    arrived = context.accumulator(deque(), Answers())
    job = _Job(context, f"dataprep-{uuid.uuid4().hex}")
    thread = InheritableThread(target=job.run, args=(task, indexes, arrived), daemon=True)
    missing = len(indexes)
    thread.start()
    try:
        while thread.is_alive() or arrived.value:
            beat()
            thread.join(POLL_S)
            while arrived.value:
                missing -= 1
                yield arrived.value.popleft()
        if job.error is not None or missing:
            raise explained(str(job.error or f"the job ended without {missing} of {len(indexes)} shards"))
    finally:
        if thread.is_alive():
            with suppress(Exception):  # Spark may be gone
                context.cancelJobGroup(job.group)
            thread.join(CANCEL_S)
