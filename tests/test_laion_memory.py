"""Planning a table takes the same memory whatever its length (the soak laion-memory has 50 million rows)."""

from __future__ import annotations

import pytest

from tests.support.laion_builds import plan_flat


@pytest.mark.parametrize(("kind", "rows"), [("parquet", 2_000_000), ("jsonl", 1_000_000)])
def test_planning_many_times_the_rows_takes_no_more_memory(tmp_path, kind, rows):
    plan_flat(kind, tmp_path, rows)
