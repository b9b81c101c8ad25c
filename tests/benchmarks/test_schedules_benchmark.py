"""The simulation of schedules: none beats the bound, each keeps its rule, and the document shows the recorded table."""

from __future__ import annotations

import random
import statistics
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import schedules
from benchmarks.schedules import SCHEDULES, Machines, Scenario
from benchmarks.tables import recorded
from tests.support.markdown import ROOT

SHARDS = st.lists(st.floats(0.5, 50), min_size=1, max_size=60)
MACHINES = st.builds(Machines, st.integers(1, 4), st.lists(st.sampled_from([0.7, 1.0, 2.0]), min_size=1, max_size=4))
LOCAL, PARTS, DEALT, RESHUFFLED = SCHEDULES


def first_free(shard_s: list[float], machines: Machines) -> float:
    """Give each shard to the core that is free first: what `dynamic` must find, in the slowest way."""
    free_s = [0.0] * machines.all_cores
    for seconds in shard_s:
        core = min(range(len(free_s)), key=lambda core: free_s[core])
        free_s[core] += seconds * machines.slowness[core // machines.cores]
    return max(free_s)


@pytest.mark.parametrize("name", SCHEDULES)
@given(shard_s=SHARDS, machines=MACHINES)
def test_no_schedule_is_faster_than_the_bound(name, shard_s, machines):
    made_s = SCHEDULES[name](shard_s, machines, random.Random(0))
    assert made_s >= schedules.lower_bound_s(shard_s, machines) * (1 - 1e-9)


@given(shard_s=SHARDS, cores=st.integers(1, 6))
def test_one_queue_gives_each_shard_to_the_core_that_is_free_first(shard_s, cores):
    machines = Machines(cores, [1.0])
    made_s = schedules.dynamic(shard_s, machines)
    assert made_s == pytest.approx(first_free(shard_s, machines))
    assert made_s <= sum(shard_s) / cores + max(shard_s) + 1e-9


@given(shard_s=SHARDS, machines=MACHINES)
def test_a_window_of_all_shards_deals_them_to_the_machines_before_it_begins(shard_s, machines):
    count = len(machines.slowness)
    alone = (
        schedules.dynamic(shard_s[number::count] or [0.0], Machines(machines.cores, [machines.slowness[number]]))
        for number in range(count)
    )
    assert schedules.window(shard_s, machines, per_core=len(shard_s)) == pytest.approx(max(alone))


def test_a_window_keeps_shards_behind_a_slow_one():
    shard_s, machines = [10.0, 1.0, 1.0, 1.0], Machines(1, [1.0, 1.0])
    assert schedules.window(shard_s, machines, per_core=1) == 10
    assert schedules.window(shard_s, machines, per_core=2) == 11


def test_shards_are_sums_of_measured_ones():
    scenario = Scenario(name="x", shards=4_000, shard_s=3.0, parts=100, machines=1, stragglers=0.25)
    shard_s = schedules.scenario_shards(scenario, [1.0, 3.0], np.random.default_rng(0))
    ordinary = [seconds for seconds in shard_s if seconds < 10]
    assert statistics.fmean(ordinary) == pytest.approx(3, rel=0.01)
    assert statistics.stdev(ordinary) == pytest.approx(0.15, rel=0.1)  # a tenth of one measured shard's
    assert len(ordinary) / len(shard_s) == pytest.approx(0.75, abs=0.03)


def test_a_small_build_gives_a_row():
    scenario = Scenario(name="x", shards=200, shard_s=1.0, parts=4, machines=2)
    row = schedules.scheduled(scenario, [1.0, 1.2], [1.0], seeds=1)
    assert (row.shards, row.cores) == (200, 32)
    assert row.ratios[LOCAL] < row.ratios[DEALT] * 1.01 < row.ratios[RESHUFFLED]
    lines = schedules.table({"rows": [asdict(row)]})
    assert lines[2] == "| shards, cores | 200, 32 |"
    assert [line.split(" | ")[0].lstrip("| ") for line in lines[4:]] == list(SCHEDULES)


def test_the_document_shows_the_recorded_table():
    document = recorded("schedules")
    assert list(document["rows"][0]["ratios"]) == list(SCHEDULES)
    assert [(row["name"], row["shards"]) for row in document["rows"]] == [
        (scenario.name, scenario.shards) for scenario in schedules.SCENARIOS
    ]
    assert "\n".join(schedules.table(document)) in (ROOT / "docs/clusters.md").read_text()
