"""The order against a slow reference that was written from its rules alone, and against golden vectors."""

import hashlib
import itertools
import json

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.order import Batches, Lookup, Order, check_world, continued, ramped, samples_per_block, stored_picks
from tests.support.living import Ledger
from tests.support.orders import reference, reference_lap

COUNTS = st.lists(st.integers(0, 40) | st.sampled_from([0, 1]), min_size=1, max_size=9).filter(any)
SETTINGS = st.fixed_dictionaries(
    {
        "shard_samples": COUNTS.map(tuple),
        "seed": st.integers(0, 3),
        "global_batch": st.sampled_from([1, 2, 6, 8, 12, 24]),
        "samples_per_block": st.integers(1, 9),
        "passes": st.sampled_from([1, 5]),
        "num_streams": st.sampled_from([1, 2, 3, 6, 12, 50]),
        "window": st.integers(1, 4),
        "heads": st.lists(st.integers(1, 9), max_size=2, unique=True).map(sorted).map(tuple),
    }
).filter(lambda values: not values["heads"] or values["heads"][-1] <= len(values["shard_samples"]))


def taken(picks, count):
    return [(pick.position, (pick.piece.shard, pick.sample)) for pick in itertools.islice(picks, count)]


@given(SETTINGS, st.integers(1, 6))
def test_the_sequence_follows_the_rules_for_every_number_of_ranks(values, num_batches):
    order = Order(**values)
    expected = list(enumerate(reference(order, num_batches * order.global_batch)))
    for world_size in range(1, order.global_batch + 1):
        if order.global_batch % world_size:
            continue
        each = num_batches * order.global_batch // world_size
        ranks = [taken(order.picks(0, rank=r, world_size=world_size), each) for r in range(world_size)]
        assert sorted(itertools.chain(*ranks)) == expected
        assert all(position % world_size == r for r, rank in enumerate(ranks) for position, _ in rank)


