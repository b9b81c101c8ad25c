"""Runs a build on a Beam runner: the pipeline runs in its own process, and the receipts show its progress.

The separate process makes a watchdog possible: some runners wait forever when one of their workers dies, and their
threads prevent the interpreter from exiting. The driver only reads receipts, so progress looks the same for every
runner.

A pipe connects the two. The pipeline's process reports the state and the result of its job. When the driver's end of
the pipe is closed, also by a signal or the driver's death, the job is cancelled, unless it was submitted to be left
alone (`detach`). Then the build's folder has a note of it:

    <build>/detached.json   runner and id of the job that the last run left behind

The arguments of each runner are completed and checked before anything is started. The user gives the facts that only
they know (an address, a project, an image); found here are the number of workers, the location of their code and the
versions that they install.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import PipelineOptions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dataprep import errors
from dataprep.builder.receipts import POLL_S, ReceiptWatch, finished_shards
from dataprep.builder.recipe import BuildJob, Engine, build_shard
from dataprep.cloud.placement import is_bucket
from dataprep.dataset.documents import decode
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, BuildError, DataprepError, UsageError
from dataprep.host.processes import WORKER_ENVIRONMENT, environment
from dataprep.messages import one_line
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import read_bounded
from pipelines.engines import LOOPBACK_HOSTS, DetachedJob, EngineChoice, EngineWork, unreachable

STATE_POLL_S = 5.0
# Cancelling a remote job takes some seconds; a job that is just being submitted must get a name first.
CANCEL_S = 30.0
WITHOUT_WORKERS = "WAITING FOR WORKERS"
"""State of a job that has begun and has no machine, yet or at present."""
_WAITING = ("STARTING", "STOPPED", "PENDING", "QUEUED", "UNRECOGNIZED", WITHOUT_WORKERS)
"""States of a job that has no workers, and may wait for them for hours. Beam shows Dataflow's JOB_STATE_QUEUED as
UNRECOGNIZED."""
DETACHABLE = ("DataflowRunner", "PortableRunner")
"""Runners whose jobs continue without the process that submitted them."""
_ENDED = ("CANCELLED", "DONE", "FAILED", "DRAINED", "UPDATED", "UNKNOWN")
_VCPUS = "CurrentVcpuCount"
"""Dataflow's metric of the vCPUs that a job has at present; it is absent before the first machine."""
_MAX_BYTES = 1 << 16
REFUSED = {
    "DaskRunner": "it drops data silently: of several outputs only the last is computed, and bundles end without "
    "finish_bundle",
    "DirectRunner": "it is a switch that downloads and tries another engine first; name FnApiRunner",
    "BundleBasedDirectRunner": "it is the retired engine behind DirectRunner; name FnApiRunner",
    "FlinkRunner": "it was never run with this package; use `runner` ray, `runner` spark or `part`",
    "PrismRunner": "it was never run with this package; name FnApiRunner",
    "SparkRunner": "it was never run with this package; name `runner` spark, which needs no Beam",
}
_CODE = "--sdk_container_image", "--extra_package", "--setup_file"
_ONE_PROCESS = "no_use_multiple_sdk_containers"
"""Experiment that makes Dataflow start one process on a machine, whatever its vCPUs."""
_MACHINE = re.compile(r"[a-z]\w*-(?:custom-(\d{1,4})-\d+(?:-ext)?|[a-z]+-(\d{1,4})(?:-[a-z]+)?)")
"""Machine types whose names contain their vCPUs, such as n2-standard-4, e2-highcpu-8 and n2-custom-8-16384."""


@dataclass(frozen=True, slots=True)
class LeftJob:
    """A job that continues without the process that submitted it."""

    runner: str
    id: str


@dataclass(frozen=True, slots=True)
class _Left:
    """A job that continues by itself."""

    job: LeftJob
    state: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class _End:
    """Result of a pipeline: None, a DataprepError, or one line about another error."""

    cause: object


