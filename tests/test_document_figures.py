"""Figures in the documents are those that the code, the recorded benchmarks or the arithmetic beside them give."""

from __future__ import annotations

import json
import math
import re
import shlex
from statistics import median

import pytest
from click.testing import CliRunner

from benchmarks.tables import TABLES, arena_verdicts, recorded, recorded_lines, unseen_table
from dataprep.cli import group
from dataprep.cloud.accelerators import parse_accelerator
from dataprep.cloud.capacity import (
    USABLE_SHARE,
    VCPU_SPEED,
    CapacityPlan,
    Pod,
    cost_from_table,
    cost_on_host,
    host_cores,
    plan_capacity,
)
from dataprep.commands.plan_input import InputRequest
from dataprep.sources import DATASETS
from scripts.sentences import BENCHMARKS, CAPACITY, CLUSTERS, only, with_figures, written_anew
from tests.support.markdown import ROOT, blocks, commands, shows

LAION, PUBLISHED = ((ROOT / f"docs/{name}.md").read_text() for name in ("laion", "published"))
PLANS = [
    command
    for document in (CAPACITY, "docs/regions.md")
    for block in blocks(document)
    if block.info == "console"
    for command in commands(block)
]


def told(document: str) -> str:
    """Return a document in one line."""
    return " ".join((ROOT / document).read_text().split())


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_benchmarks_are_those_of_the_recorded_run(name: str):
    assert "\n".join(TABLES[name](recorded(name))) in (ROOT / BENCHMARKS).read_text()


def test_a_ratio_below_its_target_is_shown_as_short():
    """A ratio that rounds to its target and is below it is short as well."""
    document = recorded("build")
    for row in document["rows"]:
        if row["name"] == "dataprep webdataset" and (row["check"], row["workers"]) == ("none", 1):
            loops = only(document["rows"], name="(a) plain loops, 1 process", check="none", workers=1)
            row["result"]["images_per_s"] = 0.849 * loops["result"]["images_per_s"]
    assert any("(0.85, short of 0.85)" in line for line in TABLES["build"](document))


def test_sentences_with_figures_say_what_was_recorded():
    assert written_anew() == {}


@pytest.mark.parametrize(
    ("text", "renewed"),
    [
        ("It takes 2.5 s of\n1,000 images.", "It takes 3.25 s of\n900 images."),
        ("It takes 3.25 s of 900 images, and it takes 1 s of 2 images.",) * 2,
    ],
)
def test_figures_of_a_sentence_are_renewed_where_its_words_are(text, renewed):
    assert with_figures("x.md", text, "takes 3.25 s of 900 images") == renewed


@pytest.mark.parametrize("text", ["It takes long.", "takes 1 s of 2 images and takes 2 s of 3 images"])
def test_a_sentence_that_is_not_there_once_is_named(text):
    with pytest.raises(
        ValueError, match=r"x\.md: \d places say \"takes 3 s of 9 images\" with any figures, expected one"
    ):
        with_figures("x.md", text, "takes 3 s of 9 images")


def test_the_verdicts_of_recorded_runs_are_those_of_the_document():
    text = (ROOT / BENCHMARKS).read_text()
    assert "\n".join(arena_verdicts(recorded("arena"))) in text
    assert "\n".join(unseen_table(recorded_lines("diagnose-unseen"))) in text


