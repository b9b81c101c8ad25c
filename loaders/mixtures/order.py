"""Dataset and sample at each position of a mixture: a pure function, like `loaders/order.py`.

    weights           decide the dataset of every position (`Proportions`)
    index             number of the dataset's own samples before: a position in the order that it has alone
    change            a position from which other weights hold; every dataset continues at its index
    segment           positions with the same weights and datasets: from a change, or from where a dataset ended

A batch is the same set of samples for every number of ranks. A dataset's sample at index j goes to rank j % W, as if
the dataset were loaded alone, so its blocks are read by one rank each. This gives some ranks more rows than others; the
last ones of these go to ranks that lack rows (`shared_out`).

The proportions are a rotation of a circle whose arcs are as long as the weights:

    circle          M points; dataset d owns an arc of M * w_d / (sum of weights) of them
    position n      lands on point n * A mod M, and takes a sample of the dataset whose arc that is
    A / M           703/1000 and a little more: 1,000 successive positions are almost evenly spaced on the circle

So each window of 1,000 positions has as many samples of each dataset as its weight says, to within one: evenly spaced
points would differ from it by less than one, and the little more, `_drift`, is too small to move two points into or out
of the same arc. It makes the shares exact in the long run, for weights that are not multiples of a thousandth. Since A
and M have no common divisor, M successive positions have exactly the weights' shares.

How many of the first n positions a dataset has is a sum of floors, which Euclid's algorithm computes in O(log M): no
position depends on earlier ones. All arithmetic is in integers, so every host computes the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd
from typing import Any, Literal, NamedTuple, TypeAlias

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError
from loaders.order import Epochs, Lookup, Order, Pick

WINDOW = 1000
"""Number of successive positions in which every dataset has its share to within one sample."""
MAX_TOTAL = 2**32
"""Maximum sum of the weights as whole numbers without a common divisor; the points then fit in 64 bits."""
_STEP = 703
"""Thousandths of the circle between two successive positions: 703/1000 = [0; 1, 2, 2, 1, 2, 1, 1, 1, 2, 1, 2] has the
smallest partial quotients of all fractions over 1,000, so windows of a batch's size are well balanced, too."""
_POINTS_AT_ONCE = 1024
"""Number of positions whose points are computed at once: products stay below 2^63 for weights up to MAX_TOTAL."""


