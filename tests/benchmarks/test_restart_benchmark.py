"""The benchmark of restart markers: its table is whole, and its ratios are to the full decode of the same rounds."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tables import recorded
from tests.support.markdown import ROOT

BENCHMARK = ROOT / "benchmarks/restart.py"


@pytest.mark.long
def test_a_small_run_prints_a_whole_table(tmp_path: Path) -> None:
    document_path = tmp_path / "restart.json"
    words = [sys.executable, BENCHMARK, "--images", "40", "--rounds", "1", "--batches", "1", "--no-warm-up"]
    words += ["--work", tmp_path / "work", "--json", document_path]
    run = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    document = json.loads(document_path.read_text())
    assert len(document["rows"]) == 1 + 2 * (1 + 2 * 5)
    assert all(f"\n{row['contender']} " in run.stdout for row in document["rows"])
    assert list((tmp_path / "work").iterdir()) == []
    check_ratios(document)


def check_ratios(document: dict) -> None:
    full, *others = document["rows"]
    assert full["contender"] == "full decode"
    for row in others:
        ratios = [mine / base for mine, base in zip(row["cpu_ms"], full["cpu_ms"], strict=True)]
        assert row["ratio"] == pytest.approx(statistics.median(ratios), rel=1e-3)
        assert (row["low"], row["high"]) == pytest.approx((min(ratios), max(ratios)), rel=1e-3)


def test_the_published_ratios_are_those_of_their_rounds() -> None:
    check_ratios(recorded("restart"))
