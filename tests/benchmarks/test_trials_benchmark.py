"""Searches of settings, the count of their trials, and the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.situations.searches import (
    LEVELS,
    NEAR,
    Setting,
    Stages,
    Step,
    by_hand,
    counted,
    grid,
    spdl,
    trials_until,
    whole_grid,
)
from benchmarks.trials import table

ROOT = Path(__file__).parents[2]
DISK = Setting(threads=1, processes=0, prefetch_batches=3, reads_in_flight=None)
BUCKET = replace(DISK, reads_in_flight=4)
bases = st.builds(
    Setting,
    threads=st.sampled_from((1, 2)),
    processes=st.sampled_from((0, 2, 8)),
    prefetch_batches=st.integers(1, 8),
    reads_in_flight=st.one_of(st.none(), st.integers(1, 128)),
)
levels = st.fixed_dictionaries({level: st.floats(1, 1e4) for level in LEVELS})


def drawn(seed: int) -> Callable[[Setting], float]:
    """Return rates that look random and are the same for the same setting."""
    return lambda setting: 1.0 + hash((seed, setting)) % 1000


def saturating(setting: Setting) -> float:
    """Return the rate of a formula: two cores, and 50 images/s for each read in flight."""
    cores = min(2, setting.threads * max(1, setting.processes))
    return min(400.0 * cores, 50.0 * (setting.reads_in_flight or 1000))


@given(bases, st.integers(), levels, st.one_of(st.just({}), levels))
def test_a_search_that_counts_at_all_has_arrived_and_no_earlier_step_had(base, seed, decode, fetch) -> None:
    rate = drawn(seed)
    for search in (whole_grid(base), by_hand(base, rate), spdl(base, Stages(decode=decode, fetch=fetch), rate)):
        steps = counted(search)
        best = max(map(rate, (base, *(step.setting for step in steps))))
        found = trials_until(base, steps, rate, best)
        assert found is not None  # the best of all is one of its own settings
        settings = [base, *(step.setting for step in steps)]
        assert rate(settings[found]) >= NEAR * best
        assert all(rate(each) < NEAR * best for each in settings[:found])


@given(bases, st.integers())
def test_the_grid_has_every_setting_once_and_begins_with_the_run_as_it_is(base, seed) -> None:
    settings = grid(base)
    assert settings[0] == base
    assert len(set(settings)) == len(settings)
    assert {setting.reads_in_flight is None for setting in settings} == {base.reads_in_flight is None}
    steps = counted(whole_grid(base))
    best = max(map(drawn(seed), settings))
    assert trials_until(base, steps, drawn(seed), best) is not None


@given(bases, st.integers(), levels, levels)
def test_spdl_has_at_most_four_whole_runs(base, seed, decode, fetch) -> None:
    settings = list(spdl(base, Stages(decode=decode, fetch=fetch), drawn(seed)))
    assert 2 <= len(settings) <= 4
    assert len(set(settings)) == len(settings)
    profiled, last = settings[0], settings[-1]
    assert decode[profiled.threads] == max(decode.values())
    assert fetch[profiled.reads_in_flight] == max(fetch.values())
    assert last.processes == 1


def test_spdl_raises_the_concurrency_of_its_slowest_stage() -> None:
    decode = {1: 400.0, 4: 790.0, 8: 800.0, 16: 790.0, 32: 780.0}
    slow, fast = {level: 10.0 * level for level in LEVELS}, {level: 1000.0 * level for level in LEVELS}
    settings = list(spdl(BUCKET, Stages(decode=decode, fetch=slow), saturating))
    assert [(each.threads, each.reads_in_flight) for each in settings[:3]] == [(8, 32), (8, 4), (8, 8)]
    settings = list(spdl(BUCKET, Stages(decode=decode, fetch=fast), saturating))
    assert [(each.threads, each.reads_in_flight) for each in settings[:2]] == [(8, 32), (4, 32)]


def test_by_hand_stops_when_more_workers_bring_no_more() -> None:
    settings = list(by_hand(DISK, saturating))
    assert [(each.processes, each.prefetch_batches) for each in settings] == [(0, 2), (1, 2), (2, 4), (4, 8)][:2]
    scaling = {0: 1.0, 1: 1.1, 2: 2.0, 4: 2.0, 8: 2.0}
    settings = list(by_hand(DISK, lambda setting: scaling[setting.processes]))
    assert [(each.processes, each.prefetch_batches) for each in settings] == [(0, 2), (1, 2), (2, 4), (4, 8), (2, 8)]


def test_trials_are_those_that_a_step_has_cost() -> None:
    fast = replace(DISK, threads=2)
    steps = [Step(replace(DISK, prefetch_batches=8), 2), Step(fast, 3)]
    assert trials_until(DISK, steps, saturating, 800) == 3
    assert trials_until(fast, steps, saturating, 800) == 0
    assert trials_until(DISK, steps[:1], saturating, 800) is None


def test_the_table_shows_searches_that_never_arrive() -> None:
    never, third = {"trials": None, "of": 4, "stage_runs": 11}, {"trials": 3, "of": 5, "stage_runs": 4}
    row = {"situation": {"id": "link-00", "cause": "slow"}, "base": 10.0, "best": 40.0}
    row |= {"trials": {"ours": third, "spdl": never, "by hand": third, "grid": third}}
    lines = table([row]).splitlines()
    assert lines[1].split() == ["link-00", "slow", "0.25", "40", "3", ">4", "3", "3"]
    assert lines[2].split()[-4:] == ["3", "never", "3", "3"]
    assert lines[-1].endswith("3 trials: 1 of 1")
