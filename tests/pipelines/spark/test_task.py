from collections import deque
from pathlib import Path

import pytest

from dataprep.builder.job import BuildJob
from dataprep.errors import ConflictError, StorageError, UsageError
from pipelines.spark import task as tasks
from pipelines.spark.task import Answers, NodeCheck, NodeTask, ShardTask, local_paths, source_paths

JOB = BuildJob("/output", "/originals", "_build/hash/id", "archives")


def test_a_node_that_sees_the_files_and_has_the_version_can_build(tmp_path):
    assert NodeTask(NodeCheck((str(tmp_path),)))(0, 0) is None


def test_a_node_without_the_files_is_refused_by_its_name(tmp_path):
    fault = NodeTask(NodeCheck((str(tmp_path / "none"),)))(0, 0)
    assert isinstance(fault, UsageError)
    assert f"does not see {tmp_path}/none; copy it to a bucket, or to a file system that every node" in str(fault)


def test_a_node_with_another_version_is_refused_with_both():
    fault = NodeCheck((), version="9.9.9").fault()
    assert fault is not None
    assert "this command is of 9.9.9; install the same version on every node" in str(fault)


def test_a_shard_that_was_lost_too_often_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(tasks, "build_shard", lambda job, index: pytest.fail("it was tried"))
    assert ShardTask(JOB, NodeCheck(()), tries=2)(7, 2) == 7


@pytest.mark.parametrize(("error", "attempts"), [(StorageError("tired"), 4), (ConflictError("taken"), 1)])
def test_errors_are_answers_after_the_attempts_of_the_local_pool(error, attempts, monkeypatch):
    tried, waited = [], []

    def build(job, index):
        tried.append(index)
        raise error

    monkeypatch.setattr(tasks, "build_shard", build)
    monkeypatch.setattr(tasks.time, "sleep", waited.append)
    assert ShardTask(JOB, NodeCheck(()), tries=2)(7, 1) is error
    assert tried == [7] * attempts
    assert waited == [0.5, 1.0, 2.0][: attempts - 1]


def test_only_files_on_disk_must_be_seen(tmp_path, gcs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert source_paths("originals") == (str(tmp_path / "originals"),)
    assert source_paths("gs://bucket/originals") == ()
    job = BuildJob("out", "gs://bucket/originals", "_build/hash/id", "archives")
    assert local_paths(job) == (str(Path(tmp_path, "out")),)


def test_answers_are_collected_and_taken_from_the_left():
    answers = Answers()
    value = answers.zero(deque([1]))
    assert value == deque()
    assert answers.addInPlace(answers.addInPlace(value, deque([1])), deque([2, 3])) is value
    assert [value.popleft() for _ in range(3)] == [1, 2, 3]
