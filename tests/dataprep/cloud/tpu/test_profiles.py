"""Traces of many hosts as one run."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cloud.tpu.profiles import arrange
from dataprep.errors import UsageError

BEGIN = datetime(2026, 11, 21, 12)


def folder(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y_%m_%d_%H_%M_%S")


def test_hosts_that_begin_together_are_one_run():
    traces = [(0, f"plugins/profile/{folder(2)}/a.xplane.pb"), (1, f"plugins/profile/{folder(0)}/b.xplane.pb")]
    traces += [(0, f"{folder(600)}/a.xplane.pb")]  # another run, of a tool that leaves out plugins/profile
    assert arrange(traces) == {
        traces[0]: f"plugins/profile/{folder(0)}/a.xplane.pb",
        traces[1]: f"plugins/profile/{folder(0)}/b.xplane.pb",
        traces[2]: f"plugins/profile/{folder(600)}/a.xplane.pb",
    }


def test_hosts_of_the_same_name_stay_apart():
    traces = [(0, f"{folder(0)}/localhost.xplane.pb"), (1, f"{folder(1)}/localhost.xplane.pb")]
    run = f"plugins/profile/{folder(0)}"
    assert list(arrange(traces).values()) == [
        f"{run}/worker-00.{folder(0)}.localhost.xplane.pb",
        f"{run}/worker-01.{folder(1)}.localhost.xplane.pb",
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000), st.sampled_from("ab")), unique=True))
def test_every_trace_has_a_place_of_its_own(found):
    traces = [(worker, f"logs/{folder(seconds)}/{host}.xplane.pb") for worker, seconds, host in found]
    placed = arrange(traces)
    assert set(placed) == set(traces)
    assert len(set(placed.values())) == len(traces)


def test_a_trace_outside_a_folder_named_by_a_time_is_refused():
    with pytest.raises(UsageError, match=r"x/a.xplane.pb: expected a trace in a folder such as"):
        arrange([(0, "x/a.xplane.pb")])


def test_no_traces_give_no_run():
    assert arrange([]) == {}


@pytest.mark.parametrize("path", [f"../../{folder(0)}/a.xplane.pb", f"/etc/{folder(0)}/a", f"{folder(0)}/..", "a\n"])
def test_a_path_that_leaves_the_folder_of_logs_is_refused(path):
    with pytest.raises(UsageError, match="object name"):
        arrange([(0, path)])
