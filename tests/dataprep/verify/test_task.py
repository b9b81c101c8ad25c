"""One shard is checked for a worker: it is found by its number among all splits, and any bytes are only a finding."""

from __future__ import annotations

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from dataprep.verify.task import ShardJob, check_shard


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
