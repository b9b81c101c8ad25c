"""Arrays of batches by name, as adapters take them: of squares, packs and views."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders import LoaderConfig, Packs, Views, open_loader, open_packs, open_views
from loaders.engine.batch import BatchPlan, ViewBatch, array_dimensions, arrays_of, image_groups, rows_per_part
from loaders.order import Order

PACKS = Packs(tokens=256, images=4, patch=16, max_tokens=64)
VIEWS = (Views(count=2, size=32), Views(count=3, size=16))
KINDS = {
    "squares": lambda url: open_loader(url, batch_size=12, image_size=32),
    "packs": lambda url: open_packs(url, batch_size=12, packs=PACKS),
    "views": lambda url: open_views(url, batch_size=12, views=VIEWS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_arrays_of_a_batch_have_the_names_and_dimensions_that_its_loader_promises(dataset, kind):
    with KINDS[kind](str(dataset("webdataset"))) as loader:
        batch = next(iter(loader))
    arrays = arrays_of(batch)
    assert {name: array.ndim for name, array in arrays.items()} == array_dimensions(loader.config, {})
    assert all(isinstance(array, np.ndarray) for array in arrays.values())


def test_the_groups_of_views_are_found_again_among_the_arrays(dataset):
    with KINDS["views"](str(dataset("webdataset"))) as loader:
        batch = next(iter(loader))
    assert isinstance(batch, ViewBatch)
    groups = image_groups(arrays_of(batch))
    assert [group.shape for group in groups] == [(12, 2, 32, 32, 3), (12, 3, 16, 16, 3)]
    assert all(ours is theirs for ours, theirs in zip(groups, batch.images, strict=True))


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


MESH = {"data": 4, "fsdp": 2, "model": 3}


@pytest.mark.parametrize(
    ("axes", "host_rank", "message"),
    [
        (("data",), (1, 4), r"the loader is rank 1 of 2, this process 1 of 4; open the loader with .* host_rank\(\)"),
        (("data",), (0, 2), "the loader is rank 1 of 2, this process 0 of 2"),
        (("batch",), (1, 2), "the mesh has no axis 'batch'; it has data, fsdp, model"),
        (("data", "model"), (1, 2), "a batch of 20 cannot be cut into 12 parts along data, model; choose a multiple"),
    ],
)
def test_mesh_that_does_not_fit_the_batch_is_refused(axes, host_rank, message):
    with pytest.raises(UsageError, match=message):
        rows_per_part(LoaderConfig(batch_size=20, rank=1, world_size=2), MESH, axes, host_rank)
