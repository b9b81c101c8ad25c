"""The part of Spark's engine that needs no Spark; what runs on a cluster is in tests/cluster/test_spark.py."""

import sys
from collections import deque
from types import SimpleNamespace

import pytest

from dataprep.errors import UsageError
from pipelines.engines import EngineChoice
from pipelines.spark.engine import Answers, check, run_partition
from pipelines.task import Answer, Lost


def test_a_job_cannot_be_left_running():
    with pytest.raises(UsageError, match=r"`detach` with `runner` spark: .* spark-submit --deploy-mode cluster"):
        check(EngineChoice(runner="spark", workers=1, detach=True))


class Collected(list):
    add = list.extend


@pytest.mark.parametrize(
    ("losses", "answer"),
    [(None, Answer(4, None)), (2, Answer(4, None)), (3, Answer(4, Lost("lost its worker 3 times")))],
)
def test_a_shard_is_tried_until_it_has_lost_three_workers(losses, answer, monkeypatch):
    context = None if losses is None else SimpleNamespace(attemptNumber=lambda: losses)
    spark = SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: context))
    monkeypatch.setitem(sys.modules, "pyspark", spark)
    collected = Collected()
    run_partition(lambda index: Answer(index, None), collected, [4])
    assert collected == [answer]


def test_answers_are_collected_and_taken_from_the_left():
    answers = Answers()
    value = answers.zero(deque([1]))
    assert value == deque()
    assert answers.addInPlace(answers.addInPlace(value, deque([1])), deque([2, 3])) is value
    assert [value.popleft() for _ in range(3)] == [1, 2, 3]
