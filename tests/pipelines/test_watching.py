"""A watched job: when it counts as hanging."""

import pytest

import pipelines.watching
from pipelines.watching import WITHOUT_WORKERS, JobWatch


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s


def watch(monkeypatch, lines):
    clock = Clock()
    monkeypatch.setattr(pipelines.watching, "time", clock)
    return JobWatch("Engine", 100, lines.append), clock


def test_a_running_job_without_progress_is_warned_of_once_and_then_given_up(monkeypatch):
    lines = []
    job, clock = watch(monkeypatch, lines)
    clock.now_s = 51
    assert job.verdict(7) is None
    clock.now_s = 52
    assert job.verdict(7) is None
    assert lines == [
        "Engine: no shard was finished for 51 s, 7 are left, the job is RUNNING; it is cancelled after 100 s "
        "(--stall-minutes)"
    ]
    clock.now_s = 101
    assert job.verdict(7) == "no shard was finished for 101 s, the job is RUNNING; it was cancelled"


def test_progress_and_a_new_state_begin_the_time_anew(monkeypatch):
    lines = []
    job, clock = watch(monkeypatch, lines)
    clock.now_s = 90
    job.progressed()
    clock.now_s = 180
    assert job.verdict(7) is None
    job.entered("UPDATING")
    clock.now_s = 280
    assert job.verdict(7) is None
    clock.now_s = 281
    assert "the job is UPDATING" in job.verdict(7)


@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "UNRECOGNIZED", WITHOUT_WORKERS])
def test_a_job_that_waits_for_workers_is_never_given_up(monkeypatch, state):
    lines = []
    job, clock = watch(monkeypatch, lines)
    job.entered(state)
    clock.now_s = 1e6
    assert job.verdict(7) is None
    assert lines == [f"Engine: the job is {state}"]
