"""One shard is checked for a worker: it is found by its number among all splits, and any bytes are only a finding."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from PIL import Image

from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from dataprep.verification.task import ShardJob, check_shard
from tests.support.adoption import adopt_here
from tests.support.finished import verify_here


def job_of(url: object, **changed) -> ShardJob:
    manifest = read_manifest(open_storage(str(url)))
    splits = frozenset(split.name for split in manifest.splits)
    return ShardJob(**{"url": str(url), "manifest": manifest, "indexed": splits, "deep": False, **changed})


def found_by(job: ShardJob, index: int) -> list[tuple[str, str]]:
    return [(finding.kind, finding.where) for finding in check_shard(job, index).findings.listed]


def test_shards_are_numbered_through_all_splits(finished):
    job = job_of(finished("imagenet-webdataset"))
    located = [(split.name, number) for split, number in map(job.locate, range(6))]
    assert located == [(name, number) for name in ("train", "val") for number in range(3)]
    with pytest.raises(UsageError, match="shard 6 past the end"):
        job.locate(6)


@pytest.mark.parametrize("name", ["imagenet-tfrecord", "imagenet-imagefolder", "coco-five-times"])
@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_shard_has_no_findings(finished, name, deep):
    job = job_of(finished(name), deep=deep)
    assert found_by(job, 0) == []
    assert check_shard(job, 0).samples > 0


def test_a_shard_that_is_gone_is_missing_and_one_behind_a_link_is_not_read(damaged, tmp_path):
    copy = damaged("imagenet-webdataset")
    job = job_of(copy.root)
    gone, linked = (job.manifest.splits[0].shards[number]["file"] for number in (0, 1))
    (copy.root / gone).unlink()
    assert found_by(job, 0) == [("missing", gone)]
    (tmp_path / "outside").mkdir()
    (copy.root / linked).parent.rename(tmp_path / "outside/train")
    (copy.root / linked).parent.symlink_to(tmp_path / "outside/train")
    assert found_by(job, 1) == [("unread", linked)]


def test_all_bad_images_of_adopted_data_are_named_at_once(tmp_path):
    folder = tmp_path / "data/train/cats"
    folder.mkdir(parents=True)
    for number in range(70):
        kind = ("PNG", "WEBP", "BMP", "JPEG")[number % 4]
        Image.new("RGB", (20, 10 + number)).save(folder / f"{number:02}.{kind.lower()}", kind)
    index = adopt_here(tmp_path / "data", tmp_path / "index", digest=True).url
    report = verify_here(index)
    assert (report.verdict, report.is_adopted, report.samples) == ("whole", True, 70)
    bad = [path.name for path in sorted(folder.iterdir())[:60]]
    for name in bad:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(b"?" * len(data))
    (folder / sorted(path.name for path in folder.iterdir())[-1]).unlink()
    grown = folder / sorted(path.name for path in folder.iterdir())[-1]
    grown.write_bytes(grown.read_bytes() + b"?")
    report = verify_here(index)
    assert (report.verdict, report.samples) == ("differs", 70)
    assert report.counts == {"digest": 60, "image": 60, "missing": 1, "size": 1}
    assert [each.where for each in report.findings if each.kind == "image"] == [f"train/cats/{name}" for name in bad]
    assert replace(verify_here(index, workers=2), elapsed_s=0) == replace(report, elapsed_s=0)


@pytest.mark.parametrize("name", ["imagenet-tfrecord", "imagenet-webdataset"])
def test_bad_images_of_adopted_shards_are_named_by_their_keys(finished, tmp_path, name):
    data = tmp_path / "data"
    shutil.copytree(finished(name), data)
    for path in (data / "dataset.json", data / "index"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    index = adopt_here(data, tmp_path / "index").url
    assert verify_here(index).verdict == "whole"
    manifest = read_manifest(open_storage(index))
    row = open_index(open_storage(index), manifest.splits[0]).read_group(0).to_pylist()[1]
    path = data / manifest.splits[0].shards[0]["file"]
    damaged = bytearray(path.read_bytes())
    damaged[row["image_offset"] : row["image_offset"] + row["image_bytes"]] = bytes(row["image_bytes"])
    path.write_bytes(damaged)
    (found,) = verify_here(index).findings
    assert (found.kind, found.where) == ("image", f"{manifest.splits[0].shards[0]['file']} ({row['key']})")
