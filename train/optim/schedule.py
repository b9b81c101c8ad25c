"""Learning rates and sizes of batches: pure functions of the epoch or the position."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TypeAlias

from dataprep.arguments import MOST_COUNT
from dataprep.errors import UsageError
from dataprep.messages import counted

BASE_BATCH = 256
"""Batch size to which base learning rates refer: Goyal et al., "Accurate, large minibatch SGD", 2017."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfCosine:
    """A linear rise, then half a period of a cosine down: Loshchilov and Hutter, "SGDR", ICLR 2017. Raises UsageError
    if the rise takes longer than the run."""

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
    """A learning rate that rises linearly, is divided by `divisor` every `every_epochs` epochs, and else constant."""

    lr: float
    """Learning rate at the start."""
    divisor: float
    """1 or more."""
    every_epochs: float
    """Above 0."""
    warmup_epochs: float = 0.0

    def at(self, epoch: float) -> float:
        """Return the learning rate after a number of epochs."""
        risen = 1.0 if epoch >= self.warmup_epochs else epoch / self.warmup_epochs
        try:
            return float(risen * (self.lr / self.divisor ** (epoch // self.every_epochs)))
        except OverflowError:  # the divisor exceeds float's range, so the rate is 0
            return 0.0


Schedule: TypeAlias = HalfCosine | Steps
MIN_UPDATES = 20
"""Updates that an epoch has at least with a default batch, if that does not make the batch smaller than MIN_BATCH."""
MIN_BATCH = 16
"""Smallest default batch: batch normalisation needs some images (Wu and He, "Group normalization", 2018, figure 1)."""


def fitted_batch(most: int, images: int, shares: int = 1) -> int:
    """Return a default batch: the recipe's, halved until an epoch has MIN_UPDATES; it is divisible by `shares`."""
    batch = most
    while batch * MIN_UPDATES > images and batch // 2 >= MIN_BATCH and batch % (2 * shares) == 0:
        batch //= 2
    return batch


def fitted_warmup(warmup: float, recipe_epochs: float, epochs: float) -> float:
    """Return a default warm-up in epochs: in a run shorter than its recipe it is the same share of the run."""
    return warmup * min(1.0, epochs / recipe_epochs)


def scaled_lr(base_lr: float, effective_batch_size: int) -> float:
    """Return the peak learning rate for a batch over all devices and accumulated parts. Raises UsageError if it is too
    large for a number."""
    lr = base_lr * effective_batch_size / BASE_BATCH
    if not math.isfinite(lr):
        raise UsageError(
            f"a learning rate of {base_lr:g} for {BASE_BATCH} images is beyond all numbers for "
            f"{effective_batch_size:,}; choose a lower one"
        )
    return lr


_RAMP = re.compile(r"([0-9]{1,10}):([0-9]{1,10})@([0-9]{1,10}(?:\.[0-9]{1,9})?) ?(epoch|image|step)s?")


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRamp:
    """Batches that double from one size to another; each size below the last has an equal part of the ramp.

    Doubling, as in Smith et al., "Don't decay the learning rate, increase the batch size", ICLR 2018: every size is a
    multiple of the first, so devices that share it share all, and XLA compiles few of them.
    """

    text: str
    """As it was given, for messages."""
    sizes: tuple[int, ...]
    """Images of an update, ascending; two or more."""
    length: Fraction
    """Length of the ramp, which begins with the run: the last size holds from its end on."""
    unit: str
    """Unit of the length: `epoch`, `image` or `step`."""

    @property
    def last(self) -> int:
        """Images of an update after the ramp."""
        return self.sizes[-1]

    def check_alone(self, flags: object) -> None:
        """Raise UsageError if flags say another batch, or ask for a measurement with batches of one size."""
        for name in ("batch_size", "effective_batch_size"):
            if (getattr(flags, name, None) or 0) > 0:
                raise self._refused(f"and `{name}` both say how many images an update has; give one of them")
        if getattr(flags, "diagnose", False):
            raise self._refused("`diagnose` measures batches of one size; give that size instead")

    def shares(self, lr_of: Callable[[int], float]) -> dict[int, float]:
        """Return the learning rate with each size as a share of the one with the last."""
        return {size: lr_of(size) / (lr_of(self.last) or 1.0) for size in self.sizes}

    def starts(self, epoch_images: int, epochs: int) -> tuple[tuple[int, int], ...]:
        """Return the position from which each size holds, and the size; ascending from position 0. Raises UsageError if
        the ramp is longer than the run, or a size has less than one batch."""
        parts = len(self.sizes) - 1
        length = self.length * epoch_images if self.unit == "epoch" else self.length
        bounds = [math.floor(length * part / parts) for part in range(parts + 1)]
        if self.unit == "step":
            images = ((stop - start) * size for (start, stop), size in zip(pairwise(bounds), self.sizes, strict=False))
            bounds = list(accumulate(images, initial=0))
        for (start, stop), size in zip(pairwise(bounds), self.sizes, strict=False):
            if stop - start < size:
                raise self._refused(
                    f"one of {parts} equal parts is {counted(stop - start, 'image')} long, less than its batch of "
                    f"{size:,}; choose a longer ramp"
                )
        if bounds[-1] > epochs * epoch_images:
            raise self._refused(
                f"the ramp takes {counted(bounds[-1], 'image')}, the run has {epochs:,} x {epoch_images:,} = "
                f"{epochs * epoch_images:,}; choose a shorter ramp"
            )
        return tuple(zip(bounds, self.sizes, strict=True))

    def _refused(self, why: str) -> UsageError:
        return UsageError(f"`batch_ramp` {self.text}: {why}")


def parse_ramp(text: str) -> BatchRamp | None:
    """Parse FIRST:LAST@LENGTH, e.g. 256:1024@20epochs; return None for an empty text. Raises UsageError if it has
    another form, or doubling does not lead from the first size to the last."""
    if not text:
        return None
    where, match = f"`batch_ramp` {text}", _RAMP.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{where}: expected FIRST:LAST@LENGTH with epochs, images or steps as the unit of the length, e.g. "
            "256:1024@20epochs"
        )
    first, last, length = int(match[1]), int(match[2]), Fraction(match[3])
    if not 1 <= first < last <= MOST_COUNT or not length:
        raise UsageError(f"{where}: a batch grows from 1 or more to a larger one over more than 0 {match[4]}s")
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    if sizes[-1] != last:
        raise UsageError(
            f"{where}: {first:,} doubles to {', '.join(f'{size:,}' for size in sizes[1:])}, not to {last:,}; choose "
            f"one of these as the last size"
        )
    return BatchRamp(text=text, sizes=tuple(sizes), length=length, unit=match[4])
