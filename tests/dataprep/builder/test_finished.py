"""The names of a finished dataset follow from its manifest, and nothing hostile is among them."""

import json
from dataclasses import replace

import pytest

from dataprep.builder.finished import (
    dataset_names,
    image_root,
    layout_faults,
    links_repeats,
    readable_manifest,
    shape_faults,
)
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import FormatError, UsageError
from dataprep.storage import open_storage
from tests.support.finished import DATASETS


@pytest.mark.parametrize("name", DATASETS)
def test_names_are_those_of_all_files(finished, name):
    storage = open_storage(str(finished(name)))
    manifest = readable_manifest(storage)
    found = {path.relative_to(finished(name)).as_posix() for path in finished(name).rglob("*")}
    files = {each for each in found if not (finished(name) / each).is_dir() or (finished(name) / each).is_symlink()}
    below_links = {each for each in files for link in files if each.startswith(f"{link}/")}
    assert set(dataset_names(storage, manifest)) - {REPLICAS} == files - below_links


@pytest.mark.parametrize("name", ["imagenet-tfrecord", "coco-tfrecord"])
def test_tfds_is_told_the_counts_of_the_manifest(finished, name):
    described = json.loads((finished(name) / "dataset_info.json").read_text())["splits"]
    found = {split["name"]: (list(map(int, split["shardLengths"])), int(split["numBytes"])) for split in described}
    splits = readable_manifest(open_storage(str(finished(name)))).splits
    assert found == {each.name: ([shard["samples"] for shard in each.shards], each.num_bytes) for each in splits}


def test_images_of_a_linked_split_lie_in_a_folder_of_their_own(finished):
    linked, plain = (readable_manifest(open_storage(str(finished(name)))) for name in ("coco-links", "coco-tfrecord"))
    assert (image_root(linked, linked.splits[0]), links_repeats(linked, linked.splits[0])) == ("images", True)
    assert (image_root(plain, plain.splits[0]), links_repeats(plain, plain.splits[0])) == ("train", False)


def test_names_that_no_build_gives_are_reported_as_faults(finished):
    manifest = readable_manifest(open_storage(str(finished("imagenet-webdataset"))))
    assert list(shape_faults(manifest)) == list(layout_faults(manifest)) == []
    assert "expected one of" in next(shape_faults(replace(manifest, name="cifar")))
    (shard, *rest), split = manifest.splits[0].shards, manifest.splits[0]
    moved = replace(split, shards=({**shard, "file": "../x.tar"}, *rest))
    faults = list(layout_faults(replace(manifest, splits=(moved, *manifest.splits[1:]))))
    assert any("shard 0 is" in fault and "../x.tar" in fault for fault in faults)


def test_missing_and_hostile_datasets_are_refused(damaged, tmp_path):
    with pytest.raises(UsageError, match=r"no dataset there \(no dataset\.json\)"):
        readable_manifest(open_storage(str(tmp_path / "none")))
    copy = damaged("imagenet-webdataset")
    document = copy.document
    document["splits"][0]["shards"][0]["file"] = "../x.tar"
    copy.write_document(document)
    with pytest.raises(FormatError, match=r"dataset\.json: .*dataprep verify"):
        readable_manifest(open_storage(str(copy.root)))
