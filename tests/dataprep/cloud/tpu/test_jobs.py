"""Runs on all workers: started once whatever the connections do, followed to their end, ended where one fails."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dataprep.cloud.tpu import jobs
from dataprep.cloud.tpu.fleet import Fleet
from dataprep.cloud.tpu.jobs import Watch, check_run, collect_logs, follow, has_failed, outcome, prepare, start
from dataprep.cloud.tpu.worker import RunState
from dataprep.errors import StorageError, UndecidedError, UsageError
from tests.support.tpu import counting, starts
from tests.support.virtual_time import VirtualClock

QUICK = Watch(poll_s=0.3)


def followed(fleet: Fleet, run: str, watch: Watch = QUICK) -> tuple[dict[int, RunState], str]:
    """Follow a run to its end; its states, and what worker 0 printed."""
    shown: list[str] = []
    states = follow(fleet, run, watch, note=lambda _: None, show=shown.append)
    return states, "".join(shown)


@pytest.mark.parametrize("how", ["during", "after"])
def test_a_dropped_connection_starts_nothing_twice(pod, fleet, how):
    for worker in range(2):
        pod.drop(" start ", how=how, worker=worker, times=3)
    start(fleet, "dropped", counting("sleep 0.5; echo ended"), {})
    states, _ = followed(fleet, "dropped")
    assert not any(map(has_failed, states.values()))
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]
    if how == "after":  # "during" may hit a start before it has kept its variables, which are then sent once more
        assert len(pod.calls(" start ")) == 2  # gcloud itself repeats them


def test_a_connection_dropped_while_following_ends_no_run(pod, fleet):
    for worker in range(2):
        pod.drop(" state ", how="during", worker=worker, times=4)
    pod.drop(" log ", how="after", times=2)
    start(fleet, "r", counting("sleep 1; echo ended"), {})
    states, shown = followed(fleet, "r")
    assert ([state["code"] for state in states.values()], shown) == ([0, 0], "ended\n")
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]


@pytest.mark.parametrize("how", ["before", "during", "after"])
def test_variables_arrive_over_connections_that_drop(pod, fleet, how, tmp_path):
    pod.drop(" start ", how=how, worker=1)
    start(fleet, "r", counting('echo "$KEY"'), {"KEY": "two words"})
    states, _ = followed(fleet, "r")
    assert [state["code"] for state in states.values()] == [0, 0]
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]
    logs = collect_logs(fleet, "r", tmp_path / "logs")
    assert [(path.name, path.read_text()) for path in logs] == [
        ("worker-00.log", "two words\n"),
        ("worker-01.log", "two words\n"),
    ]


def test_a_worker_that_was_not_reached_is_started_alone_later(pod, fleet):
    assert fleet.shell("true")[1].code == 0
    pod.drop(" start ", how="before", worker=1, times=30)
    with pytest.raises(UndecidedError, match=r"not known to have started on worker 1: .*`run` r starts it only there"):
        start(fleet, "r", counting("sleep 1"), {})
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 0]
    start(fleet, "r", counting("sleep 1"), {})
    followed(fleet, "r")
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]


def test_a_worker_that_is_silent_for_too_long_ends_the_following(pod, fleet, monkeypatch):
    clock = VirtualClock()
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=clock.perf_counter, sleep=clock.sleep))
    start(fleet, "r", ["sleep", "600"], {})
    pod.drop(" state ", how="before", worker=1, times=1000)
    with pytest.raises(UndecidedError, match="worker 1 has not answered for 900 s; the run continues: follow it again"):
        followed(fleet, "r", replace(QUICK, poll_s=100.0, patience_s=900.0))


def test_the_start_up_script_is_waited_for_and_where_it_failed_is_told(pod, fleet, monkeypatch):
    record, notes = pod.root(1) / "run/dataprep-startup", []
    record.write_text("running\n")
    monkeypatch.setattr(jobs, "STARTUP_POLL_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "STARTUP_TIMEOUT_S", 0.0)
        with pytest.raises(UndecidedError, match="the start-up script still runs on 1 workers; run setup again later"):
            prepare(fleet, notes.append)

    def ends(line: str) -> None:
        notes.append(line)
        record.write_text("done\n")

    prepare(fleet, ends)
    assert notes == ["the start-up script still runs on 1 of 2 workers"]
    record.write_text("failed: apt-get update\n")
    with pytest.raises(StorageError, match="worker 1: the start-up script failed: apt-get update; see"):
        prepare(fleet, notes.append)


@pytest.mark.parametrize(
    ("state", "text", "failed"),
    [
        ({"state": "running"}, "running", False),
        ({"state": "done", "code": 0}, "exit code 0", False),
        ({"state": "done", "code": 3}, "exit code 3", True),
        ({"state": "done", "code": -15}, "ended by signal 15", True),
        ({"state": "done", "code": 127, "reason": "no such file"}, "could not start: no such file", True),
        ({"state": "lost"}, "lost: the machine restarted, or the run's watcher was killed", True),
        ({"state": "absent"}, "never started", True),
    ],
)
def test_how_a_run_ended_in_words(state, text, failed):
    assert (outcome(state), has_failed(state)) == (text, failed)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-r", "x" * 65, "a b"])
def test_a_name_that_no_folder_could_have_is_refused(name):
    with pytest.raises(UsageError, match=r"^`run` .*: expected letters, digits, _, . and -, 64 characters at most"):
        check_run(name)
    assert check_run("night-1.b_C") == "night-1.b_C"
