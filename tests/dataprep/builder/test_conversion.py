"""Conversions of finished datasets: what stays the same, what is refused, and what a killed one leaves."""

import json
import shutil
from functools import partial

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.images import ImagePolicy
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.builder.recipe import build_shard
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import DataprepError, SourceError, UsageError
from dataprep.storage import open_storage
from dataprep.verification.run import verify
from tests.support.adoption import adopt_here
from tests.support.build_here import Quiet, in_this_process, whole
from tests.support.builds import digests
from tests.support.converting import content, converted, request
from tests.support.own_data import build_own
from tests.support.shared import made_once, shared_folder


@pytest.fixture(scope="module")
def pets(tmp_path_factory, originals):
    """A dataset of every kind of feature, in two splits and two shards of each."""
    folder = shared_folder(tmp_path_factory) / "converted-pets"
    return made_once(folder, lambda path: build_own(originals["pets"], path))


def is_whole(url):
    return not verify(str(url), deep=True, workers=0, progress=Quiet()).findings


def test_a_tour_through_all_formats_keeps_every_byte_of_images_and_annotations(pets, tmp_path):
    before = content(pets)
    previous = pets
    for number, fmt in enumerate(("tfrecord", "imagefolder", "webdataset")):
        output = tmp_path / str(number)
        manifest = converted(previous, output, fmt)
        assert content(output) == before
        assert is_whole(output)
        assert (manifest.name, manifest.shuffled, manifest.converted_from) == ("pets", True, previous.name)
        previous = output


def test_the_manifest_says_what_was_converted_and_no_path_of_the_machine(pets, tmp_path):
    manifest = converted(pets, tmp_path / "out", "tfrecord")
    source = read_manifest(open_storage(str(pets)))
    assert manifest.options["converted"]["plan_hash"] == source.plan_hash
    assert str(tmp_path) not in (tmp_path / "out/dataset.json").read_text()
    moved = shutil.copytree(pets, tmp_path / "moved/converted-pets")
    converted(moved, tmp_path / "again", "tfrecord")
    assert digests(tmp_path / "again") == digests(tmp_path / "out")


def test_the_order_of_the_source_is_kept_if_requested(pets, tmp_path):
    from tests.support.converting import read_all_of

    converted(pets, tmp_path / "out", "tfrecord", how={"shuffle": False})
    assert read_all_of(tmp_path / "out", "train") == read_all_of(pets, "train")
    assert is_whole(tmp_path / "out")
    one = converted(pets, tmp_path / "one", splits=("val",), how={"shuffle": False, "was_shuffled": True})
    assert (one.shuffled, [split.name for split in one.splits]) == (True, ["val"])


def test_images_that_change_are_changed_as_in_a_build(pets, tmp_path):
    manifest = converted(pets, tmp_path / "out", "tfrecord", images=ImagePolicy(short_side=12, quality=80))
    keys = {key for key, _, _ in content(tmp_path / "out")["splits"]["train"][1]}
    assert keys == {key for key, _, _ in content(pets)["splits"]["train"][1]}
    assert is_whole(tmp_path / "out")
    assert manifest.splits[0].num_bytes < read_manifest(open_storage(str(pets))).splits[0].num_bytes


def members_of(manifest):
    return {name: each.member for name, each in manifest.features.items() if each.member}


def test_members_of_features_are_kept_unless_others_are_chosen(pets, tmp_path):
    first = converted(pets, tmp_path / "first", members=(("patient", "patient.txt"), ("year", "year")))
    assert members_of(first) == {"caption": "txt", "patient": "patient.txt", "year": "year"}
    again = converted(tmp_path / "first", tmp_path / "again", members=(("caption", "json"),), how={"shuffle": False})
    assert members_of(again) == {"patient": "patient.txt", "year": "year"}
    assert content(tmp_path / "again") == content(pets)
    assert is_whole(tmp_path / "again")
    assert members_of(converted(tmp_path / "first", tmp_path / "records", "tfrecord")) == {}


def test_formats_without_members_refuse_a_choice(pets, tmp_path):
    with pytest.raises(UsageError, match="`members`: tfrecord has none; leave it out, or choose `format` webdataset"):
        converted(pets, tmp_path / "out", "tfrecord", members=(("caption", "txt"),))


@pytest.fixture(scope="module")
def physical(tmp_path_factory, originals):
    """coco-dup5 with all five passes as bytes."""
    options = BuildOptions(
        dataset="coco-dup5", format="webdataset", splits=("train",), repeat="physical", num_shards=1, allow_partial=True
    )
    path = tmp_path_factory.mktemp("physical")
    asked = BuildRequest(options=options, source_url=str(originals["coco"]), output_url=str(path), max_reject_ratio=1.0)
    run_build(asked, in_this_process, Quiet())
    return path


def test_stored_passes_become_one_and_the_epoch_stays_as_long(physical, tmp_path):
    virtual = converted(physical, tmp_path / "virtual", "tfrecord")
    (split,) = virtual.splits
    assert split.repeats == {"count": 5, "stored": 1}
    assert split.samples * 5 == read_manifest(open_storage(str(physical))).splits[0].samples
    again = converted(tmp_path / "virtual", tmp_path / "again", "webdataset", repeat="physical", num_shards=1)
    assert content(tmp_path / "again") == content(physical)
    assert again.splits[0].repeats == {"count": 5, "stored": 5}
    folder = converted(tmp_path / "again", tmp_path / "folder", "imagefolder", repeat="physical")
    assert folder.splits[0].samples == split.samples
    back = converted(tmp_path / "folder", tmp_path / "back", "webdataset")
    assert content(tmp_path / "back") == content(tmp_path / "virtual")
    assert back.splits[0].repeats["count"] == 5
    assert all(is_whole(tmp_path / name) for name in ("virtual", "again", "folder", "back"))


