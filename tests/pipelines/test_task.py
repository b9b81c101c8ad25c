"""A shard as a task on a node: what is an answer, what is tried again, and what ends a build."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.builder.recipe import BuildJob
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import BuildError, ConflictError, StorageError, UsageError
from pipelines import task as tasks
from pipelines.task import Answer, Lost, NodeTask, ShardTask, receipts_in, shard_task, source_paths

JOB = BuildJob("/output", "/originals", "_build/hash/id", "archives")
ANYWHERE = NodeTask((), "spark")


def receipt(index: int) -> ShardReceipt:
    return ShardReceipt(index, "train", index, f"{index}.tar", 1, 1, "00", "AA==")


def test_a_node_that_sees_the_files_and_has_the_version_can_build(tmp_path):
    assert NodeTask((str(tmp_path),), "ray")(0) == Answer(0, None)


def test_a_node_without_the_files_is_refused_by_its_name(tmp_path):
    fault = NodeTask((str(tmp_path / "none"),), "ray")(0).found
    assert isinstance(fault, UsageError)
    assert f"does not see {tmp_path}/none; copy it to a bucket, or to a file system that every node" in str(fault)


def test_a_node_with_another_version_builds_nothing_and_names_both():
    node = NodeTask((), "spark", version="9.9.9")
    fault = ShardTask(JOB, node, 60, lambda job, index: pytest.fail("it was built"))(7).found
    assert "this command is of 9.9.9; install the same version on every node" in str(fault)


@pytest.mark.parametrize(("error", "attempts"), [(StorageError("tired"), 4), (ConflictError("taken"), 1)])
def test_errors_are_answers_after_the_attempts_of_the_local_pool(error, attempts, monkeypatch):
    tried, waited = [], []

    def build(job, index):
        tried.append(index)
        raise error

    monkeypatch.setattr(tasks.time, "sleep", waited.append)
    answer = ShardTask(JOB, ANYWHERE, 60, build)(7)
    assert answer.found is error
    assert tried == [7] * attempts
    assert waited == [0.5, 1.0, 2.0][: attempts - 1]
    assert len(answer.lines) == attempts - 1


def test_a_shard_that_succeeds_later_says_what_had_failed(monkeypatch):
    found = [StorageError("tired"), receipt(7)]

    def build(job, index):
        if isinstance(found[0], Exception):
            raise found.pop(0)
        return found[0]

    monkeypatch.setattr(tasks.time, "sleep", lambda _s: None)
    assert ShardTask(JOB, ANYWHERE, 60, build)(7) == Answer(7, receipt(7), ("shard 7: tired; tried again after 0.5 s",))


def test_a_task_without_progress_ends_its_process():
    program = """
import threading
from tests.pipelines.test_task import ANYWHERE, JOB, ShardTask
ShardTask(JOB, ANYWHERE, 0.2, lambda job, index: threading.Event().wait())(7)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1
    assert "no progress for 0 s (--stall-minutes): this process ends" in run.stderr


def test_only_files_on_disk_must_be_seen_at_paths_that_hold_elsewhere(tmp_path, gcs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert source_paths("originals") == (str(tmp_path / "originals"),)
    assert source_paths("gs://bucket/originals") == ()
    task = shard_task(BuildJob("out", "gs://bucket/originals", "_build/hash/id", "archives"), "ray", 60)
    assert task.node.paths == (str(Path(tmp_path, "out/_build/hash/id")),)
    assert (task.job.output_url, task.job.source_url) == (str(tmp_path / "out"), "gs://bucket/originals")


def test_receipts_are_passed_on_with_what_workers_say():
    lines = []
    answers = [Answer(0, None), Answer(4, receipt(4), ("shard 4: tired",)), Answer(2, receipt(2))]
    assert [found.index for found in receipts_in(answers, lines.append, "")] == [4, 2]
    assert lines == ["shard 4: tired"]


def test_no_answer_is_taken_after_an_error():
    answers = iter([Answer(1, UsageError("other codecs")), Answer(2, receipt(2))])
    with pytest.raises(UsageError, match="other codecs"):
        list(receipts_in(answers, lambda line: None, ""))
    assert len(list(answers)) == 1


def test_shards_that_lost_their_workers_are_named_when_all_others_are_done():
    lines, done = [], []
    answers = [Answer(3, Lost("lost its worker 3 times")), Answer(2, receipt(2))]
    with pytest.raises(BuildError) as error:
        done.extend(receipts_in(answers, lines.append, "give it more"))
    assert [found.index for found in done] == [2]
    assert str(error.value) == (
        "1 of the shards could not be built: shard 3: lost its worker 3 times; if it ran out of memory, give it more. "
        "All others are done; run the same command again to try these"
    )
    assert lines == ["shard 3: lost its worker 3 times; if it ran out of memory, give it more; set aside"]


def test_a_build_ends_when_shard_after_shard_loses_its_workers():
    answers = (Answer(index, Lost("lost its worker 3 times")) for index in range(100_000))
    with pytest.raises(BuildError, match=r"20 shards lost their workers, the last one: shard 19: .*`stall_minutes`"):
        list(receipts_in(answers, lambda line: None, ""))
    assert next(answers).index == 20