def test_the_cost_of_an_image_of_our_loader_is_said_for_each_table():
    arena = only(recorded("arena")["rows"], name="ours", image_size=224, interpolation="bicubic")
    rows, runs = recorded("restart")["rows"], recorded("input-costs")["runs"]
    restart = only(rows, contender="loader", image_size=224, interpolation="bicubic", files="originals")
    asked = {"loader": "dataprep", "stored": "originals", "image_size": 224}
    measured = {
        "loader_arena": median(arena["rounds_cpu_ms"]),
        "restart": median(restart["cpu_ms"]),
        "input_costs": median(run["cpu_ms_per_image"] for run in runs if asked.items() <= run.items()),
    }
    section = (ROOT / BENCHMARKS).read_text().split("## One cost in three tables\n")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)\.py` \| (\d\.\d\d) \|", section, re.MULTILINE)) == {
        name: f"{ms:.2f}" for name, ms in measured.items()
    }


# Plans and prices


@pytest.mark.parametrize("command", PLANS, ids=lambda command: command.text)
def test_capacity_plans_print_what_the_document_shows(command):
    run = CliRunner().invoke(group, shlex.split(command.text)[1:])
    assert run.exit_code in (0, 1), run.output
    assert shows(command.output, run.output)


def test_ways_to_build_from_originals_elsewhere_cost_what_the_document_says():
    def report(location: str, zone: str, num_bytes: str, *more: str) -> dict:
        words = f"gs://data --bucket-location {location} --zone {zone} --json".split()
        words += ["--dataset-bytes", num_bytes, *more]
        return json.loads(CliRunner().invoke(group, ["check-region", *words]).stdout)["urls"][0]

    loose = ("2 TB", "--objects", "18000000")
    near, far = (report("us-central1", zone, *loose) for zone in ("us-central1", "europe-west4"))
    small, whole = (report("us-central1", "europe-west4", size)["copy"]["once"]["total"] for size in ("800GB", "2TB"))
    requests, copied = near["one_pass_usd"]["total"], far["copy"]["once"]["total"]
    multi = report("US", "us-central1", *loose)
    shown = (ROOT / "docs/regions.md").read_text()
    for said in (
        f"| ${requests:.2f} for requests, ${small:.2f} for the copy (${whole:.2f} without `--resize`) |",
        f"| ${far['one_pass_usd']['total']:.2f} for reading the originals there |",
        f"| ${copied:.2f} for the copy, ${requests:.2f} for requests |",
        f"${multi['usd_per_gib']:.2f} per GiB even in us-central1, here ${multi['one_pass_usd']['transfer']:.2f}.",
        f"--max-usd {math.ceil(1.1 * small)}\n",
    ):
        assert said in shown


def test_ways_to_read_many_times_cost_what_the_document_says():
    shown = (ROOT / "docs/regions.md").read_text()
    (words,) = re.findall(r"^\$ dataprep (check-region .* --bucket-location .* --epochs 90)$", shown, re.MULTILINE)
    found = json.loads(CliRunner().invoke(group, [*words.split(), "--json"]).stdout)["urls"][0]["ways"]
    names = {"direct": "the multi-region US", "cache": "a Rapid Cache in the zone", "copy": "a copy in us-central1"}
    for way in found:
        read = way["read"]
        cells = (way["once"]["total"] + way["ingest"], way["kept"], read["transfer"], read["operations"], way["total"])
        row = f"| {names.pop(way['kind'])} | {' | '.join(f'${usd:.2f}' for usd in cells)} |"
        assert row in shown
    assert not names


def test_published_resnets_have_the_plans_of_the_documents_table():
    """Hosts of a v3-128 whose loader keeps four cores busy, on images of ImageNet."""

    def plan_of(images_per_s: float, loader: str, cores: float | None = None) -> CapacityPlan:
        found = parse_accelerator("v3-128")
        vcpus = found.machine.vcpus if cores is None else cores / USABLE_SHARE / VCPU_SPEED
        pod = Pod(hosts=found.hosts, vcpus=vcpus, ram_bytes=1e11, nic_gbps=found.machine.nic_gbps)
        cost = cost_from_table(loader, 224, InputRequest(accelerator="all", images_per_s=1).image_bytes[0])
        return plan_capacity(images_per_s, pod, cost_on_host(cost, host_cores()["v3"].speed))

    multiplications = {"50": 4.1, "101": 7.8, "152": 11.5, "200": 15.1}
    asked = {name: 44_800 * 4.1 / billions for name, billions in multiplications.items()}
    plans = {name: plan_of(rate, "torchvision", cores=4) for name, rate in asked.items()}
    fifty, hundred, deep = (f"{plans[name].headroom * 100:.0f}" for name in ("50", "101", "152"))
    shown = f"{plans['50'].images_per_s:,.0f} images/s for every model: {fifty}, {hundred} and {deep} % of what"
    assert shown in told(CAPACITY)
    assert plans["200"].verdict == "fed"
    with_tfds = plan_of(asked["50"], "tf.data")
    assert f"| {with_tfds.utilisation / plans['50'].utilisation:.1f} times |" in told(CAPACITY)


def test_costs_of_clusters_follow_from_the_rates_beside_them():
    """A vCPU does half of a core: the processor time of the recorded benchmark, and core-hours of docs/laion.md."""
    (row,) = (
        row
        for row in recorded("build")["rows"]
        if (row["check"], row["workers"], row["name"]) == ("decode", 1, "dataprep webdataset")
    )
    cpu_ms = row["result"]["cpu_ms_per_image"]
    rate = 1000 / cpu_ms
    checks = f"A core checks {rate:.0f} images a second (105 kB each), at {cpu_ms:.2f} ms of processor time per image"
    assert checks in told(CLUSTERS)
    images = DATASETS["imagenet"].facts["train"].samples
    hours = images / (rate / 2) / 3600
    minutes, cost = f"{hours / 16 * 60:.0f} minutes", f"${hours * 0.07:.2f}"
    assert f"| ImageNet | {images:,} | {hours:.1f} | {minutes} | | {cost} |" in told(CLUSTERS)
    (core_hours,) = re.findall(r"/ 3,600 s = (\d+) core-hours", LAION)
    assert f"[{core_hours} core-hours](laion.md#what-it-takes)" in told(CLUSTERS)
    hours = 2 * int(core_hours)
    shown = f"{hours:,} | {hours / 16:.0f} hours | {hours / 256:.1f} hours | ${hours * 0.07:.0f}"
    assert f"| LAION-400M | 413 million rows | {shown} |" in told(CLUSTERS)
    (rows,) = re.findall(r"= (\d+) million x \(0\.\d+ x", LAION)
    assert set(re.findall(r"\b(4\d\d) million (?:rows|URLs|in 32)", LAION + (ROOT / CLUSTERS).read_text())) == {rows}


def test_core_hours_and_rates_of_laion_follow_from_the_figures_beside_them():
    rows, comes, row_ms, dead_ms = map(
        float, re.findall(r"(\d+) million x \((0\.\d+) x ([\d.]+) ms \+ 0\.32 x ([\d.]+) ms\)", LAION)[0]
    )
    core_hours = rows * 1e6 * (comes * row_ms + (1 - comes) * dead_ms) / 1000 / 3600
    assert float(re.findall(r"/ 3,600 s = (\d+) core-hours", LAION)[0]) == pytest.approx(core_hours, rel=0.01)
    for cores, rate, gbps in re.findall(r"^\| (\d+) \| [^|]+ \| ([\d,]+) \| ([\d.]+) Gbit/s", LAION, re.MULTILINE):
        rows_per_s = rows * 1e6 / (core_hours * 3600) * int(cores)
        assert float(rate.replace(",", "")) == pytest.approx(rows_per_s, rel=0.02)
        assert float(gbps) == pytest.approx(rows_per_s * comes * 190e3 * 8 / 1e9, rel=0.02)


def test_every_document_has_the_same_number_of_imagenets_shards():
    shards = re.findall(r"^\| (?:webdataset|tfrecord)\b.* GB, (\d+) shards \| 6", PUBLISHED, re.MULTILINE)
    webdataset, tfrecord = shards
    assert webdataset == tfrecord
    assert f"ImageNet's training images fill {webdataset} shards of 256 MiB" in told(CLUSTERS)
    assert f"imagenet-train-00000-of-{int(webdataset):05d}.tar" in (ROOT / "docs/written.md").read_text()
