"""A dataset whose index is in parts is the same dataset to everything that reads it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.finished import dataset_names
from dataprep.builder.output import planned_names, read_claim
from dataprep.builder.recipe import build_shard
from dataprep.dataset.index import index_files, joined_entry, open_index
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.errors import FormatError
from dataprep.inspection.contact_sheet import open_sheet
from dataprep.inspection.inspect import inspect_dataset
from dataprep.storage import open_storage
from loaders import open_loader
from tests.support.adoption import adopt_here, read_all
from tests.support.build_here import Quiet, request, whole
from tests.support.converting import content, converted
from tests.support.faults import Damaged, linked_copy
from tests.support.fetched import build_table, picture_web, retry
from tests.support.finished import details, finished_dataset, verify_here
from tests.support.loading import load
from tests.support.parted_index import in_parts, parts_of

ROWS = 80
SMALL = {"batch_size": 12, "image_size": 64}


@pytest.fixture(scope="module")
def single(originals, tmp_path_factory):
    return {
        name: finished_dataset(f"imagenet-{name}", originals, tmp_path_factory)
        for name in ("webdataset", "imagefolder")
    }


@pytest.fixture(scope="module")
def parted(single, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parted")
    for name, url in single.items():
        in_parts(url, folder / name, ROWS)
    return {name: folder / name for name in single}


@pytest.fixture
def damaged(parted, tmp_path):
    """A copy that may be changed."""
    linked_copy(parted["webdataset"], tmp_path / "damaged")
    return Damaged(tmp_path / "damaged")


@pytest.mark.parametrize("name", ["webdataset", "imagefolder"])
def test_batches_are_the_same(single, parted, name):
    assert load(parted[name], 25, **SMALL, threads=2) == load(single[name], 25, **SMALL, threads=2)
    assert load(parted[name], 5, **SMALL, processes=2, rank=1, world_size=2) == load(
        single[name], 5, **SMALL, rank=1, world_size=2
    )


@pytest.mark.parametrize("name", ["webdataset", "imagefolder"])
def test_everything_else_finds_the_same(single, parted, name):
    for deep, workers in ((True, 0), (False, 2)):
        report = verify_here(parted[name], deep=deep, workers=workers)
        assert (report.verdict, details(report)) == ("complete", "")
    found, due = (replace(inspect_dataset(str(urls[name])), url="") for urls in (parted, single))
    assert found == due
    sheets = []
    for urls in (parted, single):
        storage = open_storage(str(urls[name]))
        manifest = read_manifest(storage)
        sheets.append(open_sheet(storage, manifest, manifest.splits[0]))
    assert sheets[0] == sheets[1]


def test_a_conversion_keeps_every_sample_and_writes_parts_itself(single, parted, tmp_path):
    converted(single["webdataset"], tmp_path / "one", "tfrecord")
    with parts_of(ROWS):
        manifest = converted(parted["webdataset"], tmp_path / "parts", "tfrecord")
    assert [len(index_files(split)) for split in manifest.splits] == [2, 1]
    assert content(tmp_path / "parts") == content(tmp_path / "one") == content(parted["webdataset"])
    assert verify_here(tmp_path / "parts").verdict == "complete"


def test_a_build_in_parts_is_repeatable_and_overwritten_whole(originals, tmp_path):
    output = tmp_path / "out"
    planned: list[str] = []

    def plan_only(job, indexes):
        storage = open_storage(str(output))
        planned.extend(planned_names(storage, read_claim(storage)))
        return (build_shard(job, index) for index in indexes)

    with parts_of(2):
        first = run_build(request(originals, output), plan_only, Quiet()).manifest
        assert whole(request(originals, tmp_path / "again")) == first
    index = {part["file"] for part in first.splits[0].index["parts"]}
    names = {info.name for info in open_storage(str(output)).list()}
    assert len(index) == 3 and index <= names
    assert index <= set(dataset_names(open_storage(str(output)), first))
    assert index <= set(planned)  # an --overwrite of a build that was interrupted removes them
    second = whole(request(originals, output, "tfrecord", overwrite=True)).splits[0]
    left = {info.name for info in open_storage(str(output)).list("index/")}
    assert left == {second.index["file"], second.events["file"]}


def test_adopted_data_are_indexed_in_parts(single, tmp_path):
    adopt_here(single["webdataset"] / "train", tmp_path / "one")
    with parts_of(ROWS):
        found = adopt_here(single["webdataset"] / "train", tmp_path / "parts")
        again = adopt_here(single["webdataset"] / "train", tmp_path / "parts", overwrite=True)
    assert len(found.manifest.splits[0].index["parts"]) == 2
    assert again.manifest.splits == found.manifest.splits
    split = found.manifest.splits[0].name
    assert read_all(tmp_path / "parts", split) == read_all(tmp_path / "one", split)
    adopt_here(single["webdataset"] / "train", tmp_path / "parts", overwrite=True)
    names = {info.name for info in open_storage(str(tmp_path / "parts")).list("index/")}
    assert names == {f"index/{split}.parquet", f"index/{split}-events.parquet"}


def test_a_retry_replaces_the_last_part(tmp_path):
    with picture_web() as web:
        web.faults = {2: 503, 33: 503}
        with parts_of(12):
            before = build_table(web, tmp_path, str(tmp_path / "out"), "webdataset").splits[0]
        web.faults.clear()
        retry(str(tmp_path / "out"))
    storage = open_storage(str(tmp_path / "out"))
    after = read_manifest(storage).splits[0]
    assert len(before.index["parts"]) > 2
    assert after.index["parts"][:-1] == before.index["parts"][:-1]
    assert after.index["parts"][-1]["shards"] > before.index["parts"][-1]["shards"]
    assert after.samples == before.samples + 2
    assert open_index(storage, after, compare=True).group_rows == [shard["samples"] for shard in after.shards]
    assert verify_here(tmp_path / "out", deep=True).verdict == "complete"


def test_damage_of_a_part_is_found(damaged):
    name = damaged.document["splits"][0]["index"]["parts"][1]["file"]
    data = (damaged.root / name).read_bytes()
    damaged.write(name, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    loader = open_loader(str(damaged.root), **SMALL)
    assert len(loader.index.shard(0))  # a part is opened when one of its shards is read
    with pytest.raises(
        FormatError, match=r"train-00001-of-00002\.parquet: sha256 .* damaged, or belongs to another dataset"
    ):
        loader.index.shard(1)
    assert "digest index/train-00001-of-00002.parquet" in details(verify_here(damaged.root))
    (damaged.root / name).unlink()
    loader = open_loader(str(damaged.root), **SMALL)
    with pytest.raises(
        FormatError, match=r"train-00001-of-00002\.parquet: missing, but the manifest lists it; restore it"
    ):
        loader.index.shard(2)
    storage = open_storage(str(damaged.root))
    index = open_index(storage, read_manifest(storage).splits[0])
    with pytest.raises(FormatError, match="missing, but the manifest lists it"):
        list(index.batches(["key"]))
    assert "missing index/train-00001-of-00002.parquet" in details(verify_here(damaged.root))


def test_a_part_of_other_shards_is_refused(damaged):
    """Both parts are files of a build, and their digests are right."""
    document = damaged.document
    index = document["splits"][0]["index"]
    for part, shards in zip(index["parts"], (2, 1), strict=True):
        part["shards"] = shards
    index.update(joined_entry("train", index["parts"]))
    damaged.write(MANIFEST, json.dumps(document).encode())
    with pytest.raises(FormatError, match=r"train-00000-of-00002\.parquet: 1 row groups, the manifest lists 2 shards"):
        open_loader(str(damaged.root), **SMALL)
    assert "1 row groups, the manifest lists 2 shards" in details(verify_here(damaged.root))
