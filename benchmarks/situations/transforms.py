"""Slow transforms whose names contain their cost: `garbage_20000` (objects), `machine_lock_800` (microseconds).

A loader and `dataprep diagnose --transform benchmarks.situations.transforms:NAME` find them by `getattr`.

Shapes: image_HWC, uint8, 0..255.
"""

from __future__ import annotations

import fcntl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Garbage:
    """Transform that leaves objects in cycles behind for each image, which the interpreter stops to collect."""

    objects: int

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        for _ in range(self.objects):
            cycle: list[object] = []
            cycle.append(cycle)
        return image_HWC


@dataclass(frozen=True, slots=True)
class MachineLock:
    """Transform that waits while it holds a lock of the whole machine, so that further processes do not help."""

    seconds: float

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        with (Path(tempfile.gettempdir()) / "dataprep-situations.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(self.seconds)
        return image_HWC


def garbage(objects: int) -> str:
    """The name of a transform for `--transform`."""
    return f"{__name__}:garbage_{objects}"


def machine_lock(microseconds: int) -> str:
    """The name of a transform for `--transform`."""
    return f"{__name__}:machine_lock_{microseconds}"


def __getattr__(name: str) -> Any:
    kind, _, cost = name.rpartition("_")
    if cost.isdigit() and kind == "garbage":
        return Garbage(int(cost))
    if cost.isdigit() and kind == "machine_lock":
        return MachineLock(int(cost) / 1e6)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
