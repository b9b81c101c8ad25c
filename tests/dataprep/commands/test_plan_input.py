"""`dataprep plan-input` as it is called: output, exit codes, refusals."""

import json
import re
import shlex

import click
import pytest

from dataprep.cloud.accelerators import machines
from dataprep.cloud.capacity import cost_from_table, host_cores, measured_here
from dataprep.commands.build import command as build
from dataprep.commands.convert import command as convert
from dataprep.commands.plan_input import PACK, STORED_SIDES, BucketLoad, EnoughTpus, InputPlan, command
from dataprep.commands.plan_input import plan_input as plan_function
from dataprep.errors import UndecidedError, UsageError
from dataprep.sources import DATASETS

MAE = ("--accelerator", "v3-256", "--image-size", "448", "--images-per-s", "4096")
RESNET = ("--accelerator", "v4-32")


@pytest.fixture
def plan_input(capsys, monkeypatch):
    """Run the command: its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str]:
        code = command.main([str(argument) for argument in arguments], standalone_mode=False)
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def bench_json(tmp_path):
    """Write the JSON of a benchmark, with more in its section or beside it; its path."""

    def write(section=None, **more):
        path = tmp_path / "bench.json"
        sections = [{"bytes_per_image": 100_000.0, "cpu_ms_per_image": 2.0, **(section or {})}]
        path.write_text(json.dumps({"schema_version": 1, "sections": sections, **more}))
        return path

    return write


def test_hosts_that_feed_the_accelerator_exit_with_0(plan_input):
    code, out = plan_input(*MAE)
    assert code == 0
    assert out.startswith("v3-256 is fed with at least 67.7-fold headroom: 128 images/s needed per host;")
    for fact in ("128 chips, 256 cores", "32, each 96 vCPUs, 334 GB RAM, network not published", "at 448 pixels"):
        assert fact in out
    assert "1,281,167 images of imagenet" in out
    assert "/tmp" not in out


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
    _, out = plan_input("--accelerator", accelerator, "--image-size", 448, "--images-per-s", asked)
    out = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out.replace("/dev/shm/…", "")


def test_json_has_the_figures_of_the_text(plan_input):
    code, out = plan_input(*MAE, "--json")
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


def test_costs_of_the_table_are_those_of_the_hosts_cores(plan_input):
    """v3's hosts have slower cores than the machine of the table; the plan says how much slower, and why."""
    words = MAE
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
        f"  cores        Intel Skylake, each core counted as {v3.speed} of a core that takes {here_ms:.2f} ms "
        f"(measured {row.date} on {row.machine}); published case: {v3.ground}\n"
    ) in out
    _, out = plan_input("--accelerator", "tpu7x-2x2x1", "--images-per-s", 1000)
    assert "  cores        processor not known, each core counted as " in out


def test_cores_count_like_those_of_the_machine_of_the_users_measurement(plan_input, bench_json):
    path = bench_json()
    words = (*RESNET, "--images-per-s", 8000, "--measured", path)
    document = json.loads(plan_input(*words, "--json")[1])
    assert document["sentence"].startswith("If a host's core is as fast as yours, v4-32 is fed with ")
    assert (document["cost"]["cpu_ms"], document["cost"]["core_speed"]) == (2.0, 1.0)
    assert "; assumed, because the core that measured is not known\n" in plan_input(*words)[1]
    _, out = plan_input(*RESNET, "--images-per-s", 60000, "--measured", path)
    assert out.startswith("Cannot tell whether v4-32 is fed"), "this does not depend on the cores"
    assert "give --host-gbps." in out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--accelerator", "all", "--images-per-s", 1, "--host-gbps", 1), "--host-gbps applies to one TPU; give its"),
        (("--accelerator", "v6-8", "--images-per-s", 1), "v6-8: no TPU of this name is known; nearest: v6e-8"),
        ((*RESNET, "--images-per-s", 1, "--dataset-bytes", "0"), "--dataset-bytes must be 1 or more, got 0"),
    ],
)
def test_missing_or_wrong_options_are_refused(plan_input, arguments, message):
    with pytest.raises(UsageError, match=message):
        plan_input(*arguments)


