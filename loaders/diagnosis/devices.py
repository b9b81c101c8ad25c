"""Devices that batches are fed to: a real model on a real device, or a simulated one that only waits.

    simulated:2000                        computes 2,000 images/s
    simulated:2000,transfer=3000          and receives 3,000 images/s
    simulated:2000,step-ms=5              and takes 5 ms more a step, whatever the batch
    simulated:2000,transfer-ms=2          and takes 2 ms more a transfer, whatever the batch

A simulated device takes time but no core, like an accelerator.

Shapes: images_NHWC, uint8, 0..255.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dataprep.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIMULATED = "simulated"
DEVICES = ("xla", "tpu", "cuda", "cpu", SIMULATED)


class Device(Protocol):
    """A place where training steps run; `put` may be called by another thread than `step`."""

    @property
    def name(self) -> str:
        """Name that reports show."""

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Any:
        """Copy a batch to the device; return when it has arrived."""

    def step(self, resident: Any) -> None:
        """Make one training step; return when the device has finished it."""


@runtime_checkable
class SharesCores(Protocol):
    """A device that computes with threads on the cores that also decode."""

    @property
    def compute_threads(self) -> int:
        """Number of threads with which a step computes; 0 if it computes elsewhere."""

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads from now on; called by the thread that runs the steps."""


def compute_threads(device: Device) -> int:
    """Return the number of threads with which a device computes on this machine's cores; 0 if it does not."""
    return device.compute_threads if isinstance(device, SharesCores) else 0


@contextmanager
def using_threads(device: Device, count: int | None) -> Iterator[None]:
    """Let a device compute with another number of threads inside the context; None: as before."""
    if count is None or not isinstance(device, SharesCores):
        yield
        return
    before = device.compute_threads
    device.use_threads(count)
    try:
        yield
    finally:
        device.use_threads(before)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """A device that waits for as long as its rates say."""

    name: str
    images_per_s: float
    transfer_images_per_s: float = float("inf")
    step_s: float = 0.0
    transfer_s: float = 0.0

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> int:
        """Wait for as long as a transfer takes; return the size of the batch."""
        _wait(self.transfer_s + len(images_NHWC) / self.transfer_images_per_s)
        return len(images_NHWC)

    def step(self, resident: int) -> None:
        """Wait for as long as a step takes."""
        _wait(self.step_s + resident / self.images_per_s)


def parse_simulated(text: str) -> Simulated:
    """Return the device of `simulated:IMAGES_PER_S[,transfer=IMAGES_PER_S][,step-ms=MS][,transfer-ms=MS]`.

    Raises:
        UsageError: The text is anything else.
    """
    rate, *options = text.removeprefix(f"{SIMULATED}:").split(",")
    try:
        named = {name: float(value) for name, _, value in (option.partition("=") for option in options)}
        named["images_per_s"] = float(rate)
    except ValueError:
        raise UsageError(_expected(text)) from None
    if named.keys() - {"images_per_s", "transfer", "step-ms", "transfer-ms"} or not _are_speeds(named):
        raise UsageError(_expected(text))
    return Simulated(
        name=text,
        images_per_s=named["images_per_s"],
        transfer_images_per_s=named.get("transfer", float("inf")),
        step_s=named.get("step-ms", 0.0) / 1e3,
        transfer_s=named.get("transfer-ms", 0.0) / 1e3,
    )


def _are_speeds(named: Mapping[str, float]) -> bool:
    rates = [named["images_per_s"], named.get("transfer", 1.0)]
    times = [named.get("step-ms", 0.0), named.get("transfer-ms", 0.0)]
    return all(rate > 0 for rate in rates) and all(0 <= each < float("inf") for each in times)


def _expected(text: str) -> str:
    return (
        f"device {text!r}, expected simulated:IMAGES_PER_S with transfer=IMAGES_PER_S, step-ms=MS or transfer-ms=MS "
        "after it, e.g. simulated:2000,step-ms=5"
    )


def _wait(seconds: float) -> None:
    """Sleep, to within some ten microseconds."""
    until_s = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - 1e-4))
    while time.perf_counter() < until_s:
        pass
