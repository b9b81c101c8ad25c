"""Planning takes the same memory whatever the number of samples (the soak `planning` has 50 million of them)."""

from __future__ import annotations

from tests.support.planning import planning, write_tiny_files

ALLOWED_GROWTH_BYTES = 20_000_000
"""From the small list to one whose references alone would take 48 MB as columns, and 170 MB as objects."""
SMALL, LARGE = 50_000, 600_000
LIMITS = {"memory_bytes": 1 << 20, "part_bytes": 1 << 21}


def test_planning_many_times_the_samples_takes_no_more_memory(tmp_path):
    small, large = (planning(tmp_path / str(count), samples=count, **LIMITS) for count in (SMALL, LARGE))
    assert (small["samples"], large["samples"]) == (SMALL, LARGE)
    assert large["same"]
    assert large["rerun_peak_bytes"] - small["rerun_peak_bytes"] < ALLOWED_GROWTH_BYTES


def test_a_tree_of_files_is_planned_twice_to_the_same_plan(tmp_path):
    found = planning(tmp_path / "out", folder=str(write_tiny_files(tmp_path / "tiny", 3_000)), **LIMITS)
    assert found["samples"] == 3_000
    assert found["same"]
