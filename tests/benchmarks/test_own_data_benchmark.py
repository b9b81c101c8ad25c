"""The benchmark of `build folder`: its table is whole, and its ratios are those of its rates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markdown import ROOT

BENCHMARK = ROOT / "benchmarks/own_data.py"
IN_PYTHON = {"webdataset ShardWriter", "litdata.optimize", "datasets, parquet"}
OURS = {"decode": {"dataprep webdataset", "dataprep tfrecord"}, "none": {"dataprep webdataset, no check"}}


@pytest.mark.long
def test_a_small_run_prints_a_whole_table(tmp_path: Path) -> None:
    document_path = tmp_path / "own-data.json"
    words = [sys.executable, BENCHMARK, "--images", "40", "--rounds", "1", "--no-warm-up", "--processes", "1"]
    words += ["--work", tmp_path / "work", "--json", document_path]
    run = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    document = json.loads(document_path.read_text())
    rows = {row["writer"]: row for row in document["rows"]}
    assert rows.keys() == IN_PYTHON | OURS["decode"] | OURS["none"] | {"tar cf"}
    assert all(f"\n{name} " in run.stdout for name in rows)
    assert list((tmp_path / "work").iterdir()) == []
    check_ratios(document)


def check_ratios(document: dict) -> None:
    """Every ratio is that of two rates of the same run, and the verdict is about the fastest."""
    for processes in {row["processes"] for row in document["rows"]}:
        rate = {row["writer"]: row["images_per_s"] for row in document["rows"] if row["processes"] == processes}
        ours = {check: min(rate[name] for name in names) for check, names in OURS.items()}
        for row in document["rows"]:
            if row["processes"] == processes and row["ratio"] is not None:
                assert row["ratio"] == pytest.approx(ours["decode"] / rate[row["writer"]])
                assert row["unchecked_ratio"] == pytest.approx(ours["none"] / rate[row["writer"]])
        fastest = max(rate[name] for name in IN_PYTHON)
        found = {
            each["check"]: each["ratio"]
            for each in document["to_the_fastest_in_python"]
            if each["processes"] == processes
        }
        assert found == pytest.approx({check: rate / fastest for check, rate in ours.items()})
