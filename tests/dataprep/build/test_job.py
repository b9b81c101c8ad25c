"""A shard as a task: it travels, and its recipe does it."""

import pickle
from concurrent.futures import Future

from dataprep.build import job as jobs
from dataprep.build.job import BuildJob, begin_shard, build_shard

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
