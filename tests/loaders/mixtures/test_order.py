"""The order of a mixture against a slow walk from its start."""

import hashlib
import itertools
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.mixtures.order import MAX_TOTAL, Change, Member, MixedOrder, Proportions, shared_out
from loaders.order import Order
from tests.support.mixing import Circle, Walk, compare_windows, random_order, random_weights


def mixed(samples, weights, at_end="repeat", *, batch=12, epoch=100):
    settings = {"seed": 1, "global_batch": batch, "num_streams": 6, "window": 2}
    members = []
    for number, count in enumerate(samples):
        order = Order(shard_samples=(0,) * number + (count,), samples_per_block=3, **settings)
        members.append(Member(order, at_end, None if at_end == "repeat" else count))
    return MixedOrder(
        shard_samples=tuple(samples),
        samples_per_block=1,
        members=tuple(members),
        changes=(Change(0, weights, (0,) * len(samples), epoch),),
        **settings,
    )


@given(st.randoms(use_true_random=False), st.integers(0, 400), st.integers(0, 80))
def test_the_samples_of_any_positions_are_those_of_a_walk_from_the_start(rng, first, count):
    order = random_order(rng)
    walk = Walk(order.members)
    walk.walk(order.changes[0].weights, first + count)
    found = order.origins(first, first + count)
    rows = zip(found.positions.tolist(), found.members.tolist(), found.indexes.tolist(), strict=True)
    assert list(rows) == [each for each in walk.found[first:] if each is not None]
    assert order.counts_at(first + count) == tuple(walk.counts)


@given(st.randoms(use_true_random=False))
def test_weights_change_at_any_position_and_indexes_go_on(rng):
    order, position = random_order(rng), 0
    walk = Walk(order.members)
    for _ in range(3):
        walk.walk(order.changes[-1].weights, position := position + rng.randint(1, 120))
        order = replace(
            order, changes=order.changed(position, random_weights(rng, len(order.members)), order.epoch_samples)
        )
        assert order.changes[-1].counts == tuple(walk.counts) or order.changes[-1].start < position
    found = order.origins(0, position).positions.tolist()
    assert found == [each[0] for each in walk.found if each is not None]


def test_a_dataset_that_is_dropped_gives_its_weight_to_the_others():
    order = mixed([10, 1000, 1000], (2, 1, 1), "drop")
    ended = order.members[0].order
    stop = int(order.origins(0, 100).positions[order.origins(0, 100).members == 0][-1]) + 1
    assert order.counts_at(stop)[0] == ended.num_samples == 10
    found = np.bincount(order.origins(stop, stop + 1000).members, minlength=3)
    assert found.tolist() == [0, 500, 500]
    assert order.end == 2010
    assert order.counts_at(2010) == order.counts_at(5000) == (10, 1000, 1000)


def test_a_dataset_that_stops_ends_the_mixture_after_its_last_sample():
    order = mixed([10, 1000], (1, 3), "stop")
    assert order.counts_at(order.end)[0] == 10
    assert order.counts_at(order.end - 1)[0] == 9
    assert order.num_batches == -(-order.end // 12)
    assert len(order.origins(0, 10_000).positions) == order.end
    assert order.first_batch(50) == order.num_batches
    assert order.epoch_of(order.num_batches) == order.epoch_of(order.num_batches - 1) + 1


def test_a_mixture_of_whole_batches_ends_before_rows_without_samples():
    order = mixed([10, 1000], (1, 3), "stop")
    whole = replace(order, whole_batches=True)
    assert order.end % 12 > 0
    assert whole.end == order.end
    assert whole.num_batches == order.end // 12 == whole.first_batch(50) == order.num_batches - 1
    assert whole.epoch_of(whole.num_batches) == whole.epoch_of(whole.num_batches - 1) + 1
    assert replace(mixed([10, 1000], (1, 3)), whole_batches=True).num_batches is None


def test_a_stopped_mixture_goes_on_without_the_ended_dataset():
    order = mixed([10, 1000], (1, 3), "stop")
    position = order.num_batches * 12
    goes_on = replace(order, changes=order.changed(position, (0, 1), order.epoch_samples))
    assert goes_on.changes[-1].counts == order.counts_at(order.end)
    found = goes_on.origins(position, position + 5)
    assert found.members.tolist() == [1] * 5
    assert found.indexes.tolist() == list(range(order.counts_at(order.end)[1], order.counts_at(order.end)[1] + 5))
    still_ended = replace(order, changes=order.changed(position, (1, 1), order.epoch_samples))
    assert still_ended.end == order.end


def test_repeated_datasets_have_no_end_and_epochs_of_the_given_length():
    order = mixed([10, 20], (1, 1), epoch=100)
    assert (order.end, order.num_batches, order.epoch_samples) == (None, None, 100)
    assert [order.first_batch(epoch) for epoch in range(4)] == [0, 8, 16, 25]
    assert order.origins(10**9, 10**9 + 3).positions.tolist() == [10**9, 10**9 + 1, 10**9 + 2]


def test_the_same_weights_are_no_change_and_a_second_one_at_a_position_replaces_the_first():
    order = mixed([10, 20], (1, 1))
    assert order.changed(24, (1, 1), order.epoch_samples) == order.changes
    changed = replace(order, changes=order.changed(24, (1, 2), order.epoch_samples))
    assert [change.start for change in changed.changes] == [0, 24]
    again = replace(changed, changes=changed.changed(24, (1, 3), order.epoch_samples))
    assert [(change.start, change.weights) for change in again.changes] == [(0, (1, 1)), (24, (1, 3))]
    assert again.changed(12, (1, 1), order.epoch_samples) == order.changes


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 1000), st.booleans())
def test_a_batch_is_shared_out_evenly_and_most_rows_stay_at_home(world_size, rows, seed, is_full):
    rng = random.Random(seed)
    count = world_size * rows if is_full else rng.randint(0, world_size * rows)
    home = np.array([rng.randrange(world_size) for _ in range(count)], np.int64)
    taken_by = shared_out(home, world_size, rows)
    counts = np.bincount(taken_by, minlength=world_size)
    assert counts.max(initial=0) <= rows
    assert not is_full or (counts == rows).all()
    at_home = np.bincount(home, minlength=world_size)
    assert int((taken_by == home).sum()) >= int(np.minimum(at_home, rows).sum())


