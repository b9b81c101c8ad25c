"""Rows of batches: every pick in its place, for any rank and any number of processes."""

import itertools

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loaders.engine.batch_plan import BatchPlan
from loaders.order import Order

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any)


def batches(order, shuffle, first, count, *, rank=0, world_size=1, parts=1):
    """For each batch a dict of rows, put together from all parts."""
    found = [{} for _ in range(count)]
    for part in range(parts):
        plan = BatchPlan(
            order=order, shuffle=shuffle, rank=rank, world_size=world_size, first_batch=first, part=part, parts=parts
        )
        for batch, rows in zip(found, itertools.islice(plan, count), strict=False):
            for row, pick in rows:
                assert row not in batch
                batch[row] = (pick.position, pick.piece.shard, pick.sample)
    return found


@given(COUNTS, st.sampled_from([1, 4, 12]), st.sampled_from([1, 2, 4]), st.integers(1, 5), st.integers(0, 7))
@settings(max_examples=100, deadline=None)
def test_training_rows_follow_the_order_for_any_ranks_and_processes(counts, global_batch, world_size, parts, first):
    assume(global_batch % world_size == 0)
    order = Order(shard_samples=tuple(counts), seed=1, global_batch=global_batch, samples_per_block=3, num_streams=6)
    expected = list(itertools.islice(order.picks(first), 4 * global_batch))
    for rank in range(world_size):
        found = batches(order, True, first, 4, rank=rank, world_size=world_size, parts=parts)
        for number, rows in enumerate(found):
            for row in range(global_batch // world_size):
                pick = expected[number * global_batch + row * world_size + rank]
                assert rows[row] == (pick.position, pick.piece.shard, pick.sample)


@given(COUNTS, st.sampled_from([1, 4, 12]), st.sampled_from([1, 2, 4]), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_an_evaluation_has_every_sample_once_and_equal_steps_everywhere(counts, global_batch, world_size, parts):
    assume(global_batch % world_size == 0)
    order = Order(shard_samples=tuple(counts), seed=1, global_batch=global_batch, samples_per_block=3)
    steps = -(-sum(counts) // global_batch)
    everything = []
    for rank in range(world_size):
        for part in range(parts):
            plan = BatchPlan(
                order=order,
                shuffle=False,
                rank=rank,
                world_size=world_size,
                first_batch=0,
                part=part,
                parts=parts,
            )
            assert len(list(plan)) == plan.num_batches == steps
        for number, rows in enumerate(batches(order, False, 0, steps, rank=rank, world_size=world_size, parts=parts)):
            for row, (position, shard, sample) in rows.items():
                assert position == number * global_batch + row * world_size + rank
                everything.append((position, shard, sample))
    stored = [(shard, sample) for shard, count in enumerate(counts) for sample in range(count)]
    assert sorted(everything) == [(position, *sample) for position, sample in enumerate(stored)]


@given(COUNTS, st.sampled_from([1, 2, 3, 6]), st.sampled_from([1, 2, 5]), st.integers(0, 7), st.booleans())
@settings(max_examples=60, deadline=None)
def test_rows_of_several_images_are_the_same_for_any_ranks_and_processes(counts, world_size, images, first, shuffle):
    """Row r of all ranks together has every sixth image of the batch, from image r on."""
    size = 6 * images
    order = Order(shard_samples=tuple(counts), seed=1, global_batch=size, samples_per_block=3, num_streams=6)
    first = first if shuffle else 0
    steps = 3 if shuffle else -(-sum(counts) // size)
    expected = list(itertools.islice(order.picks(first), steps * size))
    for rank in range(world_size):
        for parts in range(1, 6 // world_size + 1):
            if 6 // world_size % parts:
                continue
            for number in range(steps):
                found = {}
                for part in range(parts):
                    share = {"rank": rank, "world_size": world_size, "part": part, "parts": parts}
                    plan = BatchPlan(order=order, shuffle=shuffle, first_batch=first, row_images=images, **share)
                    rows = next(itertools.islice(plan, number, None))
                    assert all(place // images % parts == part for place, _ in rows)
                    found |= {place: pick.position for place, pick in rows}
                base = (first + number) * size
                places = [(base + row + 6 * image) for row in range(rank, 6, world_size) for image in range(images)]
                real = {place: position for place, position in enumerate(places) if shuffle or position < sum(counts)}
                assert found == real
                assert not shuffle or [pick.position for pick in expected] == list(
                    range(first * size, (first + steps) * size)
                )
