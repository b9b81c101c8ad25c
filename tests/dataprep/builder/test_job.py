"""A shard as a task: it travels, and its recipe does it."""

import dataclasses
import pickle
from concurrent.futures import Future

import pytest

from dataprep import __version__
from dataprep.builder import job as jobs
from dataprep.builder.job import BuildJob, begin_shard, build_shard
from dataprep.errors import UsageError

JOB = BuildJob("gs://bucket/out", "originals", "_build/0/1", recipe="archives")


def test_job_can_be_pickled_and_hashed():
    assert pickle.loads(pickle.dumps(JOB)) == JOB
    assert hash(JOB) == hash(pickle.loads(pickle.dumps(JOB)))


def test_recipe_of_the_job_builds_its_shards(monkeypatch):
    asked = []

    class Recording:
        def build_shard(self, job, index):
            asked.append(("build", job, index))

        def begin_shard(self, job, index):
            asked.append(("begin", job, index))
            return Future()

    monkeypatch.setattr(jobs, "recipe_named", {"archives": Recording()}.__getitem__)
    build_shard(JOB, 3)
    begin_shard(JOB, 4)
    assert asked == [("build", JOB, 3), ("begin", JOB, 4)]


@pytest.mark.parametrize("do_shard", [build_shard, begin_shard])
def test_worker_with_another_version_of_the_package_builds_nothing_and_names_both(do_shard):
    older = dataclasses.replace(JOB, version="0.0.9")
    expected = rf"this worker has tpu-dataprep {__version__}, the build was planned with 0\.0\.9"
    with pytest.raises(UsageError, match=expected):
        do_shard(older, 0)
