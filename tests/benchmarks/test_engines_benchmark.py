"""The benchmark of engines: its table is whole, and its shares are those of its rounds."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markdown import ROOT

BENCHMARK = ROOT / "benchmarks/engines.py"
FEW = 32


@pytest.mark.long
def test_a_small_run_prints_a_whole_table(tmp_path: Path) -> None:
    document_path = tmp_path / "engines.json"
    words = [sys.executable, BENCHMARK, "--images", "200", "--rounds", "2", "--no-warm-up", "--engines", "parts"]
    words += ["--work", tmp_path / "work", "--json", document_path]
    run = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    document = json.loads(document_path.read_text())
    assert [row["engine"] for row in document["rows"]] == ["local", "parts"]
    assert all(f"\n{row['engine']} " in run.stdout for row in document["rows"])
    assert list((tmp_path / "work").iterdir()) == []
    check_shares(document)


def check_shares(document: dict) -> None:
    """Every share is the median of those of rounds, in which the engines took turns."""
    rates = {
        row["engine"]: [
            (document["images"] - FEW) / (wall_s - start_s)
            for wall_s, start_s in zip(row["wall_s"], row["start_s"], strict=True)
        ]
        for row in document["rows"]
    }
    for row in document["rows"]:
        shares = [mine / local for mine, local in zip(rates[row["engine"]], rates["local"], strict=True)]
        assert row["of_local"] == pytest.approx(statistics.median(shares))
        assert row["of_local_range"] == pytest.approx([min(shares), max(shares)])
