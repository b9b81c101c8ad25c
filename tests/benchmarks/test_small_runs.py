"""Every benchmark runs on a few images, all its contenders have figures, and its table shows each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from benchmarks.harness import PEERS_PYTHON
from benchmarks.loader_arena import ARENA_FORMATS
from benchmarks.tables import arena_ratios, arena_table, formats_table, recorded, resume_outcome
from tests.support.markdown import ROOT


class Run(NamedTuple):
    """A program of `benchmarks/`, what makes its run small, and the names in its table."""

    program: str
    words: str
    column: str
    names: tuple[str, ...]


RUNS = {
    "build": Run(
        "build",
        "--images 40 --rounds 1 --no-warm-up --workers 1 --checks none --rivals tfds",
        "name",
        ("dataprep webdataset", "dataprep tfrecord", "(a) plain loops, 1 process", "(c) TFDS builder, 1 process"),
    ),
    "engines": Run("engines", "--images 200 --rounds 2 --no-warm-up --engines parts", "engine", ("local", "parts")),
    "laion": Run(
        "laion",
        "--images 40 --rounds 1 --no-warm-up --hosts 8 --rows-per-shard 20 --threads",
        "name",
        (
            "dataprep build laion, 2 processes",
            "(a) encoding alone, 2 processes",
            "(c) fetching and encoding in plain loops, 2 processes",
        ),
    ),
    "arena": Run(
        "loader_arena",
        "--images 40 --rounds 1 --taken 40 --batch-size 8 --image-sizes 224",
        "name",
        ("full decode", "ours", *ARENA_FORMATS, "torchvision"),
    ),
    "own data": Run(
        "own_data",
        "--images 40 --rounds 1 --no-warm-up --processes 1",
        "writer",
        (
            "dataprep webdataset",
            "dataprep tfrecord",
            "dataprep webdataset, no check",
            "webdataset ShardWriter",
            "litdata.optimize",
            "datasets, parquet",
            "tar cf",
        ),
    ),
    "restart markers": Run(
        "restart",
        "--images 40 --rounds 1 --batches 1 --no-warm-up",
        "contender",
        ("full decode", "decoder, extension", "decoder, libraries", "loader"),
    ),
    "views": Run(
        "views",
        "--images 70 --rounds 1 --batches 1 --no-warm-up",
        "contender",
        ("our loader", "our decoder", "separate decodes", "torchvision v2, one tensor"),
    ),
    "resuming": Run(
        "resume",
        "--batch 12 --steps 8 --ranks 2 --changes 2 3,1",
        "loader",
        ("dataprep", "Grain, ElasticIterator", "Grain, DataLoader", "datasets streaming"),
    ),
}


def ran(program: str, words: str, folder: Path, *more: object) -> tuple[dict[str, Any], str]:
    """Run a benchmark; the document that it writes, and what it prints."""
    out = folder / "out.json"
    command = [sys.executable, ROOT / f"benchmarks/{program}.py", *words.split(), *more, "--json", out]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(out.read_text())
    return document, done.stdout


def small_run(run: Run, folder: Path) -> dict[str, Any]:
    """Run a benchmark in a folder, and return the document that it writes."""
    more = {
        "loader_arena": ("--contenders", *run.names),
        "resume": ("--loaders", *run.names, "--picture", folder / "resume.png"),
    }
    document, said = ran(run.program, run.words, folder, "--work", folder / "work", *more.get(run.program, ()))
    assert {row[run.column] for row in document["rows"]} >= set(run.names)
    assert said.count("\n") >= 2 + len(document["rows"]) / 5
    assert list((folder / "work").iterdir()) == []
    return document


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_small_run_prints_a_whole_table(name: str, tmp_path: Path) -> None:
    document = small_run(RUNS[name], tmp_path)
    if name in CHECKS:
        CHECKS[name](document)


def ratios_of_build(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        result = row["result"]
        assert min(result["images_per_s"], result["cpu_ms_per_image"], result["largest_mb"]) > 0
        assert (row["ratio"] is None) == row["name"].startswith("(a)")


def ratios_of_engines(document: dict[str, Any]) -> None:
    """Every share is the median of those of rounds, where the engines took turns."""
    few = 32
    rates = {
        row["engine"]: [
            (document["images"] - few) / (wall_s - row["start_s"][at]) for at, wall_s in enumerate(row["wall_s"])
        ]
        for row in document["rows"]
    }
    for row in document["rows"]:
        shares = [mine / local for mine, local in zip(rates[row["engine"]], rates["local"], strict=True)]
        assert row["of_local"] == pytest.approx(median(shares))


def ratios_of_laion(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        assert 0 < row["images_per_s"] < row["after_start_images_per_s"]


def ratios_of_arena(document: dict[str, Any]) -> None:
    assert document["errors"] == {}
    ours, peer = document["rows"][1], document["rows"][-1]
    cheaper = peer["rounds_cpu_ms"][0] / ours["rounds_cpu_ms"][0]
    faster = ours["rounds_images_per_s"][0] / peer["rounds_images_per_s"][0]
    assert arena_ratios(peer, document["rows"]) == (pytest.approx(cheaper), pytest.approx(faster))
    assert len(arena_table(document)) == 2 + len(document["rows"])
    assert len(formats_table(document | {"rows": document["rows"][:4]})) == 2 + 4


def ratios_of_own_data(document: dict[str, Any]) -> None:
    """Every ratio is of two rates of the same run."""
    for processes in {row["processes"] for row in document["rows"]}:
        rows = {row["writer"]: row for row in document["rows"] if row["processes"] == processes}
        checked = min(rows[f"dataprep {each}"]["images_per_s"] for each in ("webdataset", "tfrecord"))
        unchecked = rows["dataprep webdataset, no check"]["images_per_s"]
        for row in rows.values():
            if row["ratio"] is not None:
                assert row["ratio"] == pytest.approx(checked / row["images_per_s"])
                assert row["unchecked_ratio"] == pytest.approx(unchecked / row["images_per_s"])


def ratios_of_restart(document: dict[str, Any]) -> None:
    full, *others = document["rows"]
    for row in others:
        assert row["ratio"] == pytest.approx(_median_ratio(row, full), rel=1e-3)


def ratios_of_views(document: dict[str, Any]) -> None:
    """Every ratio is to one view of the same contender in the same rounds."""
    one = {row["contender"]: row for row in document["rows"] if row["views"] == "1 x 224, area 0.2 to 1"}
    for row in document["rows"]:
        assert row["ratio"] == pytest.approx(_median_ratio(row, one[row["contender"]]), rel=1e-3)


def _median_ratio(row: dict[str, Any], base: dict[str, Any]) -> float:
    return median(mine / other for mine, other in zip(row["cpu_ms"], base["cpu_ms"], strict=True))


def outcomes_of_resuming(document: dict[str, Any]) -> None:
    """With as many ranks as before, every loader that has a state is exact."""
    rows = {row["loader"]: [resume_outcome(change)[0] for change in row["changes"]] for row in document["rows"]}
    assert rows["dataprep"] == ["exact", "exact"]
    assert rows.get("Grain, DataLoader", ["exact", "refused"]) == ["exact", "refused"]


CHECKS = {
    "build": ratios_of_build,
    "engines": ratios_of_engines,
    "laion": ratios_of_laion,
    "arena": ratios_of_arena,
    "own data": ratios_of_own_data,
    "restart markers": ratios_of_restart,
    "views": ratios_of_views,
    "resuming": outcomes_of_resuming,
}


@pytest.mark.parametrize("name", ["engines", "own data", "restart markers", "views"])
def test_published_ratios_are_those_of_their_rounds(name: str) -> None:
    CHECKS[name](recorded(name.removesuffix(" markers").replace(" ", "-")))


def test_the_environment_of_the_peers_has_what_the_check_of_images_imports() -> None:
    """The peers whose pins exclude ours call our check of images; the benchmark of builds runs them with it."""
    program = "from dataprep.builder.images import ImagePolicy, check_image"
    done = subprocess.run([PEERS_PYTHON, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_near_duplicates_that_are_planted_are_found(tmp_path: Path) -> None:
    document, _ = ran("near_duplicates", "--hashes 5000 --images 10 --rounds 1", tmp_path)
    assert all(row["found"] == row["planted"] == 50 for row in document["rows"])
    (found,) = (row for row in document["found"] if row["bits"] == 4)
    assert found["precision"] == found["recall"]["resized"] == found["recall"]["saved again"] == 1


def test_a_loader_is_measured_through_columns(tmp_path: Path) -> None:
    words = "--small 400 --images 40 --rounds 1 --no-warm-up --seconds 0.1"
    rows = ran("columns", words, tmp_path, "--work", tmp_path)[0]["rows"]
    assert [(row["pictures"], row["place"]) for row in rows] == [
        (pictures, place) for pictures in ("2 kB", "demo") for place in ("disk", "bucket")
    ]
    assert all(min(row["images_per_s"] + row["images_per_s_columns"]) > 0 for row in rows)


def test_each_large_index_is_opened_and_read(tmp_path: Path) -> None:
    document, _ = ran("large_index", "--rows 40000 --rounds 1", tmp_path, "--work", tmp_path)
    assert [row["index"] for row in document["table"]] == ["parts", "small dataset"]
    assert all(row["open_s"] > 0 and row["shard_cpu_ms"] > 0 for row in document["table"])


def test_rows_of_an_index_are_found_in_memory_on_the_disk_and_nowhere(tmp_path: Path) -> None:
    words = "--rows 20000 --taken 256 --rounds 1 --no-warm-up"
    document, said = ran("index_rows", words, tmp_path, "--work", tmp_path)
    rounds = document["rounds"]
    assert list(rounds) == ["in memory", "on the disk", "nowhere"]
    assert all(each["images_per_s"] > 0 and each["cpu_ms"] > 0 for found in rounds.values() for each in found)
    assert said.count("times |") == 2 * len(rounds)
