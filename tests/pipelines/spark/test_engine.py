"""How the engine treats shards that are lost; what runs on a cluster is in tests/cluster/test_spark.py."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.builder.job import BuildJob
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import BuildError, UsageError
from pipelines.protocol import EngineChoice
from pipelines.spark.engine import build, check

JOB = BuildJob("/output", "/originals", "_build/hash/id", "archives")


def receipt(index: int) -> ShardReceipt:
    return ShardReceipt(index, "train", index, f"{index}.tar", 1, 1, "00", "AA==")


def lossy(losses: dict[int, int], alone: set[int], deaths: Counter[int]):
    """Return what runs jobs on a cluster that loses a shard's task so often; those in `alone` only with others."""

    def run(task, indexes):
        for index in indexes:
            for attempt in range(4):
                if attempt >= task.tries:
                    yield index
                elif deaths[index] < losses.get(index, 0) and not (index in alone and len(indexes) == 1):
                    deaths[index] += 1
                    continue
                else:
                    yield receipt(index)
                break
            else:
                raise AssertionError("Spark gave the task up, and the job with it")

    return run


@given(
    st.integers(1, 30).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.dictionaries(st.integers(0, count - 1), st.integers(0, 9)),
            st.sets(st.integers(0, count - 1)),
        )
    )
)
def test_shards_that_kill_three_workers_are_named_and_all_others_done(case):
    count, losses, alone = case
    deaths, lines, done = Counter(), [], []
    poisonous = {index for index, times in losses.items() if times >= 3 and index not in alone}
    found = build(lossy(losses, alone, deaths), lines.append, JOB, list(range(count)))
    if poisonous:
        with pytest.raises(BuildError, match=f"^{len(poisonous)} of the shards could not be built: ") as error:
            done.extend(each.index for each in found)
        named = [f"shard {index}: killed its worker 3 times" for index in sorted(poisonous)]
        assert "; ".join(named) in str(error.value)
    else:
        done.extend(each.index for each in found)
    assert sorted(done) == sorted(set(range(count)) - poisonous)
    assert all(deaths[index] <= 3 for index in deaths)
    assert [line for line in lines if line.endswith("set aside")] == [
        f"shard {index}: killed its worker 3 times; set aside" for index in sorted(poisonous)
    ]


def test_a_job_cannot_be_left_running():
    with pytest.raises(UsageError, match=r"--detach with --runner spark: .* spark-submit --deploy-mode cluster"):
        check(EngineChoice(runner="spark", workers=1, detach=True))
