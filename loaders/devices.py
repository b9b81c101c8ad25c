"""What a batch is fed to, by its name on a command line: a real model on a real device, or a device that only waits.

    simulated:2000                        2,000 images/s
    simulated:2000,transfer=3000          and 3,000 images/s on the way to it
    simulated:2000,step-ms=5              and 5 ms a step whatever the batch
    simulated:2000,transfer-ms=2          and 2 ms a transfer whatever the batch

A simulated device takes the time and no core, as an accelerator does.

Shapes: images_NHWC, uint8, 0..255.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dataprep.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIMULATED = "simulated"
DEVICES = ("xla", "cuda", "cpu", SIMULATED)


class Device(Protocol):
    """Where training steps run. `put` may be called by a thread other than the one that steps."""

    @property
    def name(self) -> str:
        """For people."""

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Any:
        """A batch on the device; returns when it is there."""

    def step(self, resident: Any) -> None:
        """One training step; returns when the device is done with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """A device of given speeds."""

    name: str
    images_per_s: float
    transfer_images_per_s: float = float("inf")
    step_s: float = 0.0
    transfer_s: float = 0.0

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> int:
        """Take the time of a transfer; the batch's size."""
        _wait(self.transfer_s + len(images_NHWC) / self.transfer_images_per_s)
        return len(images_NHWC)

    def step(self, resident: int) -> None:
        """Take the time of a step."""
        _wait(self.step_s + resident / self.images_per_s)


def parse_simulated(text: str) -> Simulated:
    """The device of `simulated:IMAGES_PER_S[,transfer=IMAGES_PER_S][,step-ms=MS][,transfer-ms=MS]`.

    Raises:
        UsageError: Anything else.
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
    """`time.sleep` to within some ten microseconds."""
    until_s = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - 1e-4))
    while time.perf_counter() < until_s:
        pass
