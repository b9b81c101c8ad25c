"""`append`: what a source has more than its dataset comes as new shards, and nothing else changes."""

import json
import shutil
from dataclasses import replace

import pytest

import dataprep
from dataprep.builder.driver import run_build
from dataprep.builder.recipe import build_shard
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.paths import BUILD
from dataprep.dataset.records import Change
from dataprep.errors import BuildError, SourceError, UsageError
from dataprep.storage import open_storage
from tests.support.build_here import Quiet
from tests.support.builds import build_arguments, digests, succeeds
from tests.support.finished import details, verify_here
from tests.support.interop import read_with_tfds
from tests.support.own_data import Notes, annotated_rows, build_own, class_folders, picture, request, write_files

FORMATS = ("webdataset", "tfrecord", "imagefolder")


def grow(source, output, fmt="webdataset", progress=None, **own):
    """Append in this process."""
    asked = replace(request(source, output, fmt, **own), append=True)
    return run_build(asked, lambda job, indexes: (build_shard(job, at) for at in indexes), progress or Quiet())


def keys_of(url):
    storage = open_storage(str(url))
    return {
        split.name: [
            key
            for at in range(len(split.shards))
            for key in open_index(storage, split, compare=True).read_group(at, ["key"]).column(0).to_pylist()
        ]
        for split in read_manifest(storage).splits
    }


def assert_sound(url, *, deep=False):
    report = verify_here(url, deep=deep)
    assert report.findings == (), details(report)


@pytest.fixture
def pets(tmp_path):
    return class_folders(tmp_path / "pets")


@pytest.fixture
def url(pets, tmp_path):
    """A dataset of the pets."""
    build_own(pets, tmp_path / "out")
    return str(tmp_path / "out")


MORE = {f"train/cats/new {number}.jpg": picture(200 + number) for number in range(5)}


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_new_comes_as_shards_after_the_others(pets, tmp_path, fmt, storage_url):
    first = build_own(pets, storage_url, fmt)
    before, keys = digests(storage_url), keys_of(storage_url)
    result = grow(write_files(pets, MORE), storage_url, fmt)
    assert (result.assembled, result.manifest) == (True, read_manifest(open_storage(storage_url)))
    assert_sound(storage_url, deep=True)
    train, val = result.manifest.splits
    assert (train.samples, val) == (19, first.splits[1])
    assert train.shards[: len(first.splits[0].shards)] == first.splits[0].shards
    assert result.manifest.changes == (Change(2, "train", "added", 2, 14),)
    assert (result.manifest.revision, result.manifest.plan_hash) == (2, first.plan_hash)
    after, grown = digests(storage_url), keys_of(storage_url)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed <= {"dataset.json", "index/train.parquet", "dataset_info.json"}
    assert grown["train"][:14] == keys["train"]
    assert sorted(grown["train"][14:]) == sorted(f"cats/new=20{number}" for number in range(5))
    assert not any(name.startswith(BUILD) for name in after)
    again = grow(pets, storage_url, fmt)
    assert (again.assembled, again.manifest.revision) == (False, 2)


def test_tfds_reads_a_dataset_that_grew_and_shrank(pets, tmp_path):
    url = str(tmp_path / "out")
    build_own(pets, url, "tfrecord")
    grow(write_files(pets, MORE), url, "tfrecord")
    (tmp_path / "list").write_text("cats/new=200\ncats/cat=200\n")
    dataprep.remove(url, keys=tmp_path / "list")
    grow(write_files(pets, {"train/dogs/late.jpg": picture(250)}), url, "tfrecord")
    assert len(read_with_tfds(tmp_path / "out")) == 18
    assert_sound(url, deep=True)


