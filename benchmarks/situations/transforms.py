"""Slow transforms whose names contain their cost: `python_pixels_5000`, `in_turn_800` (microseconds), `garbage_20000`.

A loader and `dataprep diagnose --transform benchmarks.situations.transforms:NAME` find them by `getattr`.

Shapes: image_HWC, uint8, 0..255.
"""

from __future__ import annotations

import fcntl
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class PythonPixels:
    """Transform that posterises a number of values one by one in Python, and so holds the interpreter lock."""

    values: int

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        import numpy as np

        values = bytearray(image_HWC)
        for index in range(self.values):
            values[index % len(values)] &= 0xF0
        return np.frombuffer(values, np.uint8).reshape(image_HWC.shape)


@dataclass(frozen=True, slots=True)
class InTurn:
    """Transform that waits, for one image at a time in each process, and uses no core."""

    seconds: float

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        with _ONE_AT_A_TIME:
            time.sleep(self.seconds)
        return image_HWC


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Transform that waits in every thread independently, and uses no core."""

    seconds: float

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        time.sleep(self.seconds)
        return image_HWC


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


def python_pixels(values: int) -> str:
    """The name of a transform for `--transform`."""
    return f"{__name__}:python_pixels_{values}"


def in_turn(microseconds: int) -> str:
    """The name of a transform for `--transform`."""
    return f"{__name__}:in_turn_{microseconds}"


def side_by_side(microseconds: int) -> str:
    """The name of a transform for `--transform`."""
    return f"{__name__}:side_by_side_{microseconds}"


def garbage(objects: int) -> str:
    """The name of a transform for `--transform`."""
    return f"{__name__}:garbage_{objects}"


def machine_lock(microseconds: int) -> str:
    """The name of a transform for `--transform`."""
    return f"{__name__}:machine_lock_{microseconds}"


def __getattr__(name: str) -> Any:
    kind, _, cost = name.rpartition("_")
    if cost.isdigit() and kind == "python_pixels":
        return PythonPixels(int(cost))
    if cost.isdigit() and kind == "in_turn":
        return InTurn(int(cost) / 1e6)
    if cost.isdigit() and kind == "side_by_side":
        return SideBySide(int(cost) / 1e6)
    if cost.isdigit() and kind == "garbage":
        return Garbage(int(cost))
    if cost.isdigit() and kind == "machine_lock":
        return MachineLock(int(cost) / 1e6)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
