import os
import shutil
from dataclasses import replace

import pytest

from dataprep.errors import BuildError, StorageError, UndecidedError
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage
from dataprep.verification.findings import KINDS
from tests.support.faults import Damaged, linked_copy, plant
from tests.support.finished import CHECKED, build_here, change_cell, column_values, details, kinds, verify_here


@pytest.mark.parametrize("name", CHECKED)
def test_an_undamaged_dataset_has_no_findings(finished, name):
    manifest = Damaged(finished(name)).document
    for deep in (False, True):
        report = verify_here(finished(name), deep=deep)
        assert (report.verdict, details(report)) == ("whole", "")
        assert report.samples == sum(split["samples"] for split in manifest["splits"])
        assert report.num_bytes == sum(split["num_bytes"] for split in manifest["splits"])
        assert report.shards == sum(len(split["shards"]) for split in manifest["splits"])


def test_worker_processes_find_the_same_faults(finished, damaged):
    copy = damaged("imagenet-webdataset")
    plant(copy.root, seed=7)
    here, there = (verify_here(copy.root, deep=True, workers=workers) for workers in (0, 2))
    assert here.findings
    assert replace(here, elapsed_s=0) == replace(there, elapsed_s=0)
    assert verify_here(finished("imagenet-webdataset"), workers=2).verdict == "whole"


@pytest.mark.parametrize("name", CHECKED)
def test_planted_faults_are_found_and_the_original_is_not_touched(finished, tmp_path, name):
    """Some of the 1,000 that the soak plants."""
    missed = []
    for seed in range(20):
        linked_copy(finished(name), tmp_path / "copy")
        fault = plant(tmp_path / "copy", seed)
        report = verify_here(tmp_path / "copy")
        assert kinds(report) <= set(KINDS)
        if report.verdict != "differs":
            missed.append(f"seed {seed}: {fault}")
    assert missed == []
    assert verify_here(finished(name)).verdict == "whole"


@pytest.mark.parametrize("name", ["imagenet-webdataset", "imagenet-tfrecord"])
def test_a_truncated_shard_is_one_finding(finished, name, tmp_path):
    shutil.copytree(finished(name), tmp_path / "copy")
    shard = next(path for path in sorted((tmp_path / "copy").rglob("*-train*-00000-of-*")) if path.is_file())
    os.truncate(shard, shard.stat().st_size // 2)
    found = verify_here(tmp_path / "copy").findings
    where = shard.relative_to(tmp_path / "copy").as_posix()
    assert [(each.kind, each.where) for each in found] == [("size", where)]


@pytest.mark.parametrize("fmt", [pytest.param("webdataset", marks=pytest.mark.long), "imagefolder"])
def test_damage_in_a_bucket_is_found(originals, bucket_url, fmt):
    url = build_here("imagenet", originals["imagenet"], bucket_url, fmt)
    assert verify_here(url, deep=True).verdict == "whole"
    storage = open_storage(url)
    names = [info.name for info in storage.list("train/")]
    data = storage.read(names[0])
    storage.delete(names[0])
    assert kinds(verify_here(url)) == {"missing"}
    storage.create(names[0], data[:-1] + bytes([data[-1] ^ 1]))
    assert "digest" in kinds(verify_here(url))
    storage.delete(names[0])
    storage.create(names[0], data[:-1])
    assert kinds(verify_here(url)) == {"size"}
    storage.delete(names[0])
    storage.create(names[0], data + b"\0")
    assert "size" in kinds(verify_here(url))
    storage.delete(names[0])
    storage.create(names[0], data)
    storage.create(names[0] + ".tar", data)
    report = verify_here(url)
    assert [(finding.kind, finding.where) for finding in report.findings] == [("extra", names[0] + ".tar")]


# What cannot be read proves nothing


def test_a_shard_that_cannot_be_read_is_undecided(finished, damaged, monkeypatch):
    shard = Damaged(finished("imagenet-webdataset")).shards()[0]
    opened = LocalStorage.open

    def refuse(self, name):
        if name == shard:
            raise StorageError(f"{name}: input/output error")
        return opened(self, name)

    copy = damaged("imagenet-webdataset")
    monkeypatch.setattr(LocalStorage, "open", refuse)
    report = verify_here(copy.root)
    assert (report.verdict, details(report)) == ("undecided", f"unread {shard}: {shard}: input/output error")
    (copy.root / copy.shards()[1]).unlink()
    assert verify_here(copy.root).verdict == "differs"


def test_a_listing_that_is_refused_is_undecided(finished, monkeypatch):
    def refuse(self, prefix=""):
        raise StorageError("listing is refused")

    monkeypatch.setattr(LocalStorage, "list", refuse)
    report = verify_here(finished("imagenet-webdataset"))
    assert (report.verdict, kinds(report)) == ("undecided", {"unread"})


def test_a_manifest_that_cannot_be_read_is_undecided(finished, monkeypatch):
    def refuse(self, name, max_bytes=None):
        raise StorageError("the disk is gone")

    monkeypatch.setattr(LocalStorage, "read", refuse)
    with pytest.raises(UndecidedError, match="the disk is gone; so nothing is known about"):
        verify_here(finished("imagenet-webdataset"))


def test_a_shard_whose_check_kills_its_process_is_undecided(finished, monkeypatch):
    def run(self, task, indexes):
        yield from (task(index) for index in indexes if index != 2)
        raise BuildError("shard 2: killed its worker 3 times")

    monkeypatch.setattr("dataprep.builder.pool.Pool.run", run)
    report = verify_here(finished("imagenet-webdataset"), workers=1)
    assert report.verdict == "undecided"
    assert report.findings[0].where == Damaged(finished("imagenet-webdataset")).shards()[2]


# Deep


def test_deep_finds_what_an_unchecked_build_let_through(finished):
    assert verify_here(finished("unchecked")).verdict == "whole"
    report = verify_here(finished("unchecked"), deep=True)
    assert (report.verdict, kinds(report)) == ("differs", {"image"})
    assert ": truncated: " in details(report)


def test_deep_compares_sides_that_shard_and_index_agree_on(damaged):
    copy = damaged("imagenet-webdataset")
    height = column_values(copy, "height")[0] + 1
    change_cell(copy, "index/train.parquet", "height", height)
    first, *others = copy.read_shard(copy.shards()[0])
    copy.write_shard(copy.shards()[0], [replace(first, height=height), *others])
    copy.sign()
    assert verify_here(copy.root).verdict == "whole"
    report = verify_here(copy.root, deep=True)
    assert kinds(report) == {"image"}
    assert f"height and width ({height - 1}, {first.width}), recorded ({height}, {first.width})" in details(report)


# The command