def test_figures_are_read_from_a_measurement_file(plan_input, bench_json):
    path = bench_json(settings={"image_size": 224})
    _, out = plan_input(*RESNET, "--images-per-s", 8000, "--measured", path, "--json")
    document = json.loads(out)
    assert (document["cost"]["cpu_ms"], document["cost"]["num_bytes"]) == (2.0, 100_000.0)
    assert document["cost"]["source"] == "bench.json"
    with pytest.raises(UsageError, match="was measured at 224 pixels, but --image-size is 448"):
        plan_input(*MAE, "--measured", path)
    with pytest.raises(UsageError, match=r"bench\.json has no torchvision; it has dataprep"):
        plan_input(*RESNET, "--images-per-s", 8000, "--measured", path, "--loader", "torchvision")
    path.write_text("{")
    with pytest.raises(UsageError, match="cannot be read as JSON"):
        plan_input(*RESNET, "--images-per-s", 8000, "--measured", path)


@pytest.mark.parametrize("url", [None, "gs://bucket/my data/", "/data/shards"])
def test_a_smaller_dataset_is_made_by_the_command_that_is_printed(plan_input, bench_json, url):
    path = bench_json({"url": url} if url else {})
    _, out = plan_input(*RESNET, "--images-per-s", 60000, "--measured", path)
    (command,) = [line.removeprefix("resize: ") for line in out.splitlines() if line.startswith("resize: ")]
    plain = (url or "URL").rstrip("/")
    words = ["dataprep", "convert", plain, "--output", f"{plain}-256", "--format", "webdataset", "--resize", "256"]
    assert shlex.split(command) == words
    parsed = convert.make_context("convert", words[2:])
    assert (parsed.params["url"], parsed.params["resize"]) == (plain, 256)


def test_the_size_of_an_image_is_said_to_be_assumed(plan_input):
    words = (*RESNET, "--images-per-s", 8000, "--dataset-bytes", "500GB")
    _, out = plan_input(*words)
    assert "  assumed      115.4 kB per image, the mean of imagenet: give --images as well\n" in out
    assert json.loads(plan_input(*words, "--json")[1])["cost"]["bytes_source"] == "mean of imagenet"
    _, out = plan_input(*words, "--images", 5_000_000)
    assert "  assumed  " not in out
    assert " min for the 5,000,000 images\n" in out
    _, out = plan_input(*words[:4], "--images", 5_000_000)
    assert "  assumed      115.4 kB per image, the mean of imagenet: give --dataset-bytes as well\n" in out
    assert "  assumed  " not in plan_input(*RESNET, "--images-per-s", 8000)[1]
    _, out = plan_input(*MAE, "--dataset", "coco-dup5")
    assert "163.3 kB" in out
    assert "1,208,450 images of coco-dup5" in out


def test_what_the_hosts_can_deliver_is_shown(plan_input):
    _, out = plan_input(*RESNET, "--images-per-s", 8000)
    plan = json.loads(plan_input(*RESNET, "--images-per-s", 8000, "--json")[1])["plan"]
    rate = plan["images_per_s"]
    assert rate == pytest.approx(8000 * plan["headroom"])
    assert f"  deliverable  ≥ {rate:,.0f} images/s from all hosts, {rate / 4:,.0f} from each" in out


def test_changes_that_make_no_difference_are_left_out(plan_input):
    _, out = plan_input(*RESNET, "--images-per-s", 8000)
    assert "What if: no known change makes a difference." in out
    _, out = plan_input(*RESNET, "--images-per-s", 60000)
    shares = [
        line.split()[-2] for line in out[out.index("as it is") :].splitlines() if line.rstrip().endswith("network")
    ]
    assert len(shares) > 1
    assert len(set(shares[:1]) & set(shares[1:])) == 0


def test_what_the_verdict_leaves_out_is_said_below_it(plan_input):
    words = ("--accelerator", "v5litepod-16", "--images-per-s", 16000)
    _, out = plan_input(*words)
    (left_out,) = json.loads(plan_input(*words, "--json")[1])["not_counted"]
    assert re.match(r"the bucket's bandwidth: 14\.7\d Gbit/s are needed from your project's quota", left_out)
    assert left_out.endswith("Quotas; give it as --bucket-gbps")
    assert out.splitlines()[2] == f"  not counted  {left_out}"
    assert "not counted" not in plan_input(*words, "--bucket-gbps", 200)[1]
    assert json.loads(plan_input(*words, "--bucket-gbps", 200, "--json")[1])["not_counted"] == []


def test_the_hours_of_epochs_say_how_long_the_accelerator_waits_and_for_what(plan_input):
    words = (*RESNET, "--images-per-s", 8000, "--epochs", 90)
    assert "  training     4.0 h for 90 epochs, 64.1 chip-hours; no waiting for images\n" in plan_input(*words)[1]
    code, out = plan_input(*RESNET, "--images-per-s", 40_000, "--epochs", 90, "--host-gbps", 1)
    assert code == 1
    assert re.search(r"  training     [\d,.]+ h for 90 .*; [\d,.]+ h of them waiting for images, .* the network\n", out)


