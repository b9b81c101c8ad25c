"""The benchmark of several views: its table is whole, and its ratios are those of its rounds."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markdown import ROOT

BENCHMARK = ROOT / "benchmarks/views.py"
CONTENDERS = {"our loader", "our decoder", "separate decodes", "torchvision v2, one tensor"}
ONE = "1 x 224, area 0.2 to 1"


@pytest.mark.long
def test_a_small_run_prints_a_whole_table(tmp_path: Path) -> None:
    document_path = tmp_path / "views.json"
    words = [sys.executable, BENCHMARK, "--images", "70", "--rounds", "1", "--batches", "1", "--no-warm-up"]
    words += ["--work", tmp_path / "work", "--json", document_path]
    run = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    document = json.loads(document_path.read_text())
    assert len(document["rows"]) == 5 * len(CONTENDERS)
    assert all(f"\n{row['contender']} " in run.stdout and row["views"] in run.stdout for row in document["rows"])
    assert list((tmp_path / "work").iterdir()) == []
    check_ratios(document)


def check_ratios(document: dict) -> None:
    """Every ratio is that of two contenders in the same rounds, and every row of two or eight views has a target."""
    ms = {(row["contender"], row["views"]): row["cpu_ms"] for row in document["rows"]}
    assert {contender for contender, _ in ms} == CONTENDERS
    for row in document["rows"]:
        pairs = zip(row["cpu_ms"], ms[row["contender"], ONE], strict=True)
        ratios = [mine / base for mine, base in pairs]
        assert row["ratio"] == pytest.approx(statistics.median(ratios), rel=1e-3)
        assert (row["low"], row["high"]) == pytest.approx((min(ratios), max(ratios)), rel=1e-3)
        target = {2: 1.3, 8: 2.5}.get(row["num_views"]) if row["contender"] == "our loader" else None
        assert row["target"] == target
