"""`dataprep plan-input` as it is called: output, exit codes, refusals."""

from __future__ import annotations

import json
import re
import shlex

import click
import pytest
from click.testing import CliRunner

from benchmarks.arena.arena_peers import PEERS
from dataprep.cloud import prices
from dataprep.commands.check_region import command as check_region
from dataprep.commands.convert import command as convert
from dataprep.commands.plan_input import command
from dataprep.errors import UndecidedError, UsageError
from loaders.capacity.host_cores import host_cores
from loaders.capacity.input_costs import cost_from_table, measured_here

MAE = ("--accelerator", "v3-256", "--model", "mae_vit_large_patch16_dec512d16h8b")
MAE_STEP = ("--step-ms", "1000", "--global-batch", "4096")
RESNET = ("--accelerator", "v4-32", "--model", "resnet50")


@pytest.fixture
def plan_input(capsys, monkeypatch):
    """Run the command: its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str]:
        code = command.main([str(argument) for argument in arguments], standalone_mode=False)
        return code, capsys.readouterr().out

    return run


def test_hosts_that_feed_the_accelerator_exit_with_0(plan_input):
    code, out = plan_input(*MAE, *MAE_STEP)
    assert code == 0
    assert out.startswith("v3-256 is fed with at least 67.7-fold headroom: 128 images/s needed per host;")
    for fact in ("128 chips, 256 cores", "32, each 96 vCPUs, 334 GB RAM, network not published", "at 448 pixels"):
        assert fact in out
    assert "1,281,167 images of imagenet" in out
    assert "/tmp" not in out


def test_hosts_that_are_too_slow_exit_with_1(plan_input):
    code, out = plan_input(
        "--accelerator", "v3-128", "--model", "resnet50", "--images-per-s", 44800,
        "--loader", "torchvision", "--workers", 4, "--bytes-per-image", 113000, "--cpu-ms-per-image", 3.99,
    )  # fmt: skip
    assert code == 1
    assert out.startswith(
        "If a host's core is as fast as yours, v3-128 is input-bound: reaches 16,040 images/s, 36% of the 44,800 that "
        "it takes;"
    )
    order = [
        out.index(change) for change in ("let the loader use all cores", "load with dataprep", "load with tf.data")
    ]
    assert order == sorted(order)


def test_a_plan_with_an_unknown_figure_exits_with_3(plan_input):
    code, out = plan_input(*RESNET, "--images-per-s", 60000)
    assert code == 3
    assert out.startswith("Cannot tell whether v4-32 is fed: 13.9 Gbit/s are needed per host,")
    code, out = plan_input(*RESNET, "--images-per-s", 60000, "--host-gbps", 30)
    assert code == 0


@pytest.mark.parametrize("asked", [4096, 400_000, 40_000_000])
@pytest.mark.parametrize("accelerator", ["v3-256", "v5litepod-1", "ct6e-standard-8t", "tpu7x-16x16x16"])
def test_the_answer_fits_into_a_terminal_of_80_columns(plan_input, monkeypatch, accelerator, asked):
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out = plan_input("--accelerator", accelerator, "--model", MAE[3], "--images-per-s", asked, "--workers", 4)
    out = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out.replace("/dev/shm/…", "")


def test_json_has_the_figures_of_the_text(plan_input):
    code, out = plan_input(*MAE, *MAE_STEP, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema_version"] == 1
    assert document["sentence"].startswith("v3-256 is fed")
    assert document["accelerator"]["hosts"] == 32
    assert document["accelerator"]["machine"]["vcpus"] == 96
    assert document["plan"]["verdict"] == "fed"
    assert document["plan"]["host_images_per_s"] == 128
    assert document["cost"]["image_size"] == 448
    assert {found["name"] for found in document["plan"]["resources"]} == {"cores", "network"}
    assert all(found["headroom"] > 1 for found in document["plan"]["resources"])
    assert [found["images_per_s"] for found in document["plan"]["what_ifs"]] == sorted(
        (found["images_per_s"] for found in document["plan"]["what_ifs"]), reverse=True
    )


def test_given_figures_replace_those_of_the_tables(plan_input):
    _, out = plan_input(
        *RESNET, "--images-per-s", 8000, "--cpu-ms-per-image", 3, "--bytes-per-image", 50000, "--vcpus", 100,
        "--vcpu-speed", 1, "--usable-share", 0.5, "--host-gbps", 2, "--bucket-gbps", 3, "--json",
    )  # fmt: skip
    resources = {found["name"]: (found["needed"], found["available"]) for found in json.loads(out)["plan"]["resources"]}
    assert resources["cores"] == (pytest.approx(6.0), 50.0)  # 2,000 images/s a host of 3 ms; 100 vCPUs x 0.5 x 1
    assert resources["network"] == (pytest.approx(0.8), 2.0)  # 2,000 x 50,000 x 8
    assert resources["bucket"] == (pytest.approx(3.2), 3.0)  # of 4 hosts


def test_costs_of_the_table_are_those_of_the_hosts_cores(plan_input):
    """v3's hosts have slower cores than the machine of the table; the plan says how much slower, and why."""
    words = (*MAE, *MAE_STEP)
    _, out = plan_input(*words)
    row, v3 = measured_here()["dataprep"][-1], host_cores()["v3"]
    assert row.image_size == 448
    cost = json.loads(plan_input(*words, "--json")[1])["cost"]
    assert (cost["processor"], cost["core_speed"]) == (v3.processor, v3.speed)
    assert cost["core_basis"] == f"published case: {v3.ground}"
    here_ms = cost_from_table("dataprep", 448, cost["num_bytes"]).cpu_ms
    assert cost["cpu_ms"] == pytest.approx(here_ms / v3.speed)
    assert f"  image        {cost['cpu_ms']:.2f} ms of a host's core with dataprep, 115.4 kB from the bucket\n" in out
    assert (
        f"  cores        Intel Skylake, each core counted as {v3.speed} of one that takes {here_ms:.2f} ms "
        f"(measured {row.date} on {row.machine}); published case: {v3.ground}\n"
    ) in out
    faster = json.loads(plan_input(*words, "--core-speed", 2, "--json")[1])["cost"]
    assert (faster["cpu_ms"], faster["core_basis"]) == (pytest.approx(here_ms / 2), "given")
    _, out = plan_input("--accelerator", "tpu7x-2x2x1", "--model", "resnet50", "--images-per-s", 1000)
    assert "  cores        processor not known, each core counted as " in out


