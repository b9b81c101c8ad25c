"""Jobs of Beam's services: which state they have, and which of them an earlier run has left behind."""

from types import SimpleNamespace

import pytest

from dataprep.errors import FormatError
from dataprep.storage import open_storage
from pipelines.beam.jobs import LeftJob, has_ended, left_job, remember, state_of
from pipelines.watching import WITHOUT_WORKERS
from tests.support.on_use import on_use

DataflowPipelineResult = on_use("apache_beam.runners.dataflow.dataflow_runner:DataflowPipelineResult")
dataflow = on_use("google.cloud.dataflow_v1beta3")
ROOT = "_build/hash/id"


def test_the_last_job_that_was_left_behind_is_remembered(storage_url):
    storage = open_storage(storage_url)
    storage.create(f"{ROOT}/begun", b"")
    assert left_job(storage, ROOT) is None
    for name in ("first", "second"):
        remember(storage, ROOT, LeftJob("DataflowRunner", name))
    assert left_job(storage, ROOT) == LeftJob("DataflowRunner", "second")


def test_a_damaged_note_of_a_job_is_refused(tmp_path):
    storage = open_storage(str(tmp_path))
    storage.create(f"{ROOT}/detached.json", b"[1]")
    with pytest.raises(FormatError, match=r"detached\.json.*remove it"):
        left_job(storage, ROOT)


class Service:
    """Beam's client of Dataflow, with one job and one metric of it."""

    def __init__(self, state, metric, value):
        self.job = dataflow.Job(id="job", current_state=dataflow.JobState[f"JOB_STATE_{state}"])
        name = SimpleNamespace(name=metric)
        self.metrics = SimpleNamespace(metrics=[SimpleNamespace(name=name, scalar=value)])

    def get_job(self, job_id):
        return self.job

    def get_job_metrics(self, job_id):
        return self.metrics


def submitted(service):
    """Beam's handle of a job that was just submitted."""
    return DataflowPipelineResult(dataflow.Job(id="job"), SimpleNamespace(dataflow_client=service))


@pytest.mark.parametrize(
    ("state", "metric", "value", "expected"),
    [
        ("RUNNING", "CurrentVcpuCount", 0.0, WITHOUT_WORKERS),
        ("RUNNING", "TotalVcpuTime", 9.0, WITHOUT_WORKERS),
        ("RUNNING", "CurrentVcpuCount", 8.0, "RUNNING"),
        ("QUEUED", "CurrentVcpuCount", 0.0, "UNRECOGNIZED"),
        ("DONE", "CurrentVcpuCount", 0.0, "DONE"),
    ],
)
def test_a_job_on_dataflow_runs_from_when_it_has_machines(state, metric, value, expected):
    assert state_of("DataflowRunner", submitted(Service(state, metric, value))) == expected


def test_asking_for_the_state_leaves_the_answers_of_the_thread_that_waits_for_the_end_alone():
    service = Service("RUNNING", "CurrentVcpuCount", 8.0)
    result = submitted(service)
    result._job = dataflow.Job(id="job", current_state=dataflow.JobState.JOB_STATE_DONE)
    assert state_of("DataflowRunner", result) == "RUNNING"
    assert result.is_in_terminal_state(), "an older answer has taken the place of the last one"


def test_a_job_elsewhere_has_the_state_that_its_handle_says():
    assert state_of("PortableRunner", SimpleNamespace(state="RUNNING")) == "RUNNING"


@pytest.mark.parametrize("state", ["DONE", "FAILED", "UNKNOWN"])
def test_a_job_that_ended_or_is_unknown_builds_nothing_more(state):
    assert has_ended(state)


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "UNRECOGNIZED", "CANCELLING"])
def test_a_job_that_may_build_more_has_not_ended(state):
    assert not has_ended(state)
