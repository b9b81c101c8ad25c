"""Run a build on a Beam runner: the pipeline in a process of its own, progress from the receipts it leaves.

The process of its own is the watchdog: the local runner waits for ever when one of its workers dies, and its threads
keep an interpreter from ending. The driver only reads receipts, so it tells the same story for every runner.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from dataprep.build import BuildJob
from dataprep.errors import BuildError, DataprepError
from dataprep.pool import WORKER_ENVIRONMENT, environment, on_parents_death
from dataprep.records import ShardReceipt
from dataprep.storage import open_storage
from dataprep.workspace import finished_shards, read_receipts
from pipelines.options import pipeline_options

POLL_S = 0.5


def beam_engine(
    runner: str, workers: int, arguments: Sequence[str]
) -> Callable[[BuildJob, list[int]], Iterator[ShardReceipt]]:
    """An engine for dataprep.driver. Raises UsageError at once for a runner or option that cannot work."""
    pipeline_options(runner, workers, arguments)
    return partial(_run, runner, workers, tuple(arguments))


def _run(
    runner: str, workers: int, arguments: tuple[str, ...], job: BuildJob, indexes: list[int]
) -> Iterator[ShardReceipt]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with environment(WORKER_ENVIRONMENT):
        # Not a daemon: a daemonic process may have no children, and the runner's workers are its children.
        process = context.Process(target=_pipeline_process, args=(runner, workers, arguments, job, indexes, theirs))
        process.start()
    theirs.close()
    waiting = set(indexes)
    try:
        while process.is_alive():
            process.join(POLL_S)
            yield from _new_receipts(job, waiting)
        yield from _new_receipts(job, waiting)
    finally:
        _end_group(process)
    message = ours.recv() if ours.poll() else f"the pipeline's process ended with exit code {process.exitcode}"
    if isinstance(message, DataprepError):
        raise message
    if message is not None or waiting:
        raise BuildError(
            f"{runner}: {message or 'the pipeline ended'}; {len(waiting)} of {len(indexes)} shards are missing. "
            "Run the same command again: it goes on where it stopped"
        )


def _end_group(process: BaseProcess) -> None:
    """End the pipeline's process with all the workers that it started."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _new_receipts(job: BuildJob, waiting: set[int]) -> Iterator[ShardReceipt]:
    storage = open_storage(job.output_url)
    new = sorted(finished_shards(storage) & waiting)
    for index, found in zip(new, read_receipts(storage, new), strict=True):
        if found is not None:
            waiting.discard(index)
            yield found[0]


def _pipeline_process(
    runner: str,
    workers: int,
    arguments: tuple[str, ...],
    job: BuildJob,
    indexes: list[int],
    answer: Connection[Any, Any],
) -> None:
    """Run the pipeline and say None, or what went wrong."""
    os.setsid()  # the workers that the runner starts belong to this group, and end with it
    on_parents_death(lambda: os.killpg(0, signal.SIGKILL))
    lock = threading.Lock()

    def end(message: object) -> None:
        with lock:  # held for ever by the first: one answer only
            answer.send(message)
            answer.close()
            os._exit(0 if message is None else 1)

    if runner == "FnApiRunner":
        logging.disable(logging.ERROR)  # workers' start-up remarks, and tracebacks that come back as exceptions too
    # A worker process that dies ends as an exception in the thread that waits for it; the runner itself never notices.
    threading.excepthook = lambda args: end(f"a worker died ({args.exc_value})")
    try:
        run_pipeline(runner, workers, arguments, job, indexes)
    except Exception as error:  # noqa: BLE001  runners raise anything
        end(_cause(error))
    end(None)


def run_pipeline(runner: str, workers: int, arguments: Sequence[str], job: BuildJob, indexes: list[int]) -> None:
    """Build these shards on a runner, in this process, and wait for the end."""
    import apache_beam as beam

    from pipelines.transforms import build_graph

    options = pipeline_options(runner, workers, arguments)
    pipeline = beam.Pipeline(runner=_runner(runner, options), options=options)
    build_graph(pipeline, job, indexes)
    result = pipeline.run()
    if result is not None:  # a dry run of Dataflow has none
        state = result.wait_until_finish()
        if state not in (None, "DONE"):
            raise BuildError(f"{runner}: the pipeline ended as {state}")


def _runner(name: str, options: Any) -> Any:
    """The local runner made by hand, because passing it by name drops the options on their way to its workers."""
    if name != "FnApiRunner":
        return name
    from apache_beam.portability.api import beam_provision_api_pb2 as provision
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo
    from apache_beam.utils import proto_utils

    # Numbers as text: a protobuf Struct knows only doubles, and a worker does not parse "2.0" as a count.
    texts = {
        f"beam:option:{option}:v1": str(value) if type(value) is int else value
        for option, value in options.get_all_options(drop_default=True).items()
        if isinstance(value, (bool, int, str))
    }
    info = provision.ProvisionInfo(pipeline_options=proto_utils.pack_Struct(**texts))
    return FnApiRunner(provision_info=ExtendedProvisionInfo(info))


def _cause(error: BaseException) -> object:
    """Our own error where it is the cause, else one line of the runner's."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DataprepError):
            return seen
        seen = seen.__cause__
    return " ".join(str(error).split())[:500] or type(error).__name__