def test_cores_are_taken_as_those_of_the_machine_of_the_users_measurement(plan_input, tmp_path):
    path = tmp_path / "bench.json"
    section = {"bytes_per_image": 100_000.0, "cpu_ms_per_image": 2.0}
    path.write_text(json.dumps({"schema_version": 1, "sections": [section]}))
    words = (*RESNET, "--images-per-s", 8000)
    for measured in (("--measured", path), ("--cpu-ms-per-image", 2)):
        document = json.loads(plan_input(*words, *measured, "--json")[1])
        assert document["sentence"].startswith("If a host's core is as fast as yours, v4-32 is fed with ")
        cost = document["cost"]
        assert (cost["cpu_ms"], cost["core_speed"]) == (2.0, 1.0)
        assert (
            "; assumed, because the core that measured is not known: --core-speed\n" in plan_input(*words, *measured)[1]
        )
        cost = json.loads(plan_input(*words, *measured, "--core-speed", 0.5, "--json")[1])["cost"]
        assert (cost["cpu_ms"], cost["core_speed"], cost["core_basis"]) == (4.0, 0.5, "given")
        assert plan_input(*words, *measured, "--core-speed", 0.5)[1].startswith("v4-32 is fed with ")
    _, out = plan_input(*RESNET, "--images-per-s", 60000, "--cpu-ms-per-image", 2)
    assert out.startswith("Cannot tell whether v4-32 is fed"), "this does not depend on the cores"