def test_loose_pictures_are_told_once_to_be_packed(plan_input):
    loose = ("--dataset-bytes", "1.3 TB", "--objects", 14_000_000)
    rate = ("--accelerator", "v5e-64", "--images-per-s", 50_000)
    assert plan_input(*rate, *loose)[1].splitlines()[-1] == f"pack: {PACK}"


def test_the_table_of_all_tpus_has_the_rows_of_the_json_and_fits_into_80_columns(plan_input):
    words = ("--accelerator", "all", "--images-per-s", 32_000)
    rows = json.loads(plan_input(*words, "--json")[1])["tpus"]
    code, out = plan_input(*words)
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "Hosts for 32,000 images/s of 224 pixels with dataprep")
    table = lines[2 : lines.index("")]
    assert max(map(len, table)) <= 80
    assert [line.split()[:3] for line in table] == [
        [row["accelerator"], str(row["hosts"]), row["machine_type"]] for row in rows
    ]
    assert [("≥" in line) for line in table] == [row["at_least"] for row in rows]
    assert "tpu7x-standard-1t: its vCPUs are not known" in lines
    assert "ct6e-standard-1t: 2 hosts would be needed, more than the largest TPU of this type has" in lines
    assert any(line.startswith("cores of v4, v5e: each counted as 0.63 of one that measured; ") for line in lines)


def test_a_rate_that_no_tpu_can_be_fed_with_exits_with_1(plan_input):
    code, out = plan_input("--accelerator", "all", "--images-per-s", 1e12, "--json")
    document = json.loads(out)
    assert (code, document["tpus"]) == (1, [])
    assert set(document["left_out"]) == {name for name, machine in machines().items() if machine.slices}


# Plans as values


V5E = {"accelerator": "v5e-64", "images_per_s": 57_600}
LOOSE = {"dataset_bytes": 1_300_000_000_000, "objects": 14_000_000}
BEYOND = "beyond the 5,000 of a bucket that has not grown yet"


def planned(**given: object) -> InputPlan:
    found = plan_function(**given)
    assert isinstance(found, InputPlan)
    return found


def test_loose_pictures_are_read_with_a_request_each_and_the_sentence_says_so():
    found = planned(**V5E, **LOOSE)
    assert found.sentence.startswith("v5litepod-64 is fed with ")
    assert found.sentence.endswith(
        " However, objects of 92.9 kB need 57,600 requests/s, but a bucket serves only about 5,000 at first, and more "
        "as the load grows: pack them into shards (dataprep build folder), which need 2,550."
    )
    assert found.load.line.endswith(f" in 57,600 requests/s of 92.9 kB, {BEYOND}")
    load = found.document()["bucket"]
    assert (load["requests_per_s"], load["first_requests_per_s"]) == (pytest.approx(57_600), 5000)
    words = load["command"].split()
    assert words[:3] == ["dataprep", "build", "folder"]
    folder = build.get_command(click.Context(build), "folder")
    folder.make_context("folder", words[3:])  # refuses options that do not exist


def test_shards_and_a_rate_that_a_new_bucket_serves_need_no_packing():
    size = {"dataset_bytes": LOOSE["dataset_bytes"]}
    for given in ({**V5E, **size}, {**V5E, **LOOSE, "images_per_s": 4000}):
        assert planned(**given).load.loose == ""
        assert planned(**given).load.document()["command"] is None
    assert planned(**V5E, **size, objects=5000).load.line.endswith(" requests/s of 2 MiB")


def test_requests_follow_from_the_objects():
    load = {"images_per_s": 1.0, "num_bytes": 10 * 2**20}
    assert BucketLoad(**load, bytes_per_image=2**20 / 10, objects=1).requests_per_s == pytest.approx(5 / 100)
    assert BucketLoad(**load, bytes_per_image=2**20 / 10, objects=100).requests_per_s == pytest.approx(1)
    assert BucketLoad(**load, bytes_per_image=10 * 2**20, objects=None).requests_per_s == pytest.approx(5)


def test_training_and_requests_count_the_same_images():
    """An object smaller than a read is taken for an image, unless `images` says another number."""
    found = planned(**V5E, **LOOSE, epochs=90)
    assert found.training.images == 90 * 14_000_000
    assert found.cost.bytes_source == "mean of the objects"
    found = planned(**V5E, **LOOSE, images=13_000_000, epochs=90)
    assert found.training.images == 90 * 13_000_000
    assert (found.cost.image.num_bytes, found.cost.bytes_source) == (100_000, "given")
    assert found.load.requests_per_s == pytest.approx(57_600 * 14 / 13)