@pytest.mark.parametrize("fmt", FORMATS)
def test_annotations_grow_with_their_images(tmp_path, fmt):
    rows = annotated_rows(14)
    for count in (9, 14):
        files = {row["file_name"]: picture(number) for number, row in enumerate(rows[:count])}
        files["metadata.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows[:count])
        write_files(tmp_path / "pets", files)
        make = grow if count == 14 else build_own
        make(tmp_path / "pets", tmp_path / "out", fmt)
    assert_sound(tmp_path / "out")
    assert len(keys_of(tmp_path / "out")["train"]) == 14


def test_what_was_removed_does_not_come_back(pets, url, tmp_path):
    (tmp_path / "list").write_text("cats/cat=200\n")
    dataprep.remove(url, keys=tmp_path / "list")
    notes = Notes()
    result = grow(write_files(pets, MORE), url, progress=notes)
    assert "train: left out 1 image that dataprep remove took out" in notes.lines
    assert result.manifest.splits[0].samples == 18


def test_an_image_that_changed_is_refused_and_named(pets, url):
    before = digests(url)
    write_files(pets, {"train/cats/cat 0.jpeg": picture(9, size=(99, 99))})
    with pytest.raises(SourceError, match=r"cats/cat=200 = 'cats/cat 0' .* sample of this key .* never changes"):
        grow(pets, url)
    assert digests(url) == before


@pytest.mark.parametrize(
    ("own", "match"),
    [
        ({"options": {"seed": 1}}, r"other options: seed is 0 there, 1 here; give those"),
        ({"licence": "mine"}, r"other options: own.licence is .* there, \"mine\" here"),
    ],
)
def test_other_options_are_refused(pets, url, own, match):
    with pytest.raises(UsageError, match=match):
        grow(write_files(pets, MORE), url, **own)


def test_a_new_class_is_refused(pets, url):
    with pytest.raises(UsageError, match=r"1 new class \(fish\), and the labels of the samples that are there would"):
        grow(write_files(pets, {"train/fish/1.jpg": picture(1)}), url)


def test_a_source_of_some_of_the_classes_keeps_their_labels(pets, tmp_path):
    url = str(tmp_path / "out")
    write_files(pets, {"train/fish/1.jpg": picture(220), "val/fish/2.jpg": picture(221)})
    build_own(pets, url)
    shutil.rmtree(pets / "train/cats")
    shutil.rmtree(pets / "val/cats")
    grow(write_files(pets, {"train/dogs/late.jpg": picture(250)}), url)
    report = verify_here(url)
    assert report.ok, details(report)
    assert read_manifest(open_storage(url)).splits[0].class_counts == (7, 8, 1)


def test_where_there_is_no_dataset_nothing_is_added(pets, tmp_path):
    with pytest.raises(UsageError, match="no dataset there to append to; leave out `append`"):
        grow(pets, tmp_path / "out")


def test_an_interrupted_growth_is_finished_or_begun_again(pets, url):
    write_files(pets, MORE)

    def one(job, indexes):
        yield build_shard(job, indexes[0])
        raise BuildError("the machine went")

    with pytest.raises(BuildError, match="the machine went"):
        run_build(replace(request(pets, url), append=True), one, Quiet())
    assert keys_of(url)["train"] == keys_of(url)["train"][:14]
    write_files(pets, {"train/dogs/late.jpg": picture(250)})  # another plan: what was begun is withdrawn
    result = grow(pets, url)
    assert (result.manifest.revision, result.manifest.splits[0].samples) == (2, 20)
    assert_sound(url)


def test_the_same_growth_has_the_same_bytes_by_any_way(pets, tmp_path):
    found = []
    for name, words in (("here", ()), ("pool", ("--workers", 2)), ("parts", ("--part", "1/1"))):
        output = tmp_path / name / "out"
        source = shutil.copytree(pets, tmp_path / name / "pets")
        arguments = ("build", "folder", "--source", source, "--output", output, "--format", "webdataset")
        succeeds(*arguments)
        write_files(source, MORE)
        said = succeeds(*arguments, "--append", *words)
        assert "is complete" in said.stdout
        assert "no new samples; the dataset stays at revision 2" in succeeds(*arguments, "--append").stdout
        found.append(digests(output))
    assert found[0] == found[1] == found[2]


def test_all_passes_of_physical_repeats_are_known(originals, tmp_path):
    output = tmp_path / "out"
    arguments = build_arguments("coco-dup5", originals["coco"], output, "webdataset", "--repeat", "physical")
    first = json.loads(succeeds(*arguments).stdout)
    again = json.loads(succeeds(*arguments, "--append").stdout)
    assert (again["splits"], again["revision"], again["shards_built"]) == (first["splits"], 1, 0)