def check(choice: EngineChoice) -> None:
    """Refuse a runner that is unknown or loses data, and options that Beam does not know. Raises UsageError."""
    pipeline_options(choice.runner, choice.options)
    if choice.detach and choice.runner not in DETACHABLE:
        raise UsageError(f"`detach` with `runner` {choice.runner}: its job ends with this command; leave one out")


def shards_at_once(choice: EngineChoice, urls: tuple[str, ...]) -> int:
    """Return the largest number of processes, each with one fetcher. Raises UsageError if the options do not
    limit it."""
    pipeline_options(choice.runner, choice.options)
    return fetchers(choice.runner, choice.workers, _prepared(choice, urls))


def open_engine(choice: EngineChoice, work: EngineWork) -> AbstractContextManager[Engine]:
    """Make the engine of a Beam runner; `work.stall_s` limits the time that a running job finishes no shard.

    Raises:
        UsageError: At once, if a runner or option cannot work, or something is missing.
    """
    pipeline_options(choice.runner, choice.options)
    prepared = tuple(_prepared(choice, (work.source_url, work.output_url)))
    return nullcontext(partial(_run, replace(choice, options=prepared), work))


def pipeline_options(runner: str, arguments: Sequence[str]) -> PipelineOptions:
    """Make Beam's options of the user's arguments after `--`, or of the result of `prepare_arguments` for them. Raises
    UsageError if the runner is unknown or loses data, or an argument is not an option of Beam."""
    check_name(runner)
    unknown = _unknown_arguments(arguments)
    if unknown:
        raise UsageError(f"not options of Beam: {' '.join(unknown)}; see the runner's own documentation")
    return PipelineOptions(list(arguments), runner=runner)


def _unknown_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments that Beam does not know, such as misspelt options, which it would ignore silently."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for options in [PipelineOptions, *_subclasses(PipelineOptions)]:
        add = getattr(options, "_add_argparse_args", None)
        if add is not None:
            with contextlib.suppress(argparse.ArgumentError):  # two of Beam's option classes share a flag
                add(parser)
    return parser.parse_known_args(list(arguments))[1]


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = kind.__subclasses__()
    return direct + [grandchild for child in direct for grandchild in _subclasses(child)]


def _prepared(choice: EngineChoice, urls: tuple[str, ...]) -> list[str]:
    return prepare_arguments(choice.runner, choice.workers, choice.options, urls)


