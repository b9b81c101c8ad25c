"""Which positions make up a rank's batches, one step after the other, with a state that resumes after each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loaders.engine.batch import LoaderState
from loaders.loader import Loader
from loaders.samples.source import PADDING, Samples


class Steps:
    """Batches of positions, one epoch at a time: the batch sampler of a rank.

        steps = Steps(samples, batch_size=256, rank=0, world_size=4)
        for positions in steps:         # one epoch; the next `for` takes the next epoch
            batch = samples.__getitems__(positions)

    The states are those of a loader with the same settings, so either goes on where the other was. An evaluation begins
    anew with each `for` but the first one after `load_state_dict`; its last batch is filled up with `PADDING`, so that
    all ranks take equally many steps.

    Args:
        samples: The samples to choose from.
        batch_size: Number of samples in one step, over all ranks.
        rank: Rank from 0 to `world_size` - 1.
        world_size: Number of ranks; must divide the batch size.

    Raises:
        UsageError: There is no such rank, or the number of ranks does not divide the batch.
    """

    def __init__(self, samples: Samples, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self._loader: Loader = samples.loader(batch_size, rank, world_size)
        self._step = 0
        """Number of the next step, counted over all epochs."""
        self._start = 0
        """Step with which the next iteration of an evaluation starts."""

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next step belongs to."""
        loader = self._loader
        return loader.order.epoch_of(self._step) if loader.config.shuffle else 0

    def __len__(self) -> int:
        """Return the number of steps in the epoch of the next step; other epochs may have one more or less."""
        order, batch_size = self._loader.order, self._loader.config.batch_size
        return order.steps(self.epoch) if self._loader.config.shuffle else -(-order.num_samples // batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the positions of every step in the rest of the epoch."""
        if not self._loader.config.shuffle:  # here, for the same reason as in the loader
            self._step, self._start = self._start, 0
        return self._taken()

    def _taken(self) -> Iterator[list[int]]:
        order, config = self._loader.order, self._loader.config
        stop = order.first_batch(self.epoch + 1) if config.shuffle else len(self)
        while self._step < stop:
            first = self._step * config.batch_size
            positions = range(first + config.rank, first + config.batch_size, config.world_size)
            self._step += 1
            self._start = 0
            yield [each if config.shuffle or each < order.num_samples else PADDING for each in positions]
        if not config.shuffle:
            self._step = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the first step of an epoch."""
        if self._loader.config.shuffle:
            self._step = self._loader.order.first_batch(epoch)

    def state_dict(self) -> LoaderState:
        """Return the state after the last step that was taken."""
        return {
            **self._loader.state_dict(),
            "position": self._step * self._loader.config.batch_size,
            "epoch": self.epoch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the step of a state, which may come from another number of ranks.

        Raises:
            UsageError: The state belongs to another sequence; the message says what differs.
        """
        self._loader.load_state_dict(state)
        self._step = self._start = self._loader.state_dict()["position"] // self._loader.config.batch_size
