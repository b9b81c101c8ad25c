"""What `dataprep plan-input` knows of the data: one number of images, and the requests that read them."""

from __future__ import annotations

import json

import pytest

from dataprep.commands.build_folder import command as build_folder
from dataprep.commands.plan_data import STORED_SIDES, is_loose, requests_per_image
from dataprep.commands.plan_input import command
from dataprep.errors import UsageError
from dataprep.sources import DATASETS

V5E = ("--accelerator", "v5e-64", "--model", "vit_large", "--images-per-s", 57600)
LOOSE = ("--dataset-bytes", "1.3 TB", "--objects", 14_000_000)
PLACES = ("--bucket-location", "us-central1", "--zone", "europe-west4")
PRICED = ("--epochs", 90, "--chip-hour-usd", 1.2)


@pytest.fixture
def plan_input(capsys):
    """Run the command and return what it printed."""

    def run(*arguments: object) -> str:
        command.main([str(argument) for argument in arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("places", [(), PLACES])
def test_loose_pictures_are_read_with_a_request_each_and_the_sentence_says_so(plan_input, places):
    out = plan_input(*V5E, *LOOSE, *places)
    sentence = out.splitlines()[0]
    assert sentence.startswith("v5litepod-64 is fed with ")
    assert sentence.endswith(
        " But objects of 92.9 kB take 57,600 requests/s, of which a bucket serves about 5,000 at first, and more only "
        "as the load grows: pack them into shards (dataprep build folder), which take 2,550."
    )
    assert " in 57,600 requests/s of 92.9 kB, beyond the 5,000 of a bucket that has not grown yet\n" in out
    pack = out.splitlines()[-1].removeprefix("pack: ")
    document = json.loads(plan_input(*V5E, *LOOSE, *places, "--json"))
    assert document["sentence"] == sentence
    found = document["bucket"]
    assert (found["requests_per_s"], found["first_requests_per_s"]) == (pytest.approx(57_600), 5000)
    assert found["command"] == pack
    words = pack.split()
    assert words[:3] == ["dataprep", "build", "folder"]
    build_folder.make_context("folder", words[3:])  # refuses options that do not exist


def test_shards_and_a_rate_that_a_new_bucket_serves_need_no_packing(plan_input):
    for more in ((*V5E, "--dataset-bytes", "1.3 TB"), (*V5E[:4], "--images-per-s", 4000, *LOOSE)):
        out = plan_input(*more)
        assert "pack" not in out
        assert json.loads(plan_input(*more, "--json"))["bucket"]["command"] is None
    assert " requests/s of 2 MiB" in plan_input(*V5E, "--dataset-bytes", "1.3 TB", "--objects", 5000)


def test_training_and_requests_count_the_same_images(plan_input):
    """An object smaller than a read is taken for an image, unless --images says another number."""
    document = json.loads(plan_input(*V5E, *LOOSE, *PLACES, *PRICED, "--json"))
    assert document["training"]["images"] == 90 * document["places"]["gets"] == 90 * 14_000_000
    assert document["cost"]["bytes_source"] == "mean of the objects"
    out = plan_input(*V5E, *LOOSE)
    assert "  assumed      92.9 kB an image, the mean of the objects: give --images or --bytes-per-image\n" in out
    more = ("--images", 13_000_000)
    document = json.loads(plan_input(*V5E, *LOOSE, *more, *PRICED, "--json"))
    assert document["training"]["images"] == 90 * 13_000_000
    assert (document["cost"]["num_bytes"], document["cost"]["bytes_source"]) == (100_000, "given")
    assert document["bucket"]["requests_per_s"] == pytest.approx(57_600 * 14 / 13)
    out = plan_input(*V5E, *LOOSE, *more)
    assert "  assumed" not in out
    assert " min for the 13,000,000 images\n" in out


def test_a_number_of_images_goes_with_one_other_figure(plan_input):
    found = json.loads(plan_input(*V5E, "--images", 1000, "--bytes-per-image", "50kB", "--json"))
    assert (found["stored"]["num_bytes"], found["cost"]["num_bytes"]) == (50_000_000, 50_000)
    out = plan_input(*V5E, "--images", 14_000_000)
    assert "115.4 kB an image, the mean of imagenet: give --dataset-bytes or --bytes-per-image" in out
    priced = json.loads(plan_input(*PLACES, "--images", 1000, "--bytes-per-image", "50kB", "--json"))["places"]
    assert priced["num_bytes"] == 50_000_000
    message = "--bytes-per-image 110,000: --dataset-bytes and --images give 100,000 bytes an image; leave one of"
    with pytest.raises(UsageError, match=message):
        plan_input(*V5E, "--images", 10, "--dataset-bytes", "1MB", "--bytes-per-image", "110kB")


def test_images_replace_the_bytes_of_a_measurement(plan_input, tmp_path):
    path = tmp_path / "bench.json"
    section = {"bytes_per_image": 100_000.0, "rows": [{"loader": "dataprep", "cpu_ms_per_image": 2.0}]}
    path.write_text(json.dumps({"schema_version": 1, "sections": [section]}))
    words = (*V5E, "--measured", path, "--dataset-bytes", "1MB", "--json")
    assert json.loads(plan_input(*words))["cost"]["num_bytes"] == 100_000
    assert json.loads(plan_input(*words, "--objects", 5))["cost"]["num_bytes"] == 100_000
    assert json.loads(plan_input(*words, "--images", 5))["cost"]["num_bytes"] == 200_000


def test_every_dataset_with_a_published_number_of_images_can_be_planned(plan_input):
    published = [name for name, each in DATASETS.items() if each.facts["train"].samples and not each.generated]
    assert sorted(STORED_SIDES) == sorted(published)
    for name in ("imagenet", "coco", "coco-dup5"):
        assert f"images of {name}\n" in plan_input(*V5E, "--dataset", name)
    coco = json.loads(plan_input(*V5E, "--dataset", "coco", "--json"))
    assert coco["stored"]["num_bytes"] == 19_336_861_798, "the archive of annotations holds no images"


def test_a_dataset_of_unpublished_size_gives_the_number_of_images(plan_input):
    message = "--dataset imagenet-21k: the bytes of its 13,153,500 images were not published; give --dataset-bytes"
    words = ("--dataset", "imagenet-21k")
    for more in (V5E, PLACES):
        with pytest.raises(UsageError, match=message):
            plan_input(*more, *words)
    document = json.loads(plan_input(*V5E, *words, "--dataset-bytes", "1.3 TB", *PRICED, "--json"))
    assert document["cost"]["num_bytes"] == pytest.approx(1.3e12 / 13_153_500)
    assert document["training"]["images"] == 90 * 13_153_500
    assert document["stored"]["short_side"] is None
    assert "resize" not in {each["name"] for each in document["plan"]["what_ifs"]}
    words = (*words, "--bytes-per-image", "100kB")
    assert json.loads(plan_input(*V5E, *words, "--json"))["stored"]["num_bytes"] == 1_315_350_000_000
    with pytest.raises(UsageError, match="--resize 256: the sides of imagenet-21k are not known; give --stored-side"):
        plan_input(*V5E, *words, "--resize", 256)
    assert "resize" in plan_input(*V5E, *words, "--resize", 256, "--stored-side", 400, "--json")


def test_objects_smaller_than_a_read_are_loose():
    assert is_loose(2**21 - 1, 1)
    assert not is_loose(2**21, 1)
    assert requests_per_image(10 * 2**20, images=100, objects=1) == 5 / 100
    assert requests_per_image(10 * 2**20, images=100, objects=100) == 1
    assert requests_per_image(3 * 2**20, images=1, objects=None) == 1.5
