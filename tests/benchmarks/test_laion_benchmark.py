"""The benchmark of `dataprep build laion` runs, everybody takes every image, and its table is whole."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "benchmarks/laion.py"


@pytest.mark.long
def test_a_small_run_prints_a_whole_table(tmp_path: Path) -> None:
    """40 images of demo data, one round, without img2dataset, which needs an environment of its own."""
    document_path = tmp_path / "laion.json"
    command = [
        sys.executable,
        BENCHMARK,
        "--images",
        "40",
        "--rounds",
        "1",
        "--no-warm-up",
        "--hosts",
        "8",
        "--threads",
    ]
    command += ["--rows-per-shard", "20", "--work", tmp_path / "work", "--json", document_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    document = json.loads(document_path.read_text())
    assert (document["images"], document["hosts"], document["rounds"], document["verdicts"]) == (40, 8, 1, [])
    ours, roofline, loops = document["rows"]
    assert (ours["name"], ours["ratio"]) == ("dataprep build laion, 2 processes", None)
    assert roofline["name"] == "(a) encoding alone, 2 processes"
    assert loops["name"] == "(c) fetching and encoding in plain loops, 2 processes"
    assert roofline["ratio"] == pytest.approx(ours["images_per_s"] / roofline["images_per_s"])
    assert ours["server_cpu_ms_per_image"] > roofline["server_cpu_ms_per_image"] == pytest.approx(0, abs=1)
    for row in document["rows"]:
        assert row["images_per_s"] > 0 and 0 < row["largest_mb"] <= row["sum_mb"]
        assert math.isfinite(row["cpu_ms_per_image"])  # a difference of two runs, which so few images do not tell apart
        assert any(line.startswith(f"{row['name']} ") for line in done.stdout.splitlines())
    assert list((tmp_path / "work").iterdir()) == []
