"""Sentences of documents have the figures of the results that are kept beside the benchmarks."""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

import pytest

from benchmarks.schedules import SCENARIOS
from benchmarks.tables import arena_verdicts, recorded
from dataprep.builder.shard import WRITES_BETWEEN_CHECKS, WRITES_IN_FLIGHT
from dataprep.cloud.capacity import measured_here
from tests.support.markdown import ROOT

RESULTS = ROOT / "benchmarks/results"


def told(document: str) -> str:
    """The document in one line."""
    return " ".join((ROOT / document).read_text().split())


def test_what_opening_a_large_index_takes():
    document = recorded("large-index")
    rows = {row["index"]: row for row in document["table"]}
    parts, least = rows["parts"], rows["small dataset"]
    shown = (
        f"with {document['rows'] / 1e6:.0f} million rows in {document['shards']:,} shards "
        f"{parts['open_s']:.2f} s and {parts['open_peak_mb']:.0f} MB, of which any dataset takes "
        f"{least['open_peak_mb']:.0f} MB. Reading the rows of a shard takes {parts['shard_cpu_ms']:.1f} ms,"
    )
    assert shown in told("docs/decisions/0021-index-in-parts.md")


def test_what_restart_markers_bring():
    found = recorded("restart")
    marked, plain = (
        next(
            row["ratio"]
            for row in found["rows"]
            if (row["contender"], row["image_size"], row["interpolation"]) == ("loader", 224, "bicubic")
            and row["files"] == files
        )
        for files in ("restart markers", "originals")
    )
    text = told("DATA.md")
    assert f"in {marked / plain:.2f} of the time;" in text
    kilobytes = found["bytes"] / found["images"] / 1000
    assert (
        f"On {found['images']:,} crops of photographs of {kilobytes:.0f} kB the files have "
        f"{found['restart_bytes'] / found['bytes']:.2f} of their bytes, and one core codes "
        f"{found['transcoded_images_per_s']:.0f} images a second." in text
    )


def test_the_cost_of_an_image_of_our_loader_in_each_table_is_said_with_the_reason_why_they_differ():
    arena = next(row for row in recorded("arena")["rows"] if (row["name"], row["image_size"]) == ("ours", 224))
    restart = next(
        row
        for row in recorded("restart")["rows"]
        if (row["contender"], row["image_size"], row["interpolation"], row["files"])
        == ("loader", 224, "bicubic", "originals")
    )
    costs = [
        row["cpu_ms_per_image"]
        for row in recorded("input-costs")["runs"]
        if (row["loader"], row["stored"], row["image_size"]) == ("dataprep", "originals", 224)
    ]
    measured = {
        "loader_arena": statistics.median(arena["rounds_cpu_ms"]),
        "restart": statistics.median(restart["cpu_ms"]),
        "input_costs": statistics.median(costs),
    }
    section = (ROOT / "benchmarks/README.md").read_text().split("## One cost in three tables\n")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)\.py` \| (\d\.\d\d) \|", section, re.MULTILINE)) == {
        name: f"{ms:.2f}" for name, ms in measured.items()
    }
    cost = next(row.cost for row in measured_here()["dataprep"] if row.image_size == 224)
    assert (
        f"({cost.cpu_ms:.2f} ms an image for our loader at 224 pixels, of which {cost.stored_ms:.2f} grow with the "
        "stored image;" in told("docs/capacity.md")
    )


def test_rates_and_compile_times_of_jax():
    found = json.loads((RESULTS / "frameworks.json").read_text())
    rates, compiling = found["rates"], found["compiling"]
    ours, theirs = (rates["images_per_s"][name] for name in ("jax", "torch_xla"))
    ratio = statistics.median(mine / base for mine, base in zip(ours, theirs, strict=True))
    text = told("benchmarks/README.md")
    assert f"at {ratio:.2f} times torch_xla's rate (the median of three rounds: " in text
    assert len(ours) == len(theirs) == 3
    assert f"{min(ours):.1f} to {max(ours):.1f} images/s, and {min(theirs):.1f} to {max(theirs):.1f})" in text
    scan, alone = (compiling[name]["compiled_s"] for name in ("scan", "no scan"))
    assert f"takes {scan:.1f} s to compile as one loop, and {alone:.1f} s with `--no-scan`" in text


def test_the_figures_of_the_readme():
    text = told("README.md")
    ours = recorded("resume")["rows"][0]
    assert {rank for change in ours["changes"] for rank in change["ranks"][1:]} == {4, 6, 7, 8, 12}
    assert [change["repeated"] + change["skipped"] for change in ours["changes"]] == [0] * len(ours["changes"])
    assert f"4, 6, 7 or 12 ranks in place of 8 | 0 of {recorded('resume')['samples']:,} |" in text
    verdicts = "\n".join(arena_verdicts(recorded("arena")))
    times = dict(re.findall(r"224 \| (\S+) \| originals \| ([0-9.]+) times", verdicts))
    antialiased, plain = min(times["bicubic"], times["bilinear"], key=float), times["bilinear-no-antialias"]
    assert (
        "processor time of the fastest other loader for an image of 224 px, over that of ours with the same "
        f"interpolation | {antialiased} times with antialiasing, {plain} times without |" in text
    )
    build = recorded("build")
    cpu_ms = worker_of_builds("dataprep webdataset")["cpu_ms_per_image"]
    assert (
        f"images of {build['bytes'] / build['images'] / 1000:.0f} kB that one core reads, decodes, checks and packs | "
        f"{1000 / cpu_ms:.0f} a second, at {cpu_ms:.2f} ms of processor time each |" in text
    )


def worker_of_builds(name: str) -> dict[str, Any]:
    """The figures of one worker that checks every image."""
    (found,) = (
        row["result"]
        for row in recorded("build")["rows"]
        if (row["check"], row["workers"], row["name"]) == ("decode", 1, name)
    )
    return found


def test_the_rate_of_a_core_is_that_of_the_processor_time_of_a_build():
    webdataset, tfrecord = (
        worker_of_builds(f"dataprep {each}")["cpu_ms_per_image"] for each in ("webdataset", "tfrecord")
    )
    assert (
        f"an image takes one worker {webdataset:.2f} ms of processor time as `webdataset` and {tfrecord:.2f} ms as "
        f"`tfrecord`: a core makes {1000 / webdataset:.0f} and {1000 / tfrecord:.0f} images a second."
        in told("benchmarks/README.md")
    )


def test_simulated_builds_of_imagenet_have_the_rate_of_a_worker_that_has_more_than_a_core():
    worker, simulated = worker_of_builds("dataprep webdataset"), recorded("schedules")["rows"][0]
    cores = worker["images_per_s"] * worker["cpu_ms_per_image"] / 1000
    assert SCENARIOS[0].name == simulated["name"] == "ImageNet"
    assert SCENARIOS[0].shard_s == pytest.approx(2_338 / worker["images_per_s"], rel=0.001)
    assert (
        f"the rate of one worker that has two cores, {worker['images_per_s']:.0f} images a second, which is the work "
        f"of {cores:.2f} cores: with one core for each worker the least possible time is "
        f"{simulated['bound_s'] * cores:.0f} s." in told("docs/clusters.md")
    )


def test_requests_of_a_late_worker_are_those_of_two_comparisons():
    text = told("docs/decisions/0006-one-plan-holds-the-place.md")
    assert f"the plan is compared before every {WRITES_BETWEEN_CHECKS} images." in text
    waiting = 2 * WRITES_IN_FLIGHT - 1
    assert f"still makes up to {WRITES_BETWEEN_CHECKS + waiting} requests when it resumes." in text