def _run(choice: EngineChoice, work: EngineWork, job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
    runner, context = choice.runner, multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with environment(WORKER_ENVIRONMENT):
        # Not a daemon: a daemonic process may have no children, and the runner's workers are its children.
        process = context.Process(target=_pipeline_process, args=(choice, job, indexes, theirs))
        process.start()
    theirs.close()
    storage = open_storage(job.output_url)
    receipts = ReceiptWatch(storage, job.root, indexes)
    end: _End | _Left | None = None
    watch = JobWatch(runner, work.stall_s, work.log)
    try:
        while process.is_alive() and end is None:
            process.join(POLL_S)
            end = _hear(ours, watch)
            for receipt in receipts.receipts():
                watch.progressed()
                yield receipt
            if end is None and (reason := watch.verdict(len(receipts.missing))) is not None:
                end = _End(reason)
        end = end or _hear(ours, watch)
        if isinstance(end, _Left):
            if end.is_new:
                remember(storage, job.root, end.job)
            _raise_left(end, len(receipts.missing), len(indexes), detach=choice.detach)
        yield from receipts.receipts(now=True)
    finally:
        ours.close()
        _end_group(process)
    _raise_unfinished(runner, end, process.exitcode, len(receipts.missing), len(indexes))


def _raise_left(left: _Left, missing: int, shards: int, *, detach: bool) -> None:
    """Raise DetachedJob for a job that continues, or BuildError if this run was to wait for the dataset."""
    runner, name = left.job.runner, left.job.id
    text = (
        f"{runner}: job {name} is {left.state}, {shards - missing} of {shards} shards are finished since this run began"
    )
    if left.is_new:
        text = f"{runner}: job {name} builds {shards} shards without this process"
    if detach:
        raise DetachedJob(name, f"{text}; run the same command again to finish the dataset when they are built")
    raise BuildError(f"{text}; an earlier run left it behind with `detach`: wait for it, or cancel it first")


def _raise_unfinished(runner: str, end: _End | _Left | None, exit_code: int | None, missing: int, shards: int) -> None:
    cause = end.cause if isinstance(end, _End) else f"the pipeline's process ended with exit code {exit_code}"
    if isinstance(cause, DataprepError):
        raise cause
    if cause is not None or missing:
        raise BuildError(
            f"{runner}: {cause or 'the pipeline ended'}; {missing} of {shards} shards are missing. "
            "Run the same command again: it continues where it stopped"
        )


def _hear(pipe: Connection[Any, Any], watch: JobWatch) -> _End | _Left | None:
    """Receive the messages of the pipeline's process; return the first result among them."""
    end: _End | _Left | None = None
    with contextlib.suppress(EOFError, OSError):
        while pipe.poll():
            said = pipe.recv()
            if isinstance(said, (_End, _Left)):
                end = end or said
            else:
                watch.entered(said)
    return end


def _end_group(process: BaseProcess) -> None:
    """Wait until the pipeline's process has cancelled its job; then end it and every process that it started."""
    process.join(CANCEL_S + 5)
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join()


class JobWatch:
    """State of a job and the time of its last progress, as known to the driver.

    Args:
        name: Name of the engine in messages.
        stall_s: Seconds after which a running job that finishes no shard counts as hanging.
        log: Receives lines for the user.
    """

    def __init__(self, name: str, stall_s: float, log: Callable[[str], object]) -> None:
        self._name, self._stall_s, self._log = name, stall_s, log
        self._state = "RUNNING"
        self._progress_s = time.monotonic()
        self._warned = False

    def entered(self, state: str) -> None:
        """Record a change of the job's state, in the engine's words: RUNNING, PENDING, …"""
        self._state = state
        self._log(f"{self._name}: the job is {state}")
        self.progressed()

    def progressed(self) -> None:
        """Record that a shard was finished, or that the job's state has changed."""
        self._progress_s, self._warned = time.monotonic(), False

    def verdict(self, missing: int) -> str | None:
        """Warn after half of the stall time; after all of it, return the reason why the job is to be cancelled."""
        idle_s = time.monotonic() - self._progress_s
        if self._state in _WAITING:
            return None
        if idle_s > self._stall_s:
            return f"no shard was finished for {idle_s:.0f} s, the job is {self._state}; it was cancelled"
        if idle_s > self._stall_s / 2 and not self._warned:
            self._warned = True
            self._log(
                f"{self._name}: no shard was finished for {idle_s:.0f} s, {missing} are left, the job is "
                f"{self._state}; it is cancelled after {self._stall_s:.0f} s (`stall_minutes`)"
            )
        return None


def _pipeline_process(choice: EngineChoice, job: BuildJob, indexes: list[int], driver: Connection[Any, Any]) -> None:
    """Run the pipeline and report its result; `choice` has the options of `prepare_arguments`."""
    os.setsid()  # processes that the runner starts belong to this group, and end with it
    # Workers that are started as "python" use this Python.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    logging.disable(logging.ERROR)  # start-up remarks, and tracebacks that are also raised as exceptions
    lock = threading.Lock()
    submitted: Future[Any] = Future()

    def end(cause: object) -> None:
        with lock:  # held forever by the first caller, so that only one result is sent
            with contextlib.suppress(OSError):
                driver.send(cause if isinstance(cause, _Left) else _End(cause))
            os._exit(0 if cause is None else 1)

    def cancel() -> None:
        with contextlib.suppress(EOFError, OSError):
            driver.recv()  # the driver sends nothing: this returns when it has closed its end, or is gone
        _cancel(choice.runner, submitted)
        os.killpg(0, signal.SIGKILL)

    # When a worker process dies, the thread that waits for it gets an exception; the runner itself never notices.
    threading.excepthook = lambda args: end(f"a worker died ({args.exc_value})")
    threading.Thread(target=cancel, daemon=True).start()
    threading.Thread(target=_say_states, args=(choice.runner, submitted, driver, lock), daemon=True).start()
    try:
        left, missing = _job_elsewhere(choice, job, indexes)
        if left is not None or not missing:
            end(left)

        def on_submitted(result: Any) -> None:
            if choice.detach and result is not None:
                end(_Left(LeftJob(choice.runner, _id_of(result)), str(result.state), is_new=True))
            submitted.set_result(result)

        run_pipeline(choice.runner, choice.options, job, missing, on_submitted)
    except Exception as error:  # noqa: BLE001  runners raise anything
        end(_cause(error))
    end(None)


def _job_elsewhere(choice: EngineChoice, job: BuildJob, indexes: list[int]) -> tuple[_Left | None, list[int]]:
    """Return the job that an earlier run of the build left behind, if it is still running, and the missing shards."""
    storage = open_storage(job.output_url)
    earlier = left_job(storage, job.root)
    if earlier is None:
        return None, indexes
    state = state_elsewhere(earlier, pipeline_options(choice.runner, choice.options))
    if not has_ended(state):
        return _Left(earlier, state, is_new=False), indexes
    built = finished_shards(storage, job.root)  # by that job, since this run looked
    return None, [index for index in indexes if index not in built]


def _id_of(result: Any) -> str:
    found = result.job_id() if callable(getattr(result, "job_id", None)) else result._job_id
    return str(found)


def _say_states(runner: str, submitted: Future[Any], driver: Connection[Any, Any], lock: threading.Lock) -> None:
    result, last = submitted.result(), None
    while result is not None:
        with contextlib.suppress(Exception):  # a job service that cannot be reached for a while reports nothing
            state = state_of(runner, result)
            with lock:
                if state != last:
                    driver.send(state)
            last = state
        time.sleep(STATE_POLL_S)


def _cancel(runner: str, submitted: Future[Any]) -> None:
    """Cancel the job and wait for that; a local runner's job ends with its processes."""
    if runner == "FnApiRunner":
        return
    deadline_s = time.monotonic() + CANCEL_S
    with contextlib.suppress(Exception):  # any error, because no one is left to receive it
        result = submitted.result(timeout=CANCEL_S)
        result.cancel()
        while time.monotonic() < deadline_s and str(result.state) not in ("CANCELLED", "DONE", "FAILED"):
            time.sleep(POLL_S)


def run_pipeline(
    runner: str,
    arguments: Sequence[str],
    job: BuildJob,
    indexes: list[int],
    submitted: Callable[[Any], object] = lambda result: None,
) -> None:
    """Build these shards on a runner, in this process, and wait for the end.

    Args:
        submitted: Called with Beam's handle of the job when it exists.
    """
    options = pipeline_options(runner, arguments)
    pipeline = beam.Pipeline(runner=_runner(runner, options), options=options)
    build_graph(pipeline, job, indexes)
    result = pipeline.run()
    submitted(result)
    if result is not None:  # a dry run of Dataflow has none
        state = result.wait_until_finish()
        if state not in (None, "DONE"):
            raise BuildError(f"{runner}: the job ended as {state}")


def _runner(name: str, options: Any) -> Any:
    """Create the local runner directly, because its workers would not get the options if only its name were passed."""
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


def build_graph(pipeline: beam.Pipeline, job: BuildJob, indexes: list[int]) -> beam.PCollection[str]:
    """Build the complete graph of a build, from shard indexes to the files that exist afterwards.

    The graph is linear and without tagged outputs, so that every runner that loses no elements can run it. An element
    is retried as a whole, which build_shard allows. The driver merges the receipts when the graph has run.
    """
    return (
        pipeline
        | "ShardIndexes" >> beam.Create(indexes, reshuffle=False)  # int
        | "SpreadShards" >> beam.Reshuffle()  # int
        | "BuildShard" >> beam.ParDo(_BuildShardFn(job))  # str
    )


class _BuildShardFn(beam.DoFn):  # type: ignore[misc]
    def __init__(self, job: BuildJob) -> None:
        self._job = job

    def process(self, index: int) -> Iterator[str]:
        receipt: ShardReceipt = build_shard(self._job, index)
        yield receipt.file


def left_job(storage: Storage, root: str) -> LeftJob | None:
    """Return the job that an earlier run of this build left behind, whether it still runs or not."""
    data = read_bounded(storage, _file(root), _MAX_BYTES, advice="remove it")
    if data is None:
        return None
    return decode(data, LeftJob, where=storage.url_of(_file(root)), advice="remove it")


def remember(storage: Storage, root: str, job: LeftJob) -> None:
    """Store which job is left behind, in place of an earlier one."""
    storage.delete(_file(root))
    storage.create(_file(root), msgspec.json.encode(asdict(job)))


def _file(root: str) -> str:
    return f"{root}/detached.json"


def has_ended(state: str) -> bool:
    """Return whether a job in this state builds nothing more."""
    return state in _ENDED


def state_of(runner: str, result: Any) -> str:
    """Return the state of a job that this process submitted. A Dataflow job that runs but has no machines yet is
    WITHOUT_WORKERS."""
    if runner != "DataflowRunner":
        return str(result.state)
    # `result.state` would store the answer in `result`, where an older answer may then follow the one of the
    # thread that waits for the end: Beam fails when this hides that the job is done.
    job = result._runner.dataflow_client.get_job(result.job_id())
    state = str(result.api_jobstate_to_pipeline_state(job.current_state))
    return WITHOUT_WORKERS if state == "RUNNING" and not _has_vcpus(result) else state


def _has_vcpus(result: Any) -> bool:
    found = result._runner.dataflow_client.get_job_metrics(result.job_id())
    return any(metric.name.name == _VCPUS and float(metric.scalar or 0) > 0 for metric in found.metrics)


def state_elsewhere(job: LeftJob, options: Any) -> str:
    """Ask for the state of a job that another process has submitted; UNKNOWN if its service does not know it."""
    ask = _dataflow_state if job.runner == "DataflowRunner" else _service_state
    return ask(job.id, options)


def _dataflow_state(job_id: str, options: Any) -> str:
    from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient
    from google.api_core.exceptions import NotFound

    try:
        job = DataflowApplicationClient(options).get_job(job_id)
    except NotFound:
        return "UNKNOWN"
    return str(DataflowPipelineResult.api_jobstate_to_pipeline_state(job.current_state))


def _service_state(job_id: str, options: Any) -> str:
    import grpc
    from apache_beam.options.pipeline_options import PortableOptions
    from apache_beam.portability.api import beam_job_api_pb2 as messages
    from apache_beam.portability.api import beam_job_api_pb2_grpc as service

    endpoint = options.view_as(PortableOptions).job_endpoint
    with contextlib.closing(grpc.insecure_channel(endpoint)) as channel:
        try:
            answer = service.JobServiceStub(channel).GetState(messages.GetJobStateRequest(job_id=job_id), timeout=60)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise BuildError(
                    f"{endpoint}: no job service answers, so the state of job {job_id} is unknown"
                ) from error
            return "UNKNOWN"  # a service that was started again knows no earlier job
    return str(messages.JobState.Enum.Name(answer.state))


def _cause(error: BaseException) -> object:
    """Return the DataprepError that caused an error, also if only its text has come from a worker; else one line."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DataprepError):
            return seen
        seen = seen.__cause__
    named = _OURS.findall(str(error))
    if named:
        kind, text = named[-1]
        return _KINDS.get(kind, BuildError)(text)
    return one_line(error, 500)


_OURS = re.compile(r"^dataprep[\w.]*\.(\w+Error): (.*?)(?: \[while running '[^']*'\])?$", re.MULTILINE)
"""The last line of a traceback of this package's errors, with Beam's addition."""
_KINDS = {name: kind for name, kind in vars(errors).items() if name.endswith("Error")}


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a runner."""

    given: dict[str, str]
    """The user's options, `--name` to value."""
    workers: int
    urls: tuple[str, ...]
    """URLs of originals and dataset."""

    def missing(self, **values: object) -> list[str]:
        """Return `--name=value` for the values that the user did not give."""
        return [f"--{name}={value}" for name, value in values.items() if f"--{name}" not in self.given]

    def need(self, runner: str, name: str, what: str) -> str:
        """Return the user's value of an option. Raises UsageError, which says what the option is, if it is missing."""
        if not self.given.get(name):
            raise UsageError(f"`runner` {runner} needs {name}={what}; give it after --")
        return self.given[name]


def check_name(runner: str) -> None:
    """Raise UsageError for a runner that is unknown or loses data."""
    if runner in REFUSED:
        raise UsageError(f"`runner` {runner} is refused: {REFUSED[runner]}")
    if runner not in RUNNERS:
        raise UsageError(f"`runner` {runner}: unknown; expected local, ray, spark or one of {', '.join(RUNNERS)}")


def prepare_arguments(runner: str, workers: int, arguments: Sequence[str], urls: Sequence[str] = ()) -> list[str]:
    """Return the user's arguments, completed with those that the runner also needs.

    Args:
        runner: One of RUNNERS.
        workers: Number of processes, if the runner starts them on this machine.
        arguments: The user's arguments after `--`.
        urls: URLs of originals and dataset; workers on other machines must be able to reach them.

    Raises:
        UsageError: Something that the runner needs is missing; the error says how to get it.
    """
    return [*arguments, *RUNNERS[runner](Request(_given(arguments), workers, tuple(urls)))]


def fetchers(runner: str, workers: int, arguments: Sequence[str]) -> int:
    """Return the largest number of worker processes; the limits for web hosts are divided by it.

    Args:
        workers: Value of `workers`, for a runner whose options do not set the number.
        arguments: The result of `prepare_arguments`.

    Raises:
        UsageError: The options of Dataflow do not limit its processes, so it may start a thousand.
    """
    given = _given(arguments)
    if runner == "DataflowRunner":
        return _dataflow_processes(given)
    value = given.get("--direct_num_workers", "") if runner == "FnApiRunner" else ""
    return int(value) if value.isdigit() and int(value) else workers


def _dataflow_processes(given: Mapping[str, str]) -> int:
    """Return the largest number of Dataflow's processes: one for each vCPU of each machine."""
    machines = given.get("--max_num_workers", "")
    machine = given.get("--machine_type") or given.get("--worker_machine_type")
    if not (machines.isdigit() and int(machines)) or not machine:
        raise UsageError(
            "`runner` DataflowRunner needs --max_num_workers=N and --machine_type=TYPE after --, so that all of its "
            "processes together, one for each vCPU, keep to the limits of a host"
        )
    if _ONE_PROCESS in given.get("--experiments", "").split(","):
        return int(machines)
    return int(machines) * _vcpus(machine)


def _vcpus(machine: str) -> int:
    """Return the number of vCPUs of a machine type. Raises UsageError if its name does not contain it."""
    named = _MACHINE.fullmatch(machine)
    if named is None:
        raise UsageError(
            f"--machine_type={machine}: its name does not say how many vCPUs it has; give a type such as "
            f"n2-standard-4, or --experiments={_ONE_PROCESS} for one process on each machine"
        )
    return int(named[1] or named[2])


def _given(arguments: Sequence[str]) -> dict[str, str]:
    """Map options to values; Beam accepts `--name=value`, `--name value` and flags."""
    found: dict[str, str] = {}
    for argument, following in pairwise([*arguments, "--"]):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            found[name] = value if equals or following.startswith("--") else following
    return found


def _fn_api(request: Request) -> list[str]:
    if request.workers == 1:
        return []
    return request.missing(direct_running_mode="multi_processing", direct_num_workers=request.workers)


def _portable(request: Request) -> list[str]:
    endpoint = request.need("PortableRunner", "--job_endpoint", "HOST:PORT of a job service")
    _reach("PortableRunner", "--job_endpoint", endpoint)
    here = _on_this_machine(endpoint)
    if here and request.given.get("--environment_type") == "EXTERNAL" and request.given.get("--environment_config"):
        _reach("PortableRunner", "--environment_config", request.given["--environment_config"])
    return _environment("PortableRunner", request, here=here)


def _dataflow(request: Request) -> list[str]:
    for name, what in (("--project", "PROJECT"), ("--region", "REGION"), ("--temp_location", "gs://BUCKET/PREFIX")):
        request.need("DataflowRunner", name, what)
    if not any(name in request.given for name in _CODE):
        raise UsageError(
            "`runner` DataflowRunner: its workers have no dataprep; give --sdk_container_image=IMAGE of the "
            "Dockerfile, or --extra_package=WHEEL (pip wheel --no-deps .)"
        )
    _refuse_local_files("DataflowRunner", request)
    # One shard in each process, which keeps a vCPU busy; Dataflow's default is twelve.
    return [*request.missing(number_of_worker_harness_threads=1), *_pins(request)]


def _pins(request: Request) -> list[str]:
    """Return options that give workers that install a wheel the driver's versions of everything it needs."""
    if "--extra_package" not in request.given or "--requirements_file" in request.given:
        return []
    options = [f"--requirements_file={pins_file()}"]
    # Workers with public addresses install them from the index; for others Beam stages the packages.
    if "--no_use_public_ips" not in request.given:
        options += request.missing(requirements_cache="skip")
    return options


def _environment(runner: str, request: Request, *, here: bool) -> list[str]:
    """Return the workers' environment: processes of this machine, a container, or an existing pool."""
    kind = request.given.get("--environment_type", "LOOPBACK" if here else "")
    if not kind:
        raise UsageError(
            f"`runner` {runner}: workers on other machines have no dataprep; give --environment_type=DOCKER "
            "--environment_config=IMAGE of the Dockerfile, or EXTERNAL and HOST:PORT of a worker pool"
        )
    if not here or kind == "DOCKER":
        _refuse_local_files(runner, request)
    if kind == "LOOPBACK":
        # Without this the workers are threads of one process, which share one interpreter lock.
        return [*request.missing(environment_type=kind), "--experiments=use_loopback_process_worker"]
    config = request.given.get("--environment_config", "")
    if not config and "--environment_options" not in request.given:
        raise UsageError(f"--environment_type={kind} needs --environment_config: an image, a command or HOST:PORT")
    return []


def _refuse_local_files(runner: str, request: Request) -> None:
    for url in request.urls:
        if not is_bucket(url):
            raise UsageError(f"`runner` {runner}: workers on other machines cannot reach {url}; copy it to a bucket")


def _on_this_machine(address: str) -> bool:
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    return host in LOOPBACK_HOSTS


@cache
def pins_file() -> Path:
    """Write the versions of this process, of this package's needs and those for fetching, to a temporary file."""
    folder = TemporaryDirectory(prefix="dataprep-pins-")
    atexit.register(folder.cleanup)  # the file is read when a job is submitted
    path = Path(folder.name, "requirements.txt")
    path.write_text("".join(f"{name}=={found}\n" for name, found in sorted(_needed().items())))
    return path


def _needed() -> dict[str, str]:
    """Map every installed distribution that a worker needs, directly or not, to its version."""
    found: dict[str, str] = {}
    waiting = [Requirement(f"{DISTRIBUTION}[laion]")]
    seen = {str(waiting[0])}
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # an extra that the driver lacks, and that this build does not need
            continue
        if name != DISTRIBUTION:
            found[name] = installed.version
        for line in installed.requires or ():
            need = Requirement(line)
            extras = wanted.extras or {""}
            if str(need) not in seen and (
                need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras)
            ):
                seen.add(str(need))
                waiting.append(need)
    return found


def _reach(runner: str, flag: str, address: str) -> None:
    if error := unreachable(address):
        raise UsageError(f"`runner` {runner}: nothing answers at {flag}={address} ({error}); start it first") from error


RUNNERS: dict[str, Callable[[Request], list[str]]] = {
    "FnApiRunner": _fn_api,
    "DataflowRunner": _dataflow,
    "PortableRunner": _portable,
}