@dataclass(frozen=True)
class Proportions:
    """The shares of some datasets in a sequence of positions.

    Raises:
        UsageError: A weight is below 1, or their sum is too large.
    """

    weights: tuple[int, ...]
    """Whole numbers, 1 or more; only their ratios matter."""

    def __post_init__(self) -> None:
        if not self.weights or min(self.weights) < 1:
            raise UsageError(f"weights must be whole numbers of 1 or more, got {list(self.weights)}")
        if self._total > MAX_TOTAL:
            raise UsageError(
                f"the weights have the sum {self._total:,} as whole numbers without a common divisor, expected "
                f"{MAX_TOTAL:,} or less; give weights with fewer digits"
            )

    @cached_property
    def _units(self) -> tuple[int, ...]:
        """The weights without their common divisor."""
        divisor = gcd(*self.weights)
        return tuple(weight // divisor for weight in self.weights)

    @cached_property
    def _total(self) -> int:
        return sum(self._units)

    @cached_property
    def _points(self) -> int:
        """M: number of points on the circle."""
        return WINDOW * WINDOW * self._total

    @cached_property
    def _bounds(self) -> tuple[int, ...]:
        """First point of each arc, and M."""
        return tuple(WINDOW * WINDOW * bound for bound in accumulate(self._units, initial=0))

    @cached_property
    def _stride(self) -> int:
        """A: distance on the circle between two successive positions."""
        return _STEP * WINDOW * self._total + _drift(self._units)

    def at(self, position: int) -> int:
        """Return the number of the dataset whose sample is at a position."""
        return bisect_right(self._bounds, position * self._stride % self._points) - 1

    def between(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers of the datasets at positions `first` to `stop`."""
        parts = []
        for start in range(first, stop, _POINTS_AT_ONCE):
            offsets = np.arange(min(_POINTS_AT_ONCE, stop - start)) * self._stride
            points = (start * self._stride % self._points + offsets) % self._points
            parts.append(np.searchsorted(np.asarray(self._bounds), points, side="right") - 1)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def counts(self, positions: int) -> tuple[int, ...]:
        """Return the number of samples of each dataset among the first `positions` positions."""
        # The floor of (point - bound) / M grows by one where a position lands on the bound or after it.
        reached = [
            _floor_sum(positions, self._points, self._stride, self._points - bound) for bound in self._bounds[1:-1]
        ]
        turns = _floor_sum(positions, self._points, self._stride, 0)
        bounds = [positions + turns, *reached, turns]
        return tuple(low - high for low, high in pairwise(bounds))

    def position_of(self, dataset: int, sample: int) -> int:
        """Return the position at which a dataset has its sample of this number, counted from 0."""
        low, high = 0, WINDOW
        while self.counts(high)[dataset] <= sample:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.counts(middle)[dataset] <= sample else (low, middle)
        return low


def whole_weights(weights: Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers of the same ratios without a common divisor; weights of 0 stay 0."""
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def _drift(units: tuple[int, ...]) -> int:
    """Return the step between two positions beyond 703/1000 of the circle, in points.

    In units of a weight, 1,000 evenly spaced points are `total` apart, and an arc is a multiple of that and `rest`
    more. A window's points are moved by less than 1,000 drifts of a millionth; where this is at most the smallest rest,
    and at most what the largest rest lacks, no window of 1,000 positions has two points more or fewer than its share.
    """
    total = sum(units)
    rests = [rest for unit in units if (rest := WINDOW * unit % total)]
    if not rests:
        return 0  # all weights are whole thousandths: each window has exactly its share
    # Three things must hold. Drift is at least 1, or the sequence would repeat after 1,000 positions and a weight of
    # 1/3 would have 333/1000 forever. It is at most the bound above, or some window would be two samples off. And A and
    # M must be coprime, or only every n-th point of the circle would be visited, so that M positions would not have
    # exactly the weights' shares: 703,000 * total is 0 modulo every prime factor of M, which are those of 10 * total,
    # so A is the drift modulo each of them, and the drift alone decides. The search ends at 1 at the latest. About
    # 0.38, the golden ratio's square, spreads the windows that have one more as evenly as the limit allows.
    drift = min(min(rests), total - max(rests), max(1, round(0.382 * total)))
    while gcd(drift, 10 * total) > 1:
        drift -= 1
    return drift


def _floor_sum(count: int, divisor: int, factor: int, start: int) -> int:
    """Return the sum of (factor * i + start) // divisor for i = 0 to count - 1, all of them 0 or more.

    Euclid's algorithm: Graham, Knuth and Patashnik, "Concrete Mathematics", section 3.5.
    """
    total = 0
    while count:
        total += (count - 1) * count // 2 * (factor // divisor) + count * (start // divisor)
        factor, start = factor % divisor, start % divisor
        end = factor * count + start
        count, start, divisor, factor = end // divisor, end % divisor, factor, divisor
        if not divisor:
            break
    return total


AtEnd: TypeAlias = Literal["repeat", "drop", "stop"]
"""Action at the end of a dataset: its next pass begins, the others share its weight, or the mixture ends."""


class Change(NamedTuple):
    """Weights that hold from a position on."""

    start: int
    weights: tuple[int, ...]
    """Weight of each dataset, 0 for one that takes no part."""
    counts: tuple[int, ...]
    """Index of each dataset at the position."""
    epoch_samples: int
    """Positions in each epoch that begins after the position."""


class Member(NamedTuple):
    """A dataset of a run's mixture, with its order."""

    order: Order | None
    """Order of the dataset alone; shards of earlier datasets are in its list with 0 samples. None for a dataset that
    was taken out of the mixture."""
    at_end: AtEnd
    stop: int | None
    """Number of samples after which the dataset ends; None for one that is repeated."""
    name: str = ""
    document: Mapping[str, Any] = {}
    """A state's description of the dataset."""


class Segment(NamedTuple):
    """Successive positions with the same datasets and weights."""

    start: int
    stop: int | None
    """Position after the last one; None for a segment without an end."""
    counts: tuple[int, ...]
    """Index of each dataset at the start."""
    members: tuple[int, ...]
    """Numbers of the datasets that take part."""
    proportions: Proportions

    def counts_at(self, position: int) -> tuple[int, ...]:
        """Return the index of each dataset at one of the positions."""
        counts = list(self.counts)
        for member, count in zip(self.members, self.proportions.counts(position - self.start), strict=True):
            counts[member] += count
        return tuple(counts)

    def origins(self, first: int, stop: int) -> Origins:
        """Return the origins of the samples at positions `first` to `stop`, which all belong to the segment."""
        chosen = self.proportions.between(first - self.start, stop - self.start)
        counts, indexes = self.counts_at(first), np.empty(stop - first, np.int64)
        for number, member in enumerate(self.members):
            places = np.flatnonzero(chosen == number)
            indexes[places] = counts[member] + np.arange(len(places))
        return Origins(np.arange(first, stop), np.asarray(self.members)[chosen], indexes)


class Origins(NamedTuple):
    """Dataset and index of the samples at successive positions; positions without a sample are left out."""

    positions: NDArray[np.int64]
    """Position in the mixture, shape (samples,)."""
    members: NDArray[np.int64]
    """Index of each sample's dataset in the mixture, shape (samples,)."""
    indexes: NDArray[np.int64]
    """Position in the dataset's own order, shape (samples,)."""


@dataclass(frozen=True, kw_only=True)
class MixedOrder(Order):
    """Everything that the sequence of a mixture depends on; `shard_samples` has the shards of all datasets."""

    members: tuple[Member, ...]
    """All datasets since the run began."""
    changes: tuple[Change, ...]
    """Weights from position 0 on, and from every later position where they were changed."""
    whole_batches: bool = False
    """Whether the mixture ends with the last batch that its samples fill, as in training."""

    @property
    def epoch_samples(self) -> int:
        """Number of positions in an epoch."""
        return self.changes[-1].epoch_samples

    @cached_property
    def all_epochs(self) -> tuple[Epochs, ...]:
        """Epochs of each length; an epoch that a change falls into ends as it began."""
        found = [Epochs(0, 0, self.changes[0].epoch_samples)]
        for change in self.changes[1:]:
            first, start, samples = found[-1]
            if change.epoch_samples != samples:
                begun = max(0, -((start - change.start) // samples))
                start += begun * samples
                found = [each for each in found if each.start < start]
                found.append(Epochs(first + begun, start, change.epoch_samples))
        return tuple(found)

    @cached_property
    def end(self) -> int | None:
        return self._segments[-1].stop if self._segments else self.changes[-1].start

    @cached_property
    def num_batches(self) -> int | None:
        """Number of batches until the mixture ends; without `whole_batches` the last may have rows without a sample."""
        if self.end is None:
            return None
        return self.batch_at(self.end) if self.whole_batches else self.batch_at(self.end - 1) + 1

    def first_batch(self, epoch: int) -> int:
        """Return the number of an epoch's first batch; for an epoch after the end, the number of all batches."""
        first = super().first_batch(epoch)
        return first if self.num_batches is None else min(first, self.num_batches)

    def epoch_of(self, batch: int) -> int:
        """Return the epoch that a batch belongs to; after the end, the one that would follow the last."""
        last = self.num_batches
        return super().epoch_of(batch) if last is None or batch < last else super().epoch_of(last - 1) + 1

    def counts_at(self, position: int) -> tuple[int, ...]:
        """Return the index of each dataset at a position."""
        last = self._segment_at(position)
        if last is None:
            return self.changes[0].counts
        return last.counts_at(position if last.stop is None else min(position, last.stop))

    def origins(self, first: int, stop: int) -> Origins:
        """Return the origins of the samples at positions `first` to `stop`."""
        found = [Origins(*(np.empty(0, np.int64) for _ in Origins._fields))]
        for segment in self._segments:
            low, high = max(first, segment.start), stop if segment.stop is None else min(stop, segment.stop)
            if low < high:
                found.append(segment.origins(low, high))
        return Origins(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def every(self, world_size: int, position: int) -> Iterator[Pick]:
        """Yield the samples at a position and at every `world_size`-th position after it, each as its own piece."""
        lookups = self.lookups()
        while len((found := self.origins(position, position + 1)).positions):
            pick = lookups[found.members[0]].at(int(found.indexes[0]))
            yield pick._replace(position=position)
            position += world_size

    def lookups(self) -> dict[int, Lookup]:
        """Return a lookup of each dataset by its number."""
        return {number: Lookup(each.order) for number, each in enumerate(self.members) if each.order is not None}

    def changed(self, position: int, weights: tuple[int, ...], epoch_samples: int) -> tuple[Change, ...]:
        """Return the changes up to a position, and one to these weights and epochs unless they hold there already."""
        before = tuple(change for change in self.changes if change.start <= position)
        if (before[-1].weights, before[-1].epoch_samples) == (weights, epoch_samples):
            return before
        change = Change(position, weights, self.counts_at(position), epoch_samples)
        return (*(each for each in before if each.start < position), change)

    @cached_property
    def _segments(self) -> tuple[Segment, ...]:
        """All segments; empty if no dataset takes part from the first position on."""
        found: list[Segment] = []
        for number, change in enumerate(self.changes):
            stop = self.changes[number + 1].start if number + 1 < len(self.changes) else None
            found += self._after(change, stop)
        return tuple(found)

    def _after(self, change: Change, stop: int | None) -> Iterator[Segment]:
        """Yield the segments from a change until the next one."""
        # A segment is a piece of the sequence that one `Proportions` describes, so that a position is found without
        # those before it. It must end right behind the last sample of the first dataset that ends: one position later
        # that dataset would be asked for a sample that it does not have, one earlier its last sample would be left to a
        # segment without it. The next segment counts from its own start, with the indexes that the datasets have
        # reached; so no sample is repeated or skipped where weights change. Each round ends a dataset for good and has
        # at least one position, because ended datasets were left out before: there are at most as many segments between
        # two changes as datasets, and the loop ends.
        start, counts = change.start, change.counts
        while True:
            takes_part = [number for number, weight in enumerate(change.weights) if weight]
            ended = {number for number in takes_part if self._is_ended(number, counts[number])}
            members = tuple(number for number in takes_part if number not in ended)
            if not members or any(self.members[number].at_end == "stop" for number in ended):
                return
            proportions = Proportions(tuple(change.weights[number] for number in members))
            ends = []
            for place, number in enumerate(members):
                last = self.members[number].stop
                if last is not None:
                    ends.append(start + proportions.position_of(place, last - counts[number] - 1) + 1)
            end = min(ends, default=None)
            if stop is not None and (end is None or end >= stop):
                yield Segment(start, stop, counts, members, proportions)
                return
            segment = Segment(start, end, counts, members, proportions)
            yield segment
            if end is None:
                return
            start, counts = end, segment.counts_at(end)

    def _is_ended(self, number: int, count: int) -> bool:
        stop = self.members[number].stop
        return stop is not None and count >= stop

    def _segment_at(self, position: int) -> Segment | None:
        """Return the last segment that begins at a position or before it; None if there is none."""
        number = bisect_right(self._segments, position, key=lambda segment: segment.start)
        return self._segments[number - 1] if number else None


def shared_out(home_N: NDArray[np.int64], world_size: int, rows: int) -> NDArray[np.int64]:
    """Return the rank that takes each position of a batch: the one that it belongs to if that has a row left, else the
    first rank that has one. Each rank has `rows`."""
    # A rank has `rows` rows whatever the draw, because all devices run the same program, while the number of samples at
    # home on it varies from batch to batch. The batch has at most world_size * rows positions, so the free rows are
    # never fewer than the samples to move. Only what exceeds a rank's rows moves: a moved sample's block is read by a
    # second rank, which costs its bytes once more. The stable sort decides which ones move and where to by position
    # alone, so every rank computes the same without asking the others; with another order on some host, one sample
    # would be trained on twice and another one not at all.
    by_rank = np.argsort(home_N, kind="stable")
    counts = np.bincount(home_N, minlength=world_size)
    place = np.empty_like(home_N)
    place[by_rank] = np.arange(len(home_N)) - np.repeat(np.cumsum(counts) - counts, counts)
    moved = np.flatnonzero(place >= rows)
    free = np.repeat(np.arange(world_size), rows - np.minimum(counts, rows))
    taken_by = home_N.copy()
    taken_by[moved] = free[: len(moved)]
    return taken_by