def test_a_stopped_conversion_goes_on_and_gives_the_same_bytes(pets, tmp_path):
    converted(pets, tmp_path / "whole")
    asked = request(pets, tmp_path / "stopped")

    def stopping(job, indexes):
        yield build_shard(job, indexes[0])
        raise DataprepError("stopped")

    with pytest.raises(DataprepError, match="stopped"):
        run_build(asked, stopping, Quiet())
    assert len(list((tmp_path / "stopped").rglob("receipts/*"))) == 1
    whole(asked)
    assert digests(tmp_path / "stopped") == digests(tmp_path / "whole")
    assert run_build(asked, stopping, Quiet()).shards_built == 0


def test_disk_and_bucket_give_the_same_shards(pets, tmp_path, bucket_url):
    converted(pets, tmp_path / "out")
    converted(pets, f"{bucket_url}/out", "imagefolder")
    converted(f"{bucket_url}/out", f"{bucket_url}/back")
    manifest = read_manifest(open_storage(f"{bucket_url}/back"))
    assert manifest.converted_from == f"{bucket_url}/out"
    assert content(f"{bucket_url}/back") == content(pets)
    assert is_whole(f"{bucket_url}/back")


def changed(path, at=-700):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def longer(path):
    path.write_bytes(path.read_bytes() + b"\0")


def replaced_manifest(path):
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"revision": 2}))


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("index/train.parquet", longer, "the manifest has"),
        ("index/train.parquet", partial(changed, at=10), "the manifest has"),
        ("train/pets-train-00000-of-00002.tar", longer, "dataset.json lists"),
        ("train/pets-train-00000-of-00002.tar", lambda path: path.unlink(), "missing, but dataset.json lists it"),
        ("train/pets-train-00000-of-00002.tar", partial(changed, at=515), "has CRC32C"),
        ("dataset.json", replaced_manifest, "was replaced meanwhile"),
        ("dataset.json", lambda path: path.unlink(), "no dataset there"),
    ],
)
def test_a_source_that_changed_meanwhile_is_an_error(pets, tmp_path, file, change, words):
    source = shutil.copytree(pets, tmp_path / "source")
    asked = request(source, tmp_path / "out")
    change(source / file)
    with pytest.raises(DataprepError, match=words) as raised:
        whole(asked)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out/dataset.json").exists()


def test_annotations_that_changed_are_found_by_their_checksums(pets, tmp_path):
    for fmt, file in (("imagefolder", "train/metadata.jsonl"), ("webdataset", "train/pets-train-00000-of-00002.tar")):
        converted(pets, tmp_path / fmt, fmt)
        path = tmp_path / fmt / file
        path.write_bytes(path.read_bytes().replace(b"a cat on a mat", b"a dog on a mat", 1))
        with pytest.raises(SourceError, match=r"annotations of .* do not have the checksum"):
            converted(tmp_path / fmt, tmp_path / f"{fmt}-out")


def test_adopted_data_are_converted_wherever_their_index_is(pets, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(pets / "train", data / "train")
    adopt_here(data, tmp_path / "index")
    manifest = converted(tmp_path / "index", tmp_path / "out", "tfrecord", how={"fields": ("caption", "year")})
    assert (sorted(manifest.features), manifest.splits[0].samples) == (["caption", "year"], 60)
    assert manifest.converted_from == "index"
    assert is_whole(tmp_path / "out")
    longer(next(iter(sorted((data / "train").iterdir()))))
    with pytest.raises(UsageError, match="have changed since they were adopted"):
        converted(tmp_path / "index", tmp_path / "again")


def test_an_output_that_holds_another_conversion_is_refused(pets, tmp_path):
    converted(pets, tmp_path / "out")
    with pytest.raises(UsageError, match="another"):
        converted(pets, tmp_path / "out", seed=1)


def test_a_request_of_another_command_is_refused(pets, tmp_path):
    asked = request(pets, tmp_path / "out")
    plain = BuildRequest(
        options=asked.options, source_url=str(pets), output_url=str(tmp_path / "out"), max_reject_ratio=0.0
    )
    with pytest.raises(UsageError, match="dataprep convert"):
        run_build(plain, lambda job, indexes: iter(()), Quiet())


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_rows_of_the_web_keep_the_fields_that_are_named(fetched, tmp_path, fmt):
    source = fetched(fmt)
    before = read_manifest(open_storage(str(source)))
    manifest = converted(source, tmp_path / "out", "imagefolder", how={"fields": ("caption", "url")}, num_shards=1)
    assert {name: feature.kind for name, feature in manifest.features.items()} == {"caption": "text", "url": "text"}
    assert (manifest.name, manifest.splits[0].samples) == ("laion", before.splits[0].samples)
    assert is_whole(tmp_path / "out")
    lines = (tmp_path / "out/train/metadata.jsonl").read_text().splitlines()
    assert all(json.loads(line)["url"].startswith("http") for line in lines)
