"""The order of a mixture, written from its rules alone: slow, and from the start. And what its ranks make of it."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from loaders.mixtures.loader import MixedPlan
from loaders.mixtures.order import Change, Member, MixedOrder, Proportions, whole_weights
from loaders.order import Order
from tests.support.orders import reference

BATCH_SIZES = (6, 12, 24, 48)


@dataclass
class Walk:
    """Position after position of a mixture: which dataset, and which of its samples."""

    members: tuple[Member, ...]
    found: list[tuple[int, int, int] | None] = field(default_factory=list)
    """Position in the mixture, dataset and index; None for a position without a sample."""
    counts: list[int] = field(default_factory=list)
    weights: tuple[int, ...] = ()
    turns: int = 0
    """Positions since the weights or the datasets changed."""
    circle: Circle | None = None

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.members)

    def walk(self, weights: tuple[int, ...], stop: int) -> None:
        """Go on with these weights until a position."""
        if weights != self.weights:
            self.weights, self.circle = weights, None
        while len(self.found) < stop:
            taking = [d for d, weight in enumerate(weights) if weight and not self.is_ended(d)]
            if not taking or any(weight and self.is_ended(d) and self.stops(d) for d, weight in enumerate(weights)):
                self.found.append(None)
                continue
            if self.circle is None or self.circle.datasets != taking:
                self.turns, self.circle = 0, Circle(taking, weights)
            dataset = self.circle.at(self.turns)
            self.found.append((len(self.found), dataset, self.counts[dataset]))
            self.counts[dataset] += 1
            self.turns += 1

    def is_ended(self, dataset: int) -> bool:
        last = self.members[dataset].stop
        return last is not None and self.counts[dataset] >= last

    def stops(self, dataset: int) -> bool:
        return self.members[dataset].at_end == "stop"


class Circle:
    """The rotation in fractions of the circle."""

    def __init__(self, datasets: list[int], weights: tuple[int, ...]) -> None:
        self.datasets = datasets
        units = whole_weights([weights[d] for d in datasets]) if datasets else (1,)
        total = sum(units)
        self._ends = [Fraction(end, total) for end in itertools.accumulate(units)]
        rests = [1000 * unit % total for unit in units if 1000 * unit % total]
        drift = 0
        if rests:
            most = min(*rests, *(total - rest for rest in rests), max(1, round(0.382 * total)))
            drift = next(each for each in range(most, 0, -1) if math.gcd(each, 10 * total) == 1)
        self._step = Fraction(703, 1000) + Fraction(drift, 1_000_000 * total)

    def at(self, turn: int) -> int:
        point = turn * self._step % 1
        return next(d for d, end in zip(self.datasets, self._ends, strict=True) if point < end)


def random_order(rng: random.Random) -> MixedOrder:
    """Return a mixture of one to five small datasets."""
    settings = {
        "seed": rng.randrange(3),
        "global_batch": rng.choice(BATCH_SIZES),
        "num_streams": rng.choice([1, 2, 6, 12, 24]),
        "window": rng.randint(1, 3),
    }
    members: list[Member] = []
    shards: tuple[int, ...] = ()
    for _ in range(rng.randint(1, 5)):
        counts = tuple(rng.choice([0, 1, rng.randint(0, 40)]) for _ in range(rng.randint(1, 4)))
        counts = counts if any(counts) else (rng.randint(1, 20),)
        order = Order(
            shard_samples=(0,) * len(shards) + counts,
            samples_per_block=rng.randint(1, 7),
            passes=rng.choice([1, 1, 5]),
            **settings,
        )
        at_end = rng.choice(["repeat", "repeat", "drop", "stop"])
        members.append(Member(order, at_end, None if at_end == "repeat" else rng.randint(1, 2) * order.epoch_samples))
        shards += counts
    return MixedOrder(
        shard_samples=shards,
        samples_per_block=1,
        members=tuple(members),
        changes=(Change(0, random_weights(rng, len(members)), (0,) * len(members), rng.randint(1, 300)),),
        **settings,
    )


def random_weights(rng: random.Random, count: int) -> tuple[int, ...]:
    most = rng.choice([1, 3, 20, 999, 10**7])
    weights = [rng.randint(0, most) for _ in range(count)]
    return whole_weights(weights if any(weights) else [1] * count)


def compare_lives(rng: random.Random) -> str:
    """Run a random mixture with ranks and weights that change, and compare every batch with the walk from the start."""
    order = random_order(rng)
    size = order.global_batch
    walk = Walk(order.members)
    batch, lives = 0, []
    for _ in range(rng.randint(1, 4)):
        if batch:
            weights = random_weights(rng, len(order.members))
            order = replace(order, changes=order.changed(batch * size, weights, order.epoch_samples))
        world_size = rng.choice([w for w in range(1, size + 1) if size % w == 0 and w <= 24])
        parts, stop = rng.randint(1, 3), batch + rng.randint(1, 8)
        walk.walk(order.changes[-1].weights, stop * size)
        _compare_life(order, walk, range(batch, stop), world_size, parts)
        lives.append(world_size)
        batch = stop
    assert order.counts_at(batch * size) == tuple(walk.counts)
    return f"{len(order.members)} datasets, {batch} batches by {lives} ranks"


def _compare_life(order: MixedOrder, walk: Walk, batches: range, world_size: int, parts: int) -> None:
    size = order.global_batch
    most = max(walk.counts) + 1
    samples = [reference(member.order, most) for member in order.members]
    found: list[list[tuple[int, int, int]]] = [[] for _ in batches]
    for rank in range(world_size):
        rows: list[set[int]] = [set() for _ in batches]
        for part in range(parts):
            plan = MixedPlan(
                order=order,
                shuffle=True,
                rank=rank,
                world_size=world_size,
                first_batch=batches.start,
                part=part,
                parts=parts,
            )
            seen: Counter[object] = Counter()
            expected: dict[object, int] = {}
            for number, picks in enumerate(itertools.islice(plan, len(batches))):
                for row, pick in picks:
                    assert row not in rows[number]
                    rows[number].add(row)
                    found[number].append((pick.position, pick.piece.shard, pick.sample))
                    for each in (pick, *pick.released):
                        seen[each.piece] += 1
                        assert expected.setdefault(each.piece, each.of_piece) == each.of_piece
                        assert each.piece.first <= each.sample < each.piece.stop
            assert all(seen[piece] <= expected[piece] for piece in seen)
        for number, batch in enumerate(batches):
            filled = sum(each is not None for each in walk.found[batch * size : (batch + 1) * size])
            assert rows[number] == set(range(len(rows[number])))
            assert filled < size or len(rows[number]) == size // world_size
    for batch, rows_of_batch in zip(batches, found, strict=True):
        origins = [each for each in walk.found[batch * size : (batch + 1) * size] if each is not None]
        assert sorted(rows_of_batch) == [(position, *samples[d][index]) for position, d, index in origins]


def compare_windows(rng: random.Random) -> float:
    """Compare the shares in every window of 1,000 positions with random weights; the largest difference."""
    weights = tuple(weight for weight in random_weights(rng, rng.randint(1, 12)) if weight)
    proportions, first = Proportions(weights), rng.choice([0, rng.randrange(10**12)])
    chosen = proportions.between(first, first + 4000)
    worst = Fraction(0)
    before = proportions.counts(first)
    for number, weight in enumerate(weights):
        counts = np.concatenate([[0], np.cumsum(chosen == number)])
        assert proportions.counts(first + 4000)[number] - before[number] == counts[-1]
        share = Fraction(1000 * weight, sum(weights))
        in_windows = counts[1000:] - counts[:-1000]
        worst = max(worst, abs(int(in_windows.max()) - share), abs(int(in_windows.min()) - share))
    assert worst <= 1, (weights, first)
    return float(worst)