def test_other_loaders_have_the_costs_of_the_table_beside_a_given_one(plan_input):
    words = (*RESNET, "--images-per-s", 8000, "--host-gbps", 1000)
    _, plain = plan_input(*words, "--json")
    _, given = plan_input(*words, "--cpu-ms-per-image", 2, "--json")
    rates = [
        {
            found["name"]: found["images_per_s"]
            for found in json.loads(out)["plan"]["what_ifs"]
            if "loader" in found["name"]
        }
        for out in (plain, given)
    ]
    assert rates[0] == rates[1]


def test_figures_are_read_from_a_measurement_file(plan_input, tmp_path):
    path = tmp_path / "bench.json"
    section = {"bytes_per_image": 100_000.0, "cpu_ms_per_image": 2.0}
    path.write_text(json.dumps({"schema_version": 1, "sections": [section], "settings": {"image_size": 224}}))
    _, out = plan_input(*RESNET, "--images-per-s", 8000, "--measured", path, "--json")
    document = json.loads(out)
    assert (document["cost"]["cpu_ms"], document["cost"]["num_bytes"]) == (2.0, 100_000.0)
    assert document["cost"]["source"] == "bench.json"
    with pytest.raises(UsageError, match="was measured at 224 pixels, the model takes 448"):
        plan_input(*MAE, *MAE_STEP, "--measured", path)
    with pytest.raises(UsageError, match=r"bench\.json has no torchvision; it has dataprep"):
        plan_input(*RESNET, "--images-per-s", 8000, "--measured", path, "--loader", "torchvision")
    path.write_text("{")
    with pytest.raises(UsageError, match="cannot be read as JSON"):
        plan_input(*RESNET, "--images-per-s", 8000, "--measured", path)


@pytest.mark.parametrize("url", [None, "gs://bucket/my data/", "/data/shards"])
def test_a_smaller_dataset_is_made_by_the_command_that_is_printed(plan_input, tmp_path, url):
    path = tmp_path / "bench.json"
    section = {"bytes_per_image": 100_000.0, "cpu_ms_per_image": 2.0} | ({"url": url} if url else {})
    path.write_text(json.dumps({"schema_version": 1, "sections": [section]}))
    _, out = plan_input(*RESNET, "--images-per-s", 60000, "--measured", path)
    (command,) = [line.removeprefix("resize: ") for line in out.splitlines() if line.startswith("resize: ")]
    plain = (url or "URL").rstrip("/")
    words = ["dataprep", "convert", plain, "--output", f"{plain}-256", "--format", "webdataset", "--resize", "256"]
    assert shlex.split(command) == words
    parsed = convert.make_context("convert", words[2:])
    assert (parsed.params["url"], parsed.params["short_side"]) == (plain, 256)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            RESNET,
            "the images/s of the accelerator are missing: .*`dataprep diagnose URL --model NAME` measures it",
        ),
        ((*RESNET, "--step-ms", 100), "give --images-per-s, or --step-ms and --global-batch"),
        ((*RESNET, "--images-per-s", 1, *MAE_STEP), "got --images-per-s and a step"),
        (("--accelerator", "v3-16", "--images-per-s", 1, "--image-size", 224), "nearest: v3-8, v3-32"),
        (
            ("--accelerator", "v3-8", "--model", "yolo", "--images-per-s", 1),
            "size of yolo is not known; give --image-size",
        ),
        ((*RESNET, "--images-per-s", 1, "--resize", 400), "got --resize 400, expected less than the 387 pixels"),
        (("--accelerator", "v3-8", "--images-per-s", 1), "image size of the model is not known"),
        (
            (),
            "give --accelerator, or --bucket-location and --zone for the price of reading alone; there are v2-8 to v2-",
        ),
        (
            ("--images-per-s", 1, "--bucket-location", "US"),
            "--images-per-s is about a TPU; add --accelerator; there are v2-8 to v2-512, v3-8 to",
        ),
        (("--tpu", "v6-8", "--images-per-s", 1), "v6-8: no TPU of this name is known; nearest: v6e-8"),
    ],
)
def test_missing_or_wrong_options_are_refused(plan_input, arguments, message):
    with pytest.raises(UsageError, match=message):
        plan_input(*arguments)


