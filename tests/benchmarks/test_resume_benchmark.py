"""The benchmark of resuming: what it judges is what the logs say, and a small run of it prints a whole table."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.resume_judge import Life, Verdict, judge
from benchmarks.tables import joined, recorded, resume_outcome


def dealt(samples: list[str], world_size: int, batch: int) -> list[list[list[str]]]:
    """Logs of ranks that share every batch."""
    batches = [samples[first : first + batch] for first in range(0, len(samples), batch)]
    return [[step[rank::world_size] for step in batches] for rank in range(world_size)]


@st.composite
def worlds(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Number of ranks, steps, and steps after the state, of some lives."""
    life = st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 4), st.integers(0, 2))
    return draw(st.lists(life, min_size=1, max_size=4))


@given(worlds(), st.randoms(use_true_random=False))
def test_an_epoch_of_which_every_life_takes_what_those_before_left_is_exact(lives, rng):
    """What a rank logs after its state is lost, and is no repetition."""
    batch = 12
    epoch = [f"sample-{number}" for number in range(batch * sum(steps for _, steps, _ in lives))]
    rng.shuffle(epoch)
    found, taken = [], 0
    for world_size, steps, lost in lives:
        logged = epoch[taken : taken + batch * (steps + lost)]
        found.append(Life(logs=dealt(logged, world_size, batch), steps=steps))
        taken += batch * steps
    assert judge(epoch, found) == Verdict(samples=len(epoch), repeated=0, skipped=0)


@given(st.integers(1, 30), st.lists(st.lists(st.lists(st.integers(0, 29), max_size=5), max_size=4), max_size=4))
def test_repeated_and_skipped_are_those_that_a_count_of_all_logs_gives(num_samples, logs):
    """One life to the end of the epoch, whatever its ranks took."""
    epoch = [str(number) for number in range(num_samples)]
    named = [[[str(number % num_samples) for number in step] for step in log] for log in logs]
    times = Counter(key for log in named for step in log for key in step)
    verdict = judge(epoch, [Life(logs=named, steps=None)])
    assert verdict.repeated == sum(times[key] > 1 for key in epoch)
    assert verdict.skipped == sum(times[key] == 0 for key in epoch)
    assert verdict.exact == all(times[key] == 1 for key in epoch)


@given(st.integers(1, 6), st.integers(1, 6))
def test_ranks_that_each_pass_over_their_own_count_repeat_or_skip_the_difference(before, after):
    """A state of one rank says how many steps it took: other ranks that pass over as many miss the place."""
    epoch = [str(number) for number in range(60 * 8)]
    first = Life(logs=dealt(epoch[: 60 * 4], before, 60), steps=4)
    passed = 60 * 4 // before * after
    verdict = judge(epoch, [first, Life(logs=[[epoch[passed:]]], steps=None)])
    assert verdict.repeated == max(0, 60 * 4 - passed)
    assert verdict.skipped == max(0, min(passed, len(epoch)) - 60 * 4)


def test_a_log_that_ends_before_its_state_is_refused():
    with pytest.raises(ValueError, match=r"^rank 1 logged 1 steps, expected 2 or more$"):
        judge(["a", "b", "c"], [Life(logs=[[["a"], ["b"]], [["c"]]], steps=2)])


def test_a_sample_that_is_none_of_the_epoch_is_refused():
    with pytest.raises(ValueError, match=r"^x is no sample of the epoch$"):
        judge(["a"], [Life(logs=[[["a", "x"]]], steps=None)])


def test_cells_name_what_happened():
    found = {"refused": None, "repeated": 0, "skipped": 0}
    assert resume_outcome(found) == ("exact", "exact")
    assert resume_outcome(found | {"repeated": 1200}) == ("wrong", "repeats 1,200")
    assert resume_outcome(found | {"repeated": 3, "skipped": 4}) == ("wrong", "repeats 3, skips 4")
    assert resume_outcome({"refused": "ValueError: no"}) == ("refused", "refuses")


def test_every_loader_of_the_recorded_run_has_an_exact_epoch_if_nobody_stops_it():
    """Else the contest would show how a loader ends an epoch; drawing with replacement has no such epoch."""
    document = recorded("resume")
    uneven = [row["loader"] for row in document["rows"] if row["uninterrupted"]["repeated"]]
    assert uneven == ["webdataset, resampled"]
    assert all(row["uninterrupted"]["samples"] == document["samples"] for row in document["rows"])
    ours = document["rows"][0]
    assert ours["loader"] == "dataprep"
    assert {resume_outcome(change)[0] for change in ours["changes"]} == {"exact"}


def test_a_run_of_one_loader_keeps_the_rows_of_others_of_the_same_contest():
    document = recorded("resume")
    names = [row["loader"] for row in document["rows"]]
    new = {**document["rows"][3], "version": "9"}
    found = joined(document, {**document, "rows": [new]}, names)
    assert found["rows"] == [*document["rows"][:3], new, *document["rows"][4:]]
    added = {**new, "loader": "another"}
    assert joined(document, {**document, "rows": [added]}, [*names, "another"])["rows"][-1] == added
    other = {**document, "batch": document["batch"] + 1, "rows": [new]}
    assert joined(document, other, names) == other
