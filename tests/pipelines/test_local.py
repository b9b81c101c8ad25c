"""The engine of this machine: a pool for all shards, or one part of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.builder.driver import run_build
from dataprep.builder.recipe import recipe_of
from dataprep.errors import UsageError
from pipelines.engines import EngineChoice, EngineWork, Part, part_of
from pipelines.local import Helper, check, open_engine, shards_at_once
from tests.support.build_here import Quiet, request
from tests.support.builds import build_arguments, dataprep, digests
from tests.support.parts_simulation import Conditions, simulate


def work_of(asked, lines):
    return EngineWork(
        worker_modules=recipe_of(asked.options.dataset).worker_modules, source_url=asked.source_url,
        output_url=asked.output_url, stall_s=60, log=lines.append, warn=lines.append,
    )  # fmt: skip


def test_a_part_that_is_alone_builds_the_bytes_of_the_whole_pool(originals, tmp_path):
    lines = []
    for name, part in (("whole", None), ("part", Part(1, 2))):
        asked = request(originals, tmp_path / name)
        with open_engine(EngineChoice(runner="local", workers=2, part=part), work_of(asked, lines)) as engine:
            assert run_build(asked, engine, Quiet()).shards_built > 0
    assert digests(tmp_path / "part") == digests(tmp_path / "whole")
    assert lines[0].startswith("part 1 of 2: ")


def test_all_parts_together_have_their_workers_in_flight():
    assert shards_at_once(EngineChoice(runner="local", workers=3), ()) == 3
    assert shards_at_once(EngineChoice(runner="local", workers=3, part=Part(1, 4)), ()) == 12


def test_options_of_another_engine_and_detaching_are_refused():
    with pytest.raises(UsageError, match="--address=auto"):
        check(EngineChoice(runner="local", workers=1, options=("--address=auto",)))
    with pytest.raises(UsageError, match="its workers end with this command"):
        check(EngineChoice(runner="local", workers=1, detach=True))


SLURM = {
    "SLURM_ARRAY_TASK_ID": "5",
    "SLURM_ARRAY_TASK_MIN": "1",
    "SLURM_ARRAY_TASK_STEP": "2",
    "SLURM_ARRAY_TASK_COUNT": "4",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "0"}
BATCH = {"BATCH_TASK_INDEX": "7", "BATCH_TASK_COUNT": "8"}
TPU = {"DATAPREP_WORKER": "0", "DATAPREP_WORKERS": "4"}


@pytest.mark.parametrize(
    ("text", "variables", "part"),
    [
        ("2/8", {}, Part(2, 8)),
        ("1/1", SLURM, Part(1, 1)),
        ("auto", SLURM, Part(3, 4)),
        ("auto", BATCH, Part(8, 8)),
        ("auto/8", KUBERNETES, Part(1, 8)),
        ("auto", TPU, Part(1, 4)),
        ("auto/9", BATCH, Part(8, 9)),
    ],
)
def test_a_part_is_named_or_left_to_the_scheduler(text, variables, part):
    assert part_of(text, variables) == part


@pytest.mark.parametrize(
    ("text", "variables", "message"),
    [
        ("0/8", {}, "`part` 0/8: expected K from 1 to N"),
        ("9/8", {}, "`part` 9/8: expected K from 1 to N"),
        ("3", {}, "`part` 3: expected K/N such as 2/8"),
        ("1/8/2", {}, "expected K/N such as 2/8"),
        ("-1/8", {}, "expected K/N such as 2/8"),
        (
            "auto",
            {},
            "none of SLURM_ARRAY_TASK_ID, BATCH_TASK_INDEX, JOB_COMPLETION_INDEX, DATAPREP_WORKER is set; "
            "give `part` K/N",
        ),
        ("auto", KUBERNETES, "JOB_COMPLETION_INDEX does not say how many parts there are; give `part` auto/N"),
        ("auto", SLURM | {"SLURM_ARRAY_TASK_ID": "4"}, "SLURM_ARRAY_TASK_ID=4 is not one of 4 tasks in equal steps"),
        ("auto", SLURM | {"SLURM_ARRAY_TASK_ID": "11"}, "SLURM_ARRAY_TASK_ID=11 is not one of 4 tasks in equal steps"),
        ("auto/2", BATCH, "BATCH_TASK_INDEX=7 is not one of 2 tasks"),
    ],
)
def test_what_names_no_part_is_refused(text, variables, message):
    with pytest.raises(UsageError) as refused:
        part_of(text, variables)
    assert message in str(refused.value)


SHARDS = st.sets(st.integers(0, 200), max_size=60)


@given(missing=SHARDS, number=st.integers(1, 5), workers=st.integers(1, 8))
def test_of_parts_at_work_only_the_shards_are_taken_that_they_begin_last(missing, number, workers):
    helper = Helper(Part(number, 5), workers, patience_s=10)
    taken = helper.shards_to_take(missing, now_s=0)
    assert set(taken) <= missing
    assert len(taken) == len(set(taken)) <= workers
    for index in taken:
        theirs = helper.part.ordered(other for other in missing if other % 5 == index % 5)
        before = theirs[: theirs.index(index)]
        assert helper.part.owner(index) == number or len(before) >= 2 * workers


@given(missing=SHARDS, number=st.integers(1, 5), workers=st.integers(1, 8))
def test_of_silent_parts_any_shard_is_taken(missing, number, workers):
    helper = Helper(Part(number, 5), workers, patience_s=10)
    helper.shards_to_take(missing, now_s=0)
    assert bool(helper.shards_to_take(missing, now_s=10)) == bool(missing)


def test_a_part_that_finishes_shards_is_not_silent():
    helper, missing = Helper(Part(1, 2), 2, patience_s=10), {1, 3, 5, 7}
    first, *others = helper.part.ordered(missing)
    assert helper.shards_to_take(missing, 0) == []
    assert helper.shards_to_take(missing - {first}, 9) == []
    assert helper.shards_to_take(missing - {first}, 18) == []
    assert helper.shards_to_take(missing - {first}, 19) == sorted(others)[:2]


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 8]), st.sampled_from([1, 2, 8]))
def test_whichever_parts_are_killed_every_shard_is_built_and_little_twice(seed, parts, workers):
    """With 16 shards a process, at most 1.3 times the work, what the killed parts had begun included."""
    rng = random.Random(seed)
    shard_s = [rng.lognormvariate(1, rng.choice([0, 0.3, 1])) for _ in range(16 * parts * workers)]
    alone_s = sum(shard_s) / parts / workers
    killed = rng.sample(range(1, parts + 1), rng.randint(0, parts - 1))
    conditions = Conditions(
        killed_s={number: rng.uniform(0, 1.2 * alone_s) for number in killed},
        started_s={number: rng.uniform(0, 0.5 * alone_s) for number in range(1, parts + 1) if rng.random() < 0.2},
    )
    found = simulate(shard_s, parts, workers, conditions)
    assert found.missing == set()
    assert found.begun.total() <= 1.3 * len(shard_s)


@given(st.integers(0, 2**32), st.sampled_from([(1, 2), (2, 3), (2, 4), (8, 3)]), st.sampled_from([1, 2]))
def test_parts_of_two_numbers_share_the_work(seed, groups, workers):
    """Two groups at one output begin few shards twice, and are faster than one of them alone."""
    rng, (parts, others) = random.Random(seed), groups
    shard_s = [rng.lognormvariate(1, 0.3) for _ in range(16 * (parts + others) * workers)]
    together, alone = simulate(shard_s, parts, workers, Conditions(others=others)), simulate(shard_s, parts, workers)
    assert together.missing == set()
    assert together.begun.total() <= 1.3 * len(shard_s)
    assert together.makespan_s < alone.makespan_s


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--part", "1/2", "--overwrite"], "--part with --overwrite: a part that starts late would delete"),
        (["--part", "1/2", "--runner", "FnApiRunner"], "--part with --runner FnApiRunner, which has its own workers"),
        (["--part", "auto"], "give --part K/N"),
    ],
)
def test_wrong_usage_is_refused(originals, tmp_path, more, message):
    words = build_arguments("imagenet", originals["imagenet"], tmp_path / "out", "webdataset", *more)
    run = dataprep(*words)
    assert run.returncode == 2
    assert message in run.stderr