def test_a_loader_that_was_not_measured_at_this_size_is_undecided(plan_input):
    one_size = {loader for loader, rows in measured_here().items() if len(rows) == 1}
    for loader in measured_here():
        if loader in one_size:
            with pytest.raises(UndecidedError, match=f"{loader} at 448 pixels was not measured"):
                plan_input(*MAE, *MAE_STEP, "--loader", loader)
        else:
            code, _ = plan_input(*MAE, *MAE_STEP, "--loader", loader)
            assert code in (0, 1)
    code, _ = plan_input(*MAE, *MAE_STEP, "--loader", "webdataset", "--cpu-ms-per-image", 8)
    assert code == 0


def test_unknown_models_need_a_size_and_coco_has_its_own_bytes(plan_input):
    _, out = plan_input(
        "--accelerator", "v3-8", "--model", "yolo", "--image-size", 320, "--images-per-s", 100, "--json"
    )
    assert json.loads(out)["cost"]["image_size"] == 320
    _, out = plan_input(*MAE, *MAE_STEP, "--dataset", "coco-dup5")
    assert "163.3 kB" in out
    assert "1,208,450 images of coco-dup5" in out


def test_a_model_whose_image_size_its_name_does_not_say(plan_input):
    with pytest.raises(UsageError, match="image size of regnety_160 is not known; give --image-size"):
        plan_input("--accelerator", "v5p-8", "--images-per-s", 100, "--model", "regnety_160")


def test_the_size_of_an_image_is_said_to_be_assumed(plan_input):
    words = (*RESNET, "--images-per-s", 8000, "--dataset-bytes", "500GB")
    _, out = plan_input(*words)
    assert "  assumed      115.4 kB an image, the mean of imagenet: give --images or --bytes-per-image" in out
    assert json.loads(plan_input(*words, "--json")[1])["cost"]["bytes_source"] == "mean of imagenet"
    _, out = plan_input(*words, "--bytes-per-image", "110kB")
    assert "  assumed  " not in out
    cost = json.loads(plan_input(*words, "--bytes-per-image", "110kB", "--json")[1])["cost"]
    assert (cost["bytes_source"], cost["num_bytes"]) == ("given", 110_000)
    assert "  assumed  " not in plan_input(*RESNET, "--images-per-s", 8000)[1]


@pytest.mark.parametrize("option", ["--bytes-per-image", "--dataset-bytes"])
def test_no_bytes_are_wrong_usage(plan_input, option):
    with pytest.raises(click.BadParameter, match="got 0 bytes, expected 1 or more"):
        plan_input(*RESNET, "--images-per-s", 8000, option, "0")


PLACES = ("--bucket-location", "US", "--zone", "us-west4-a")


@pytest.mark.parametrize("words", [PLACES, (*RESNET, "--images-per-s", 1000, *PLACES)])
def test_old_prices_and_storage_of_another_region_are_noted(plan_input, monkeypatch, words):
    monkeypatch.setattr(prices, "STALE_DAYS", -1)
    _, out = plan_input(*words)
    assert out.count("note: old prices: network_prices.csv of ") == out.count("--prices FILE") == 1
    assert "note: keeping data in us-west4 is priced as in us-central1\n" in out
    assumed, kept = json.loads(plan_input(*words, "--json")[1])["places"]["notes"]
    assert assumed.startswith("requests and copies are priced for objects of 256 MiB")
    assert kept == "keeping data in us-west4 is priced as in us-central1"
    assert "keeping data" not in plan_input(*PLACES[:3], "us-central1-a")[1]


