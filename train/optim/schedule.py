"""Learning rates: pure functions of the epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dataprep.errors import UsageError

BASE_BATCH = 256
"""Batch size to which base learning rates refer: Goyal et al., "Accurate, large minibatch SGD", 2017."""


class Schedule(Protocol):
    """A learning rate over the epochs of a run."""

    def at(self, epoch: float) -> float:
        """Return the learning rate after a number of epochs, which may be fractional."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfCosine:
    """A linear rise, then half a period of a cosine down: Loshchilov and Hutter, "SGDR", ICLR 2017.

    Raises:
        UsageError: The rise takes longer than the run.
    """

    lr: float
    """Learning rate at the peak."""
    min_lr: float
    """Learning rate at the end."""
    warmup_epochs: float
    epochs: float

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_epochs <= self.epochs:
            raise UsageError(
                f"`warmup_epochs` {self.warmup_epochs:g} of {self.epochs:g} epochs; choose a part of them, e.g. "
                f"{self.epochs / 10:g}"
            )

    def at(self, epoch: float) -> float:
        """Return the learning rate after a number of epochs, which may be fractional."""
        if epoch < self.warmup_epochs:
            return self.lr * epoch / self.warmup_epochs
        falling = self.epochs - self.warmup_epochs
        share = min(1.0, (epoch - self.warmup_epochs) / falling) if falling else 1.0
        return self.min_lr + (self.lr - self.min_lr) * 0.5 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """A learning rate that is divided by `divisor` every `every_epochs` epochs, and constant in between."""

    lr: float
    """Learning rate at the start."""
    divisor: float
    """1 or more."""
    every_epochs: float
    """Above 0."""

    def at(self, epoch: float) -> float:
        """Return the learning rate after a number of epochs."""
        try:
            return float(self.lr / self.divisor ** (epoch // self.every_epochs))
        except OverflowError:  # the divisor exceeds float's range, so the rate is 0
            return 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmSteps:
    """A learning rate that rises linearly, and then falls as in `Steps`."""

    steps: Steps
    warmup_epochs: float

    def at(self, epoch: float) -> float:
        """Return the learning rate after a number of epochs."""
        risen = 1.0 if epoch >= self.warmup_epochs else epoch / self.warmup_epochs
        return risen * self.steps.at(epoch)


MIN_UPDATES = 20
"""Updates that an epoch has at least with a default batch, if that does not make the batch smaller than MIN_BATCH."""
MIN_BATCH = 16
"""Smallest default batch: batch normalisation needs some images (Wu and He, "Group normalization", 2018, figure 1)."""


def fitted_batch(most: int, images: int, shares: int = 1) -> int:
    """Return a default batch: the recipe's, halved until an epoch has MIN_UPDATES.

    Args:
        most: Batch of the recipe.
        shares: Parts into which the batch must be divisible.
    """
    batch = most
    while batch * MIN_UPDATES > images and batch // 2 >= MIN_BATCH and batch % (2 * shares) == 0:
        batch //= 2
    return batch


def fitted_warmup(warmup: float, recipe_epochs: float, epochs: float) -> float:
    """Return a default warm-up in epochs: in a run shorter than its recipe it is the same share of the run."""
    return warmup * min(1.0, epochs / recipe_epochs)


def scaled_lr(base_lr: float, effective_batch_size: int) -> float:
    """Return the peak learning rate for a batch over all devices and accumulated parts.

    Raises:
        UsageError: It is too large for a number.
    """
    lr = base_lr * effective_batch_size / BASE_BATCH
    if not math.isfinite(lr):
        raise UsageError(
            f"a learning rate of {base_lr:g} for {BASE_BATCH} images is beyond all numbers for "
            f"{effective_batch_size:,}; choose a lower one"
        )
    return lr
