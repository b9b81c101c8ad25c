"""Plans as values: what is known of the data, requests to the bucket, all TPUs."""

import json

import click
import pytest

from dataprep.cloud.accelerators import machines
from dataprep.cloud.plan import STORED_SIDES, BucketLoad, EnoughTpus, InputPlan, InputRequest, plan_input
from dataprep.commands.build import command as build
from dataprep.errors import UndecidedError, UsageError
from dataprep.sources import DATASETS

V5E = {"accelerator": "v5e-64", "images_per_s": 57_600}
LOOSE = {"dataset_bytes": 1_300_000_000_000, "objects": 14_000_000}
BEYOND = "beyond the 5,000 of a bucket that has not grown yet"


def planned(**given: object) -> InputPlan:
    found = plan_input(InputRequest(**given))
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


def test_images_replace_the_bytes_of_a_measurement(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(
        json.dumps({"schema_version": 1, "sections": [{"bytes_per_image": 100_000.0, "cpu_ms_per_image": 2.0}]})
    )
    given = {**V5E, "measured": path, "dataset_bytes": 1_000_000}
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
    found = plan_input(InputRequest(accelerator="all", images_per_s=100_000))
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
        plan_input(InputRequest(accelerator="all", images_per_s=1000, **given))


def test_hosts_whose_vcpus_no_source_states_are_undecided():
    with pytest.raises(UndecidedError, match="the vCPUs of tpu7x-standard-1t are not known"):
        planned(accelerator="tpu7x-2", images_per_s=1000)