def test_given_prices_replace_the_published_ones(plan_input, tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("item,of,where,usd\ntransfer_per_gib,us,us-west4,0.01\n")
    _, out = plan_input(*PLACES, "--dataset-bytes", "1GiB", "--prices", path, "--json")
    assert json.loads(out)["places"]["ways"][0]["read"]["transfer"] == pytest.approx(0.01)


def test_plan_knows_the_loaders_of_the_benchmark():
    loader = next(option for option in command.params if option.name == "loader")
    assert set(loader.type.choices) == {"dataprep", *PEERS}


def test_reading_imagenet_for_90_epochs_costs_what_is_published(plan_input):
    places = ("--bucket-location", "US", "--zone", "us-central1-a", "--epochs", "90")
    _, out = plan_input(*RESNET, "--images-per-s", 1000, *places, "--json")
    direct, cached, copied = json.loads(out)["places"]["ways"]
    assert direct["read"]["transfer"] == pytest.approx(248, abs=0.1)
    hits = cached["read"]["total"] * 90 / 89  # the published figure does not count the filling
    assert cached["ingest"] + cached["kept"] + hits == pytest.approx(22, abs=0.5)
    assert copied["once"]["total"] + copied["kept"] == pytest.approx(5.5, abs=0.02)
    _, out = plan_input(*RESNET, "--images-per-s", 1000, *places)
    assert "Reading 137.74 GiB 90 times in us-central1-a: paid" in out
    assert "$247.93" in out


def test_the_reading_is_priced_without_an_accelerator(plan_input):
    places = ("--bucket-location", "US", "--zone", "us-central1-a", "--epochs", "90")
    code, out = plan_input(*places)
    assert code == 0
    assert out.startswith("Reading 137.74 GiB 90 times in us-central1-a: paid")
    assert "$247.93" in out
    document = json.loads(plan_input(*places, "--json")[1])
    assert document == {"schema_version": 1, "places": document["places"]}
    priced = json.loads(plan_input(*RESNET, "--images-per-s", 1000, *places, "--json")[1])["places"]
    assert document["places"] == priced
    one = json.loads(plan_input(*places, "--dataset-bytes", "1GiB", "--json")[1])["places"]
    assert one["num_bytes"] == 2**30
    assert one["ways"][0]["read"]["transfer"] == pytest.approx(90 * 0.02)
    code, out = plan_input("--bucket-location", "mars-east1", "--zone", "us-central1-a")
    assert code == 3
    assert "unknown, it is not known what a read of mars-east1" in " ".join(out.split())


def test_the_commands_that_make_the_priced_copy_are_those_of_check_region(plan_input):
    places = ("--bucket-location", "US", "--zone", "europe-west4-b", "--bytes", "138GiB")
    _, out = plan_input(*places)
    copying = (
        "dataprep replicate gs://BUCKET/DATASET --to gs://NEW-BUCKET/DATASET --max-usd 8     # a dataset of dataprep"
    )
    commands = [
        "dataprep create-bucket gs://NEW-BUCKET --beside europe-west4-b",
        copying,
        "gcloud storage cp --recursive gs://BUCKET/DATASET gs://NEW-BUCKET/     # other data; the price needs "
        "--objects",
    ]
    shown = "".join(f"              {each}\n" for each in commands)
    assert f"  do          copy it beside the reader:\n{shown}" in out
    assert "anywhere-caches" not in out
    assert json.loads(plan_input(*places, "--json")[1])["places"]["commands"] == commands
    checked = CliRunner().invoke(check_region, ["gs://my-data/imagenet", *places]).output
    assert shown in checked.replace("my-data/imagenet", "BUCKET/DATASET").replace("BUCKET/imagenet", "BUCKET/DATASET")
    _, out = plan_input("--bucket-location", "US", "--zone", "us-central1-a")
    assert (
        "  do          or read it through a Rapid Cache:\n"
        "              gcloud storage buckets anywhere-caches create gs://BUCKET us-central1-a\n"
    ) in out


def test_the_reading_is_priced_where_the_rate_is_missing_and_the_rest_stays_undecided(capsys):
    words = ["--accelerator", "v5litepod-64", "--bytes", "138GiB", "--epochs", "90"]
    with pytest.raises(UsageError, match="the images/s of the accelerator are missing"):
        command.main(words, standalone_mode=False)
    assert capsys.readouterr().out == ""
    places = ["--bucket-location", "US", "--zone", "europe-west4-b"]
    command.main([*words[2:], *places], standalone_mode=False)
    alone = capsys.readouterr().out
    command.main([*words[2:], *places, "--json"], standalone_mode=False)
    alone_as_json = capsys.readouterr().out
    message = (
        "^only the reading is priced, because the images/s of the accelerator are missing: .*measures it on one host$"
    )
    for more, printed in (([], alone), (["--json"], alone_as_json), (["--model", "a model of one's own"], alone)):
        with pytest.raises(UndecidedError, match=message):
            command.main([*words, *places, *more], standalone_mode=False)
        assert capsys.readouterr().out == printed
    with pytest.raises(UsageError, match="give --images-per-s, or --step-ms and --global-batch"):
        command.main([*words, *places, "--step-ms", "100"], standalone_mode=False)
    with pytest.raises(UsageError, match="no TPU of this name is known"):
        command.main(["--accelerator", "v5lite", *places], standalone_mode=False)


@pytest.mark.parametrize(
    ("accelerator", "more"),
    [
        ("v5litepod-64", ()),
        ("v3-128", ("--loader", "torchvision", "--workers", "4")),
        ("v4-32", ("--cpu-ms-per-image", "2", "--bucket-gbps", "1")),
    ],
)
def test_what_the_hosts_deliver_is_printed_where_the_rate_is_missing(capsys, accelerator, more):
    words = ["--accelerator", accelerator, "--model", "resnet50", *more, "--bytes", "138GiB"]
    places = ["--bucket-location", "US", "--zone", "europe-west4-b"]
    command.main([*words, "--images-per-s", "1"], standalone_mode=False)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("  deliverable")]
    message = "^whether the hosts are fast enough is not known, because the images/s of the accelerator are missing: "
    with pytest.raises(UndecidedError, match=message):
        command.main([*words, *places], standalone_mode=False)
    printed = capsys.readouterr().out.splitlines()
    found = next(each for each in printed if each.startswith("deliverable"))
    assert found.partition(":")[0].split() == line.split()
    command.main([*words, "--images-per-s", "1", "--json"], standalone_mode=False)
    plan = json.loads(capsys.readouterr().out)["plan"]
    with pytest.raises(UndecidedError, match=message):
        command.main([*words, *places, "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"schema_version", "places", "deliverable"}
    deliverable = document["deliverable"]
    assert deliverable["images_per_s"] == pytest.approx(plan["images_per_s"])
    assert deliverable["limit"] == min(plan["resources"], key=lambda each: each["headroom"])["name"]
    rates = {each["name"]: pytest.approx(each["headroom"]) for each in plan["resources"]}
    assert deliverable["resources"] == rates
    for name, rate in deliverable["resources"].items():
        assert f"{rate:,.0f} by the {name}" in found


def test_the_number_of_objects_prices_their_reads_and_their_copies(plan_input):
    """2 TB are some 8,000 shards, or 18 million loose pictures, whose copies alone cost 90 dollars more."""
    places = ("--bucket-location", "us-central1", "--zone", "europe-west4", "--dataset-bytes", "2 TB")
    shards, loose = (
        json.loads(plan_input(*places, *more, "--json")[1])["places"] for more in ((), ("--objects", "18000000"))
    )
    assert (shards["objects"], shards["gets"], shards["objects_are_assumed"]) == (7451, 953675, True)
    assert (loose["objects"], loose["gets"], loose["objects_are_assumed"]) == (18000000, 18000000, False)
    for found, operations in ((shards, 7451 * 0.005 / 1000), (loose, 90)):
        assert found["ways"][-1]["once"]["operations"] == pytest.approx(operations)
        assert found["ways"][0]["read"]["operations"] == pytest.approx(found["gets"] * 0.0004 / 1000)
    assumed = (
        "requests and copies are priced for objects of 256 MiB, as dataprep's shards, of which 2 MiB are read at a "
        "time; for other data, such as loose pictures, give --objects N"
    )
    assert assumed in shards["notes"]
    assert f"note: {assumed}\n" in plan_input(*places)[1]
    assert assumed not in loose["notes"]
    assert loose["commands"][-1].endswith("     # other data")


@pytest.mark.parametrize(("months", "kept"), [("1", "kept 1 month"), ("2.5", "kept 2.5 months")])
def test_the_columns_of_a_price_name_the_currency_and_the_period(plan_input, months, kept):
    _, out = plan_input("--bucket-location", "US", "--zone", "us-central1-a", "--months", months)
    assert re.split("  +", out.splitlines()[1].strip()) == ["USD", "once", kept, "read", "requests", "sum"]


def test_tpu_is_another_name_of_the_option_for_the_accelerator(plan_input):
    rest = ("--model", "resnet50", "--images-per-s", 32000)
    assert plan_input("--tpu", "v4-32", *rest) == plan_input("--accelerator", "v4-32", *rest)


def test_a_zone_that_is_not_known_to_have_the_tpu_is_noted_as_by_tpu_plan(plan_input, capsys):
    words = ("--accelerator", "v5e-16", "--image-size", 224, "--images-per-s", 1000, "--bucket-location", "EU")
    for zone, noted in (("europe-west4-a", True), ("europe-west4-b", False), ("europe-west4", False)):
        command.main([str(word) for word in (*words, "--zone", zone)], standalone_mode=False)
        assert (f"note: {zone} is not known to have v5e; known are us-central1-a" in capsys.readouterr().err) is noted


def test_a_cache_gives_the_bucket_its_bandwidth(plan_input):
    _, out = plan_input(*RESNET, "--images-per-s", 1000, "--cache", "--json")
    assert json.loads(out)["pod"]["bucket_gbps"] == 100


def test_a_price_needs_both_places(plan_input):
    needed = "give both --bucket-location and --zone"
    with pytest.raises(UsageError, match=needed):
        plan_input("--zone", "us-central1-a")
    with pytest.raises(UsageError, match=needed):
        plan_input(*RESNET, "--images-per-s", 1000, "--bucket-location", "US")


def test_with_an_accelerator_a_zone_alone_prices_no_reading(plan_input, capsys):
    words = (*RESNET, "--images-per-s", 1000)
    plain = plan_input(*words)
    assert plan_input(*words, "--zone", "us-central2-b") == plain
    with pytest.raises(UsageError, match="us_central2"):
        plan_input(*words, "--zone", "us_central2")
    assert plan_input(*words, "--zone", "europe-west4-a", "--json")[0] == plain[0]
    plan_input(*words)
    command.main([*map(str, words), "--zone", "europe-west4-a"], standalone_mode=False)
    assert "note: europe-west4-a is not known to have v4" in capsys.readouterr().err


def test_the_size_of_the_data_has_the_name_that_check_region_has_too(plan_input):
    words = ("--bucket-location", "US", "--zone", "europe-west4-a")
    assert plan_input(*words, "--bytes", "500GB") == plan_input(*words, "--dataset-bytes", "500GB")


def test_vcpus_that_no_source_states_must_be_given(plan_input, capsys):
    one = ("--accelerator", "tpu7x-2", "--model", "resnet50", "--images-per-s", 1000)
    with pytest.raises(UsageError, match="the vCPUs of tpu7x-standard-1t are not known; give --vcpus"):
        plan_input(*one)
    assert "note: tpu7x-2 is xpk's name for 2 TensorCores" in capsys.readouterr().err
    assert plan_input(*one, "--vcpus", 50)[0] == 0


def test_a_mistyped_region_is_priced_with_a_note_that_names_the_nearest(capsys):
    places = ("--bucket-location", "us-cental1", "--zone", "us-central22-b")
    notes = [
        "us-central22 is no region that dataprep knows; did you mean us-central2?",
        "us-cental1 is no region that dataprep knows; did you mean us-central1?",
    ]
    command.main([*places, "--json"], standalone_mode=False)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [f"note: {each}" for each in notes]
    assert set(notes) <= set(json.loads(printed.out)["places"]["notes"])
    command.main([*RESNET, "--images-per-s", "1000", "--zone", "us-central22-b"], standalone_mode=False)
    assert f"note: {notes[0]}\n" in capsys.readouterr().err
