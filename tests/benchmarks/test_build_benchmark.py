"""The benchmark of `dataprep build` runs, every contender writes every sample, and its table is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.originals import PEERS_PYTHON

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "benchmarks/build.py"
IN_ONE_PROCESS = [
    ("dataprep webdataset", 0.85),
    ("dataprep tfrecord", 0.85),
    ("(a) plain loops, 1 process", None),
    ("(c) TFDS builder, 1 process", None),
]
SPREAD = [
    ("dataprep webdataset", 0.85),
    ("dataprep tfrecord", 0.85),
    ("(a) plain loops, 2 processes", None),
    ("(b) webdataset ShardWriter, 1 process", 1.5),
    ("(b) webdataset ShardWriter, spread over 2 processes", 1.0),
]
LISTED = [
    ("dataprep webdataset", 0.85),
    ("dataprep tfrecord", 0.85),
    ("(a) plain loops, 2 processes", None),
    ("(e) start, list, plain loops, 2 processes", None),
]


@pytest.mark.parametrize(
    ("workers", "rival", "expected"),
    [(1, "tfds", IN_ONE_PROCESS), (2, "webdataset", SPREAD), (2, "listed", LISTED)],
)
@pytest.mark.long
def test_a_small_run_prints_a_whole_table(
    tmp_path: Path, workers: int, rival: str, expected: list[tuple[str, float | None]]
) -> None:
    """40 images of demo data, one round, the peers that need no environment of their own."""
    document_path = tmp_path / "build.json"
    command = [sys.executable, BENCHMARK, "--images", "40", "--rounds", "1", "--no-warm-up", "--no-start"]
    command += ["--workers", str(workers), "--checks", "none", "--rivals", rival]
    command += ["--work", tmp_path / "work", "--json", document_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    document = json.loads(document_path.read_text())
    assert (document["images"], document["shards"], document["rounds"]) == (40, 2, 1)
    rows = document["rows"]
    assert [(row["name"], row["target"]) for row in rows] == expected
    for row in rows:
        _check_row(row, workers)
    lines = done.stdout.splitlines()
    assert f"--check none, {workers} worker{'s' if workers > 1 else ''}" in lines
    assert [sum(line.startswith(f"{name} ") for line in lines) for name, _ in expected] == [1] * len(expected)
    assert list((tmp_path / "work").iterdir()) == []


def _check_row(row: dict, workers: int) -> None:
    ratio, target, result = row["ratio"], row["target"], row["result"]
    assert (row["check"], row["workers"]) == ("none", workers)
    assert result["images_per_s"] > 0
    assert result["cpu_ms_per_image"] > 0
    assert 0 < result["largest_mb"] <= result["sum_mb"]
    assert len(result["wall_s"]) == 1
    assert (ratio is None) == row["name"].startswith("(a)")
    if target is None:
        assert row["verdict"] == ""
    else:
        assert row["verdict"] == ("PASS" if ratio >= target else "short")


def test_the_environment_of_the_peers_has_what_the_check_of_images_imports() -> None:
    """The peers whose pins exclude ours call our check of images; the benchmark of builds runs them with it."""
    program = "from dataprep.builder.images import ImagePolicy, check_image"
    done = subprocess.run([PEERS_PYTHON, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