WEIGHTS = st.lists(st.integers(1, 5) | st.integers(1, 10**8), min_size=1, max_size=12).map(tuple)
STARTS = st.integers(0, 3000) | st.integers(0, 10**15)


@given(st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_every_window_of_a_thousand_positions_has_each_share_to_within_one_sample(rng):
    compare_windows(rng)


@given(WEIGHTS, STARTS, st.integers(0, 60))
def test_positions_follow_the_rule_in_fractions_of_the_circle(weights, first, count):
    proportions, circle = Proportions(weights), Circle(list(range(len(weights))), weights)
    expected = [circle.at(position) for position in range(first, first + count)]
    assert proportions.between(first, first + count).tolist() == expected
    assert [proportions.at(position) for position in range(first, first + count)] == expected


@given(WEIGHTS, STARTS, st.integers(0, 3000))
def test_counts_are_those_of_the_positions_before(weights, first, count):
    proportions = Proportions(weights)
    found = np.bincount(proportions.between(first, first + count), minlength=len(weights))
    differences = zip(proportions.counts(first + count), proportions.counts(first), strict=True)
    assert [after - before for after, before in differences] == found.tolist()
    assert sum(proportions.counts(first)) == first


@given(WEIGHTS, st.integers(0, 200), st.data())
def test_the_position_of_a_sample_is_found(weights, sample, data):
    proportions, dataset = Proportions(weights), data.draw(st.integers(0, len(weights) - 1))
    position = proportions.position_of(dataset, sample)
    assert proportions.at(position) == dataset
    assert proportions.counts(position)[dataset] == sample


def test_batches_differ_from_their_shares_by_less_than_three_samples():
    for weights in itertools.product([1, 2, 5, 31], repeat=3):
        chosen = Proportions(weights).between(0, 256 * 40).reshape(40, 256)
        for dataset, weight in enumerate(weights):
            share = Fraction(256 * weight, sum(weights))
            assert max(abs(int((batch == dataset).sum()) - share) for batch in chosen) < 3


def test_the_proportions_equal_the_golden_vectors():
    """These never change: a run resumed by a later version continues with the same samples."""
    assert "".join(map(str, Proportions((3, 2, 1)).between(0, 40).tolist())) == GOLDEN
    chosen = Proportions((1281167, 118287, 7)).between(10**10, 10**10 + 5000)
    assert hashlib.sha256(bytes(chosen.tolist())).hexdigest()[:32] == GOLDEN_LARGE


GOLDEN = "0100110210010021021001002102100100210010"
GOLDEN_LARGE = "5e01107cc9ec8fdcfaf4ff01221f8b56"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((), "weights must be whole numbers of 1 or more, got "),
        ((3, 0), "weights must be whole numbers of 1 or more, got "),
        ((MAX_TOTAL, 1), "the weights have the sum 4,294,967,297 as whole numbers without a common divisor, expected "),
    ],
)
def test_impossible_weights_are_refused(weights, message):
    with pytest.raises(UsageError, match=message):
        Proportions(weights)


def test_the_largest_weights_are_computed_without_overflow():
    weights = (MAX_TOTAL - 5, 2, 3)
    circle = Circle([0, 1, 2], weights)
    first = 10**15
    assert Proportions(weights).between(first, first + 1500).tolist() == [circle.at(first + i) for i in range(1500)]
