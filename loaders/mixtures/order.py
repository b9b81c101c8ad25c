"""Which sample of which dataset is at which position of a mixture: a pure function, like `loaders/order.py`.

    weights           decide the dataset of every position (`proportions.py`)
    index             number of the dataset's own samples before: a position in the order that it has alone
    change            a position from which other weights hold; every dataset goes on at its index
    segment           positions with the same weights and datasets: from a change, or from where a dataset ended

A batch is the same set of samples for every number of ranks. A dataset's sample at index j goes to rank j % W, as if
the dataset were loaded alone, so its blocks are read by one rank each. This gives some ranks more rows than others; the
last ones of these go to ranks that lack rows (`shared_out`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from loaders.mixtures.proportions import Proportions
from loaders.order import Lookup, Order, Pick

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AtEnd: TypeAlias = Literal["repeat", "drop", "stop"]
"""What becomes of a mixture when a dataset ends: its next pass begins, the others share its weight, or all ends."""


class Change(NamedTuple):
    """Weights that hold from a position on."""

    start: int
    weights: tuple[int, ...]
    """Weight of each dataset, 0 for one that takes no part."""
    counts: tuple[int, ...]
    """Index of each dataset at the position."""


class Member(NamedTuple):
    """A dataset of a mixture as its order sees it."""

    order: Order
    """Order of the dataset alone; the shards of the datasets before it count no samples."""
    at_end: AtEnd
    stop: int | None
    """Number of samples after which the dataset ends; None for one that is repeated."""


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
        """Return where the samples of positions `first` to `stop` come from, all of which belong to the segment."""
        import numpy as np

        chosen = self.proportions.between(first - self.start, stop - self.start)
        counts, indexes = self.counts_at(first), np.empty(stop - first, np.int64)
        for number, member in enumerate(self.members):
            places = np.flatnonzero(chosen == number)
            indexes[places] = counts[member] + np.arange(len(places))
        return Origins(np.arange(first, stop), np.asarray(self.members)[chosen], indexes)


class Origins(NamedTuple):
    """Where the samples of successive positions come from; positions without a sample are left out."""

    positions: NDArray[np.int64]
    """Position in the mixture, shape (samples,)."""
    members: NDArray[np.int64]
    """Number of the dataset, shape (samples,)."""
    indexes: NDArray[np.int64]
    """Position in the dataset's own order, shape (samples,)."""


@dataclass(frozen=True, kw_only=True)
class MixedOrder(Order):
    """Everything that the sequence of a mixture depends on; `shard_samples` are those of all datasets."""

    members: tuple[Member, ...]
    changes: tuple[Change, ...]
    """Weights from position 0 on, and from every later position at which they were changed."""
    positions_of_epoch: int
    whole_batches: bool = False
    """Whether the mixture ends with the last batch that its samples fill, as a training does."""

    @property
    def epoch_samples(self) -> int:
        """Number of positions in an epoch."""
        return self.positions_of_epoch

    @cached_property
    def end(self) -> int | None:
        return self._segments[-1].stop if self._segments else self.changes[-1].start

    @cached_property
    def num_batches(self) -> int | None:
        """Number of batches until the mixture ends; without `whole_batches` the last may have rows without a sample."""
        if self.end is None:
            return None
        return self.end // self.global_batch if self.whole_batches else -(-self.end // self.global_batch)

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
        """Return where the samples of positions `first` to `stop` come from."""
        import numpy as np

        found = [Origins(*(np.empty(0, np.int64) for _ in Origins._fields))]
        for segment in self._segments:
            low, high = max(first, segment.start), stop if segment.stop is None else min(stop, segment.stop)
            if low < high:
                found.append(segment.origins(low, high))
        return Origins(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def every(self, world_size: int, position: int) -> Iterator[Pick]:
        """Yield the samples at a position and at every `world_size`-th position after it, each as its own piece."""
        lookups = [Lookup(member.order) for member in self.members]
        while len((found := self.origins(position, position + 1)).positions):
            pick = lookups[found.members[0]].at(int(found.indexes[0]))
            yield pick._replace(position=position)
            position += world_size

    def changed(self, position: int, weights: tuple[int, ...]) -> tuple[Change, ...]:
        """Return the changes up to a position, and one to these weights unless they hold there already."""
        before = tuple(change for change in self.changes if change.start <= position)
        if before[-1].weights == weights:
            return before
        counts = self.counts_at(position)
        return (*(change for change in before if change.start < position), Change(position, weights, counts))

    @cached_property
    def _segments(self) -> tuple[Segment, ...]:
        """All segments; empty where nothing takes part from the first position on."""
        found: list[Segment] = []
        for number, change in enumerate(self.changes):
            stop = self.changes[number + 1].start if number + 1 < len(self.changes) else None
            found += self._after(change, stop)
        return tuple(found)

    def _after(self, change: Change, stop: int | None) -> Iterator[Segment]:
        """Yield the segments from a change until the next one."""
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
    """Share the positions of a batch out among the ranks, at most `rows` to each.

    Args:
        home_N: Rank that each position belongs to, shape (positions,).
        world_size: Number of ranks.
        rows: Rows of a batch that each rank has.

    Returns:
        The rank that takes each position: its own one if it has a row left, else the first rank that has.
    """
    import numpy as np

    by_rank = np.argsort(home_N, kind="stable")
    counts = np.bincount(home_N, minlength=world_size)
    place = np.empty_like(home_N)
    place[by_rank] = np.arange(len(home_N)) - np.repeat(np.cumsum(counts) - counts, counts)
    moved = np.flatnonzero(place >= rows)
    free = np.repeat(np.arange(world_size), rows - np.minimum(counts, rows))
    taken_by = home_N.copy()
    taken_by[moved] = free[: len(moved)]
    return taken_by
