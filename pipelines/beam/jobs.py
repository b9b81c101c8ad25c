"""Jobs of Beam's services: their states, and jobs that were left running with --detach.

<build>/detached.json   runner and id of the job that the last run left behind
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from dataprep.dataset.documents import decode
from dataprep.errors import BuildError
from dataprep.storage import Storage
from dataprep.storage.base import read_bounded
from pipelines.watching import WITHOUT_WORKERS

DETACHABLE = ("DataflowRunner", "PortableRunner")
"""Runners whose jobs go on without the process that submitted them."""
_ENDED = ("CANCELLED", "DONE", "FAILED", "DRAINED", "UPDATED", "UNKNOWN")
_VCPUS = "CurrentVcpuCount"
"""Dataflow's metric of the vCPUs that a job has at present; it is absent before the first machine."""
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LeftJob:
    """A job that goes on without the process that submitted it."""

    runner: str
    id: str


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
    """Return the state of a job that this process has submitted; one without machines waits for workers."""
    if runner != "DataflowRunner":
        return str(result.state)
    # `result.state` would store the answer in `result`, where an older one may then follow that of the thread which
    # waits for the end: Beam fails when this hides that the job is done.
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
            return "UNKNOWN"  # one that was started anew knows no earlier job
    return str(messages.JobState.Enum.Name(answer.state))