@given(SETTINGS, st.integers(0, 24), st.sampled_from([1, 2, 3, 6]), st.data())
def test_order_continues_at_any_batch_with_another_number_of_ranks(values, batch, world_size, data):
    order = Order(**values)
    assume(order.global_batch % world_size == 0)
    rank = data.draw(st.integers(0, world_size - 1))
    count = 3 * order.global_batch
    expected = list(enumerate(reference(order, batch * order.global_batch + count)))[batch * order.global_batch :]
    got = taken(order.picks(batch, rank=rank, world_size=world_size), count // world_size)
    assert got == [(position, sample) for position, sample in expected if position % world_size == rank]


@given(SETTINGS, st.data())
def test_the_first_pass_begins_in_the_same_way_before_the_other_shards_are_known(values, data):
    counts = values["shard_samples"]
    head = data.draw(st.integers(1, len(counts)))
    assume(any(counts[:head]))
    known = Order(**values | {"shard_samples": counts[:head], "heads": (head,)})
    later = Order(**values | {"heads": (head,) if head == len(counts) else (head, len(counts))})
    assert taken(known.picks(0), known.num_samples) == taken(later.picks(0), known.num_samples)


def test_equal_epochs_are_as_long_as_the_guide_says():
    order = Order(shard_samples=(60,), seed=0, global_batch=8, samples_per_block=1)
    assert (order.first_batch(12), order.first_equal_batch(12)) == (90, 96)
    with pytest.raises(UsageError, match="epoch must be a whole number, 0 or more, got -1"):
        order.first_equal_batch(-1)


@given(SETTINGS)
def test_every_pass_has_every_sample_once_and_epochs_share_out_all_batches(values):
    order = Order(**values)
    everything = {(shard, s) for shard, samples in enumerate(order.shard_samples) for s in range(samples)}
    got = [sample for _, sample in taken(order.picks(0), 2 * order.num_samples)]
    assert set(got[: order.num_samples]) == set(got[order.num_samples :]) == everything
    assert sum(order.steps(epoch) for epoch in range(7)) == order.first_batch(7)
    total = 7 * order.passes * order.num_samples // order.global_batch
    assert order.first_batch(7) == total
    assert 0 <= order.first_equal_batch(7) - total <= 7
    for epoch in range(7):
        for batch in range(order.first_batch(epoch), order.first_batch(epoch + 1)):
            assert order.epoch_of(batch) == epoch


@given(SETTINGS, st.sampled_from([1, 2, 3, 6]))
def test_a_rank_reads_a_piece_once_and_alone_where_ranks_divide_the_streams(values, world_size):
    order = Order(**{**values, "global_batch": 12, "num_streams": 12})
    readers = {}
    for rank in range(world_size):
        for pick in order.picks(0, rank=rank, world_size=world_size):
            if pick.position >= order.num_samples:
                break
            assert pick.of_piece == pick.piece.stop - pick.piece.first
            readers.setdefault(pick.piece, set()).add(rank)
    assert all(len(ranks) == 1 for ranks in readers.values())
    covered = sorted((piece.shard, s) for piece in readers for s in range(piece.first, piece.stop))
    assert covered == sorted({*covered})
    assert len(covered) == order.num_samples


@given(SETTINGS, st.integers(0, 9), st.sampled_from([1, 2, 3, 4, 6]))
def test_counts_of_a_piece_hold_from_any_first_batch(values, batch, world_size):
    order = Order(**{**values, "global_batch": 12})
    first = batch * 12
    end = (first // order.num_samples + 2) * order.num_samples  # of the pass after the one it begins in
    for rank in range(world_size):
        seen = {}
        for pick in order.picks(batch, rank=rank, world_size=world_size):
            if pick.position >= end:
                break
            this_pass = pick.position // order.num_samples
            seen.setdefault((this_pass, pick.piece), []).append(pick.of_piece)
        assert all(counts == [len(counts)] * len(counts) for counts in seen.values())


@given(SETTINGS, st.lists(st.integers(0, 250), min_size=1, max_size=20))
def test_a_sample_is_found_at_any_position_alone(values, positions):
    order = Order(**values)
    lookup, expected = Lookup(order), reference(order, max(positions) + 1)
    for position in positions:
        pick = lookup.at(position)
        assert (pick.position, (pick.piece.shard, pick.sample)) == (position, expected[position])
        assert (pick.piece.first, pick.piece.stop, pick.of_piece) == (pick.sample, pick.sample + 1, 1)


@given(COUNTS, st.integers(1, 12), st.integers(1, 5))
def test_the_stored_order_has_every_sample_once(counts, world_size, at_once):
    everything = [(shard, s) for shard, samples in enumerate(counts) for s in range(samples)]
    rows = [stored_picks(counts, first=rank, step=world_size, samples_per_block=at_once) for rank in range(world_size)]
    picks = sorted(itertools.chain(*rows))
    assert [pick.position for pick in picks] == list(range(len(everything)))
    assert [(pick.piece.shard, pick.sample) for pick in picks] == everything
    for pick in picks:
        assert pick.piece.first <= pick.sample < pick.piece.stop <= counts[pick.piece.shard]
        assert pick.of_piece == sum(other.piece == pick.piece for other in picks)


@given(COUNTS, st.integers(1, 6), st.integers(1, 9), st.data())
def test_the_stored_order_goes_on_from_any_position(counts, step, at_once, data):
    first = data.draw(st.integers(0, sum(counts)))
    picks = list(stored_picks(counts, first=first, step=step, samples_per_block=at_once))
    whole = [(pick.position, pick.piece, pick.sample) for pick in stored_picks(counts, samples_per_block=at_once)]
    found = [(pick.position, pick.piece.shard, pick.sample) for pick in picks]
    assert found == [(position, piece.shard, sample) for position, piece, sample in whole[first::step]]
    for pick in picks:
        assert pick.of_piece == sum(other.piece == pick.piece for other in picks)


class Living:
    """A dataset whose samples are numbered for life, the view of it that is open, and the order of a run through it."""

    def __init__(self, values, data):
        self.values, self.draw, self.names = values, data.draw, itertools.count()
        self.stored = [[next(self.names) for _ in range(samples)] for samples in values["shard_samples"]]
        self.view, self.order, self.position = self.stored, Order(**values), 0
        self.ledger = Ledger(itertools.chain(*self.view), self.order.passes)

    def advance(self, batches):
        """Deliver batches, each to another number of ranks, and look every sample up."""
        lookup, size = Lookup(self.order), self.order.global_batch
        worlds = [each for each in range(1, size + 1) if size % each == 0]
        for _ in range(batches):
            world_size, batch = self.draw(st.sampled_from(worlds)), self.position // size
            ranks = [self.order.picks(batch, rank=rank, world_size=world_size) for rank in range(world_size)]
            for pick in sorted(pick for rank in ranks for pick in itertools.islice(rank, size // world_size)):
                assert pick.position == self.position
                assert pick.piece.first <= pick.sample < pick.piece.stop
                assert lookup.at(pick.position)[2] == pick.sample
                self.ledger.take(self.view[pick.piece.shard][pick.sample])
                self.position += 1

    def change(self):
        """Remove samples, add shards, and choose another view; the run goes on where it is."""

        def some(samples):
            chosen = self.draw(st.integers(0, 2**40 - 1))
            return [each for place, each in enumerate(samples) if chosen >> place & 1]

        before, more = self.view, self.draw(st.lists(st.integers(0, 9), max_size=3))
        self.stored = [some(shard) for shard in self.stored] + [[next(self.names) for _ in range(n)] for n in more]
        self.view = self.draw(st.sampled_from([self.stored, [some(shard) for shard in self.stored]]))
        assume(any(self.view))
        counts, at_once = tuple(map(len, self.view)), self.draw(st.integers(1, 9))

        def numbers(shard):
            places = {name: place for place, name in enumerate(self.view[shard])}
            return np.array([places.get(name, -1) for name in before[shard]], np.int64)

        order = Order(**self.values | {"shard_samples": counts, "samples_per_block": at_once})
        self.order = continued(self.order, self.position, order, numbers)
        self.ledger.change(itertools.chain(*self.view))


@given(SETTINGS, st.lists(st.integers(0, 12), min_size=1, max_size=4), st.data())
def test_an_epoch_goes_on_through_changes_with_each_sample_that_is_left_once(values, history, data):
    run = Living(values, data)
    for batches in history:
        run.advance(batches)
        run.change()
    before = run.position
    epoch = run.order.first_epoch
    run.advance(-(-run.order.epoch_samples // run.order.global_batch) + 1)
    assert run.order.epoch_at(run.order.start) == epoch
    assert run.order.first_batch(epoch) == run.order.start // run.order.global_batch
    for batch in range(before // run.order.global_batch, run.position // run.order.global_batch):
        assert run.order.first_batch(run.order.epoch_of(batch)) <= batch
        assert run.order.first_batch(run.order.epoch_of(batch) + 1) > batch
        assert run.order.first_equal_batch(run.order.equal_epoch_of(batch)) <= batch


@given(SETTINGS, st.integers(0, 9), st.data())
def test_what_is_left_of_an_epoch_follows_the_rules(values, batches, data):
    order = Order(**values)
    position = batches * order.global_batch
    left = [np.array([data.draw(st.booleans()) for _ in range(n)], np.bool_) for n in order.shard_samples]
    assume(any(map(any, left)))
    counts = tuple(int(each.sum()) for each in left)
    later = continued(
        order,
        position,
        Order(**values | {"shard_samples": counts}),
        lambda shard: np.where(left[shard], np.cumsum(left[shard]) - 1, -1),
    )
    assume(later.left)
    lap, found = later.left[0], {}
    for pick in itertools.islice(later.every(1, position), later.start - position):
        found.setdefault(later.lap_at(pick.position).first, []).append((pick.piece.shard, pick.sample))
    assert len(set(found[lap.first])) == len(found[lap.first])
    for lap in later.left:
        samples = found[lap.first]
        assert samples == reference_lap(later, lap.this_pass, lap.purpose, range(len(counts)), frozenset(samples))


@given(SETTINGS, st.integers(1, 9), st.sampled_from([1, 2, 3, 6]))
def test_a_rank_reads_a_piece_of_what_is_left_once(values, batches, world_size):
    order = Order(**{**values, "global_batch": 12, "num_streams": 12})
    later = continued(order, batches * 12, order, lambda shard: np.arange(order.shard_samples[shard]))
    readers = {}
    for rank in range(world_size):
        for pick in later.every(world_size, batches * 12 + rank):
            if pick.position >= later.start:
                break
            readers.setdefault((pick.piece, rank), []).append(pick)
    assert len({piece for piece, _ in readers}) == len(readers)
    assert all(pick.of_piece == len(picks) for picks in readers.values() for pick in picks)


def test_an_order_that_continues_has_no_sample_of_the_one_before():
    order = Order(shard_samples=(10, 10), seed=0, global_batch=4, samples_per_block=2)
    later = continued(order, 8, order, lambda shard: np.arange(10))
    with pytest.raises(UsageError, match="position 7 belongs to an earlier revision or view"):
        later.lap_at(7)


def test_the_order_equals_the_golden_vectors():
    """These never change: a run resumed by a later version continues with the same samples."""
    order = Order(
        shard_samples=(7, 0, 1, 12, 5), seed=3, global_batch=5, samples_per_block=3, passes=5, num_streams=4, window=2
    )
    first = [sample for _, sample in taken(order.picks(0), 30)]
    assert [f"{shard}.{sample}" for shard, sample in first] == GOLDEN
    large = Order(shard_samples=tuple(range(200, 700)), seed=11, global_batch=64, samples_per_block=18)
    sequence = [sample for _, sample in taken(large.picks(3000, rank=1, world_size=4), 2000)]
    assert hashlib.sha256(json.dumps(sequence).encode()).hexdigest()[:32] == GOLDEN_LARGE


GOLDEN = """
0.6 3.9 4.3 3.8 0.0 3.10 4.4 3.6 0.5 0.2 3.2 3.7 0.4 0.3 3.1 3.3 0.1 3.11 3.0 3.5 4.0 4.2 2.0 3.4
4.1 0.0 3.8 3.10 3.5 0.5
""".split()
GOLDEN_LARGE = "214537a22ef30054e4e2fd4fad8bf345"


def test_blocks_hold_about_block_bytes_unless_the_dataset_is_small():
    assert samples_per_block(1_281_167, 113_000) == 18
    assert samples_per_block(4_000, 113_000) == 1  # too few to mix in larger ones
    assert samples_per_block(10, 0.0) == 1
    assert samples_per_block(10**6, 5e6) == 1
    assert samples_per_block(400_000_000, 30_000) == 69


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shard_samples": ()}, "no sample"),
        ({"shard_samples": (0, 0)}, "no sample"),
        ({"global_batch": 0}, "global_batch must be 1 or more, got 0"),
        ({"window": -1}, "window must be 1 or more, got -1"),
        ({"heads": (0,)}, r"heads must ascend from 1 to 1 shards, got \(0,\)"),
        ({"heads": (2,)}, r"heads must ascend from 1 to 1 shards, got \(2,\)"),
    ],
)
def test_impossible_orders_are_refused(values, message):
    settings = {"shard_samples": (3,), "seed": 0, "global_batch": 1, "samples_per_block": 1}
    with pytest.raises(UsageError, match=message):
        Order(**{**settings, **values})


@pytest.mark.parametrize(
    ("batch", "ranks", "could"),
    [
        (24, 5, "1, 2, 3, 4, 6, 8, 12 or 24 ranks"),
        (7, 2, "1 or 7 ranks"),
        (5040, 11, "6, 7, 8, 9, 10, 12, 14 or 15 ranks"),
        (1, 2, "1 rank"),
    ],
)
def test_the_numbers_of_ranks_that_can_share_a_batch_are_said(batch, ranks, could):
    with pytest.raises(UsageError) as refused:
        check_world(batch, 0, ranks)
    assert str(refused.value) == (
        f"a batch of {batch} cannot be shared by {ranks} ranks; give {could}, or a batch_size that {ranks} divides "
        "(a saved state continues with either)"
    )


def test_batches_of_another_size_are_counted_from_the_position_where_they_begin():
    order = Order(shard_samples=(60,), seed=0, global_batch=8, samples_per_block=1, resized=(Batches(5, 100, 8),))
    assert [order.batch_start(batch) for batch in (5, 6, 8)] == [100, 108, 124]
    assert [order.batch_at(position) for position in (100, 107, 108, 120)] == [5, 5, 6, 7]
    assert [order.first_batch(epoch) for epoch in (2, 3)] == [7, 15]
    assert [order.epoch_of(batch) for batch in (5, 6, 7)] == [1, 1, 2]
    # Three batches hold the rest of epoch 1 from position 100 on, eight every later one.
    assert [order.first_equal_batch(epoch) for epoch in (2, 3)] == [8, 16]
    assert [order.equal_epoch_of(batch) for batch in (5, 7, 8, 15, 16)] == [1, 1, 2, 2, 3]


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    lengths=st.lists(st.integers(0, 200), min_size=4, max_size=4),
)
@example(sizes=[2, 1, 1], lengths=[1, 0, 0, 0])
def test_each_size_of_a_ramp_holds_for_the_batches_that_begin_there_or_later(sizes, lengths):
    starts = list(zip(itertools.accumulate(lengths, initial=0), sizes, strict=False))
    resized = ramped(Batches(0, 0, sizes[0]), starts[1:])
    order = Order(shard_samples=(60,), seed=0, global_batch=1, samples_per_block=1, resized=resized)
    position = 0
    for batch in range(60):
        assert order.batch_start(batch) == position
        size = [size for start, size in starts if start <= position][-1]
        assert {order.batch_at(position), order.batch_at(position + size - 1)} == {batch}
        position += size