def test_training_takes_as_long_as_its_images_at_the_rate_that_is_reached():
    fed = planned(accelerator="v4-32", images_per_s=8000, epochs=90).training
    assert fed.images == 90 * 1_281_167
    assert fed.hours == pytest.approx(90 * 1_281_167 / 8000 / 3600)
    assert (fed.waiting_hours, fed.chip_hours) == (0, pytest.approx(16 * fed.hours))
    found = planned(accelerator="v4-32", images_per_s=40_000, epochs=90, host_gbps=1)
    assert found.plan.limit == "network"
    assert found.training.hours == pytest.approx(90 * 1_281_167 / found.plan.images_per_s / 3600)
    alone_hours = 90 * 1_281_167 / 40_000 / 3600
    assert found.training.waiting_hours == pytest.approx(found.training.hours - alone_hours)
    assert planned(accelerator="v4-32", images_per_s=8000).training is None


def test_images_replace_the_bytes_of_a_measurement(bench_json):
    given = {**V5E, "measured": bench_json(), "dataset_bytes": 1_000_000}
    assert planned(**given).cost.image.num_bytes == 100_000
    assert planned(**given, objects=5).cost.image.num_bytes == 100_000
    assert planned(**given, images=5).cost.image.num_bytes == 200_000


def test_every_dataset_with_a_published_number_of_images_can_be_planned():
    published = [name for name, each in DATASETS.items() if each.facts["train"].samples and not each.generated]
    assert sorted(STORED_SIDES) == sorted(published)
    for name in ("imagenet", "coco", "coco-dup5"):
        assert planned(**V5E, dataset=name).stored.num_bytes > 1e9
    coco = planned(**V5E, dataset="coco")
    assert coco.stored.num_bytes == 19_336_861_798, "the archive of annotations holds no images"


def test_a_dataset_of_unpublished_size_gives_the_number_of_images():
    message = "the bytes of the 13,153,500 images of imagenet-21k were not published; give `dataset_bytes`"
    with pytest.raises(UsageError, match=message):
        planned(**V5E, dataset="imagenet-21k")
    found = planned(**V5E, dataset="imagenet-21k", dataset_bytes=1_300_000_000_000, epochs=90)
    assert found.cost.image.num_bytes == pytest.approx(1.3e12 / 13_153_500)
    assert found.training.images == 90 * 13_153_500
    assert found.stored.short_side is None
    assert "resize" not in {each.name for each in found.plan.what_ifs}


def test_every_tpu_of_the_list_is_fed_with_the_headroom_of_its_own_plan():
    found = plan_function(accelerator="all", images_per_s=100_000)
    assert isinstance(found, EnoughTpus)
    document = found.document()
    assert len(document["tpus"]) >= 6
    order = [(row["hosts"], -row["headroom"]) for row in document["tpus"]]
    assert order == sorted(order)
    for row in document["tpus"]:
        one = planned(accelerator=row["accelerator"], images_per_s=100_000)
        assert (one.plan.verdict, one.accelerator.hosts) == ("fed", row["hosts"])
        assert one.accelerator.machine.machine_type == row["machine_type"]
        assert (one.plan.headroom, one.plan.limit) == (pytest.approx(row["headroom"]), row["limit"])
        cores = {"core_speed": one.cost.core_speed, "core_basis": one.cost.core_basis}
        assert document["cores"][row["generation"]] == cores
    listed = {row["machine_type"] for row in document["tpus"]} | document["left_out"].keys()
    assert listed == {name for name, machine in machines().items() if machine.slices}


@pytest.mark.parametrize("given", [{"host_gbps": 4.0}, {"bucket_gbps": 2.0}, {"epochs": 2}, {"images": 5}])
def test_figures_of_one_tpu_are_refused_where_all_are_listed(given):
    (name,) = given
    with pytest.raises(UsageError, match=f"`{name}` applies to one TPU; give its name as `accelerator` instead of all"):
        plan_function(accelerator="all", images_per_s=1000, **given)


def test_hosts_whose_vcpus_no_source_states_are_undecided():
    with pytest.raises(UndecidedError, match="the vCPUs of tpu7x-standard-1t are not known"):
        planned(accelerator="tpu7x-2", images_per_s=1000)
