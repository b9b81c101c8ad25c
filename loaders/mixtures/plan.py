"""Which sample belongs in which row of a mixture's batches: its order, shared out among ranks and processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from loaders.engine.batch_plan import BatchPlan
from loaders.mixtures.order import MixedOrder, shared_out
from loaders.order import Lookup, Pick

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Share(NamedTuple):
    """The samples of one batch, and which of them one rank takes; every array has shape (samples,)."""

    positions: NDArray[np.int64]
    """Position in the mixture, ascending."""
    members: NDArray[np.int64]
    """Number of the dataset."""
    indexes: NDArray[np.int64]
    """Position in the dataset's own order."""
    home: NDArray[np.int64]
    """Rank that the sample belongs to."""
    is_mine: NDArray[np.bool_]
    """Whether this rank takes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _MixedBatches(BatchPlan):
    """What all plans of a mixture's training have in common."""

    order: MixedOrder

    @property
    def batches_left(self) -> int | None:
        """Number of batches from the first one to the end; None if there is no end."""
        num_batches = self.order.num_batches
        return None if num_batches is None else max(0, num_batches - self.first_batch)

    def _numbers(self) -> Iterable[int]:
        """Return the numbers of the batches that are left."""
        left = self.batches_left
        return count(self.first_batch) if left is None else range(self.first_batch, self.first_batch + left)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPackPlan(_MixedBatches):
    """The batches of packs of one rank of a training; picklable.

    A row holds the same positions as that of a single dataset, so that it is the same for every number of ranks, and a
    process makes whole rows. The samples of a dataset's block then belong to many rows, and each is read by itself.
    """

    def __iter__(self) -> Iterator[list[tuple[int, Pick]]]:
        """Yield for each batch the places of this process's images with their samples."""
        import numpy as np

        lookups, size = [Lookup(member.order) for member in self.order.members], self.order.global_batch
        for number in self._numbers():
            positions, members, indexes = self.order.origins(number * size, (number + 1) * size)
            own, rank = np.divmod(positions % size, self.world_size)
            batch = []
            for at in np.flatnonzero((rank == self.rank) & (own % self.parts == self.part)).tolist():
                pick = lookups[members[at]].at(int(indexes[at]))
                batch.append((self._place(int(own[at])), pick._replace(position=int(positions[at]))))
            yield batch


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPlan(_MixedBatches):
    """The batches of one rank of a training from `first_batch` on; picklable.

    Rank r is at home to the samples of each dataset whose index j has j % world_size == r. Where a batch has more of
    them than the rank has rows, the last ones become rows of other ranks. Of `parts` processes, number
    (j // world_size) % parts makes the row, so each piece of a shard is read by one process.
    """

    def __iter__(self) -> Iterator[list[tuple[int, Pick]]]:
        """Yield for each batch its rows with their samples; rows without a sample are left out."""
        sources = [_Source(self, number) for number in range(len(self.order.members))]
        released: list[Pick] = []
        for number in self._numbers():
            yield self._batch(number, sources, released)

    def share(self, number: int) -> Share:
        """Return what of one batch the rank takes, all its processes together."""
        size, world_size = self.order.global_batch, self.world_size
        positions, members, indexes = self.order.origins(number * size, (number + 1) * size)
        home = indexes % world_size
        return Share(positions, members, indexes, home, shared_out(home, world_size, size // world_size) == self.rank)

    def _batch(self, number: int, sources: list[_Source], released: list[Pick]) -> list[tuple[int, Pick]]:
        """Return the rows of one batch.

        Args:
            number: Number of the batch.
            sources: The datasets, from which all batches before it were taken.
            released: Samples at home here that other ranks take, and that no pick has named yet.
        """
        import numpy as np

        positions, members, indexes, home, is_mine = self.share(number)
        rows = np.cumsum(is_mine) - 1
        wanted = (is_mine | (home == self.rank)) & (indexes // self.world_size % self.parts == self.part)
        batch: list[tuple[int, Pick]] = []
        for place in np.flatnonzero(wanted).tolist():
            source, index = sources[members[place]], int(indexes[place])
            pick = source.next_at_home(index) if home[place] == self.rank else source.elsewhere(index)
            if not is_mine[place]:
                released.append(pick)
                continue
            pick = Pick(int(positions[place]), pick.piece, pick.sample, pick.of_piece, tuple(released))
            released.clear()
            batch.append((int(rows[place]), pick))
        return batch


class _Source:
    """The samples of one dataset for one process of a rank."""

    def __init__(self, plan: MixedPlan, number: int) -> None:
        self._order = plan.order.members[number].order
        self._step = plan.world_size * plan.parts
        self._at_home: Iterator[Pick] | None = None
        self._lookup: Lookup | None = None

    def next_at_home(self, index: int) -> Pick:
        """Return the next sample that is at home in this process; its index only matters for the first one."""
        if self._at_home is None:
            self._at_home = self._order.every(self._step, index)
        return next(self._at_home)

    def elsewhere(self, index: int) -> Pick:
        """Return a sample that is at home in another rank, as a piece of its own."""
        if self._lookup is None:
            self._lookup = Lookup(self._order)
        return self._lookup.at(index)
