"""Jobs of Beam's services: which state they have, and which of them an earlier run has left behind."""

from types import SimpleNamespace

import pytest

from dataprep.errors import FormatError
from dataprep.storage import open_storage
from pipelines.beam.jobs import LeftJob, has_ended, left_job, remember, state_of
from pipelines.watching import WITHOUT_WORKERS

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


class Job:
    """A submitted job, as far as its state needs it."""

    def __init__(self, state, metrics):
        self.state = state
        self._metrics = [SimpleNamespace(name=SimpleNamespace(name=name), scalar=value) for name, value in metrics]

    def job_id(self):
        return "job"

    def metrics(self):
        return SimpleNamespace(_get_metrics_from_dataflow=lambda job_id: SimpleNamespace(metrics=self._metrics))


@pytest.mark.parametrize(
    ("runner", "state", "metrics", "expected"),
    [
        ("DataflowRunner", "RUNNING", [], WITHOUT_WORKERS),
        ("DataflowRunner", "RUNNING", [("CurrentVcpuCount", 0.0)], WITHOUT_WORKERS),
        ("DataflowRunner", "RUNNING", [("TotalVcpuTime", 9.0), ("CurrentVcpuCount", 8.0)], "RUNNING"),
        ("DataflowRunner", "UNRECOGNIZED", [], "UNRECOGNIZED"),
        ("PortableRunner", "RUNNING", [], "RUNNING"),
    ],
)
def test_a_job_on_dataflow_runs_from_when_it_has_machines(runner, state, metrics, expected):
    assert state_of(runner, Job(state, metrics)) == expected


@pytest.mark.parametrize("state", ["DONE", "FAILED", "UNKNOWN"])
def test_a_job_that_ended_or_is_unknown_builds_nothing_more(state):
    assert has_ended(state)


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "UNRECOGNIZED", "CANCELLING"])
def test_a_job_that_may_build_more_has_not_ended(state):
    assert not has_ended(state)
