"""Which sample belongs in which row of a rank's batches: the order, cut into batches and shared among processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loaders.order import Order, Pick, stored_picks


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The batches of one rank from `first_batch` on; picklable. Training has no end, an evaluation has one.

    With `parts` processes each takes every parts-th row of the rank's sequence, whatever batch the row is in.
    """

    order: Order
    shuffle: bool
    rank: int
    world_size: int
    first_batch: int
    part: int = 0
    parts: int = 1
    row_images: int = 1
    """Images in a row; with packs more than one, and `parts` must divide the rank's rows."""

    @property
    def num_batches(self) -> int:
        """Number of batches in an evaluation; the last one is padded with rows that hold no sample."""
        return -(-self.order.num_samples // self.order.global_batch)

    @property
    def batches_left(self) -> int | None:
        """Number of batches from the first one to the end; None if there is no end."""
        return None if self.shuffle else self.num_batches - self.first_batch

    def __iter__(self) -> Iterator[list[tuple[int, Pick]]]:
        """Yield for each batch its rows with their samples; padding rows are left out."""
        batch_size, number = self.order.global_batch, self.first_batch
        batch: list[tuple[int, Pick]] = []
        for pick in self._picks():
            while pick.position >= (number + 1) * batch_size:
                yield batch
                batch, number = [], number + 1
            batch.append((self._place(pick.position % batch_size // self.world_size), pick))
        for _ in range(number, self.num_batches):
            yield batch
            batch = []

    def _place(self, image: int) -> int:
        """Return the place of the rank's i-th image of a batch, counted row by row: each row takes one after the other.

        So a row holds every R-th image of the whole batch, where R is its number of rows, and a rank that has every
        W-th row reads the same samples as one that has every W-th image.
        """
        rows = self.order.global_batch // self.world_size // self.row_images
        return image % rows * self.row_images + image // rows

    def _picks(self) -> Iterator[Pick]:
        rows = self.order.global_batch // self.world_size
        row = self.first_batch * rows  # number of the row in the rank's own sequence
        row += (self.part - row) % self.parts
        position, step = row * self.world_size + self.rank, self.world_size * self.parts
        if self.shuffle:
            return self.order.every(step, position)
        counts, at_once = self.order.shard_samples, self.order.samples_per_block
        return stored_picks(counts, first=position, step=step, samples_per_block=at_once)
