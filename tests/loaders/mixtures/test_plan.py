"""Rows of a mixture's batches: every sample in one row of one rank, whatever ranks, processes, weights and ends."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.engine.batch_plan import BatchPlan
from loaders.mixtures.plan import MixedPlan
from tests.loaders.mixtures.test_order import mixed
from tests.support.mixing import compare_lives


@given(st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_lives_with_other_ranks_and_weights_have_no_sample_twice_or_lost(rng):
    compare_lives(rng)


@pytest.mark.parametrize("seed", range(15))
def test_lives_of_the_soak(seed):
    """A sample of `make soak SHOW=mixtures`."""
    compare_lives(random.Random(seed))


def test_a_mixture_of_one_dataset_has_the_rows_of_the_dataset_alone():
    order = mixed([50], (7,))
    for rank, part in itertools.product(range(3), range(2)):
        ours = MixedPlan(order=order, shuffle=True, rank=rank, world_size=3, first_batch=2, part=part, parts=2)
        alone = BatchPlan(
            order=order.members[0].order, shuffle=True, rank=rank, world_size=3, first_batch=2, part=part, parts=2
        )
        assert list(itertools.islice(ours, 9)) == list(itertools.islice(alone, 9))


def test_pieces_are_read_by_one_rank_and_few_samples_are_read_elsewhere():
    order = mixed([600, 900, 300], (3, 2, 1), batch=96)
    readers, alone, count = {}, 0, 0
    for rank in range(6):
        plan = MixedPlan(order=order, shuffle=True, rank=rank, world_size=6, first_batch=0)
        for batch in itertools.islice(plan, 18):  # less than a pass of each dataset
            for _, pick in batch:
                count += 1
                if pick.of_piece == 1 and pick.piece.stop - pick.piece.first == 1:
                    alone += 1
                else:
                    readers.setdefault(pick.piece, set()).add(rank)
    assert all(len(ranks) == 1 for ranks in readers.values())
    assert alone < 0.1 * count


def test_a_mixture_that_ends_has_a_last_batch_with_some_rows():
    order = mixed([10, 15], (1, 1), "drop")
    plans = [MixedPlan(order=order, shuffle=True, rank=rank, world_size=2, first_batch=0) for rank in range(2)]
    assert [plan.batches_left for plan in plans] == [3, 3]
    lengths = [[len(batch) for batch in plan] for plan in plans]
    assert [sum(batch) for batch in zip(*lengths, strict=True)] == [12, 12, 1]
    after = MixedPlan(order=order, shuffle=True, rank=0, world_size=2, first_batch=9)
    assert (after.batches_left, list(after)) == (0, [])
