"""A few situations for tests: devices and stages that wait so long that the speed of loading does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.situations.situation import NONE, Situation
from benchmarks.situations.transforms import in_turn, side_by_side

IMAGE_SIZE = 32
BATCH = 8


@dataclass(frozen=True, slots=True)
class Known:
    """A situation whose truth follows from its numbers."""

    situation: Situation
    best: str
    images_per_s: float
    """Rate without a change."""
    best_images_per_s: float
    """Rate after the best change, as the judge makes it: a batch four times as large, two threads or processes."""


def small_set() -> list[Known]:
    """Return six situations for two cores or more; each takes a second or two to measure."""
    return [
        _known("device", "simulated:250,transfer=600", NONE, 250, 250, transfer_ahead=2),
        _known("transfer", "simulated:500,transfer=500", "transfer-ahead", 250, 500),
        _known("step-overhead", "simulated:2000,step-ms=36", "batch", 200, 615, transfer_ahead=2),
        _known("transfer-overhead", "simulated:800,transfer-ms=30", "batch", 200, 457),
        _known("serial", "simulated:350", "workers", 198, 350, transform=in_turn(5000), threads=2),
        _known("waiting", "simulated:350", "workers", 198, 350, transform=side_by_side(5000)),
    ]


def _known(name: str, device: str, best: str, images_per_s: float, best_images_per_s: float, **settings: Any) -> Known:
    situation = Situation(
        id=name,
        cause=name,
        is_real=False,
        device=device,
        batch_size=BATCH,
        image_size=IMAGE_SIZE,
        short_side=round(IMAGE_SIZE / 0.875),
        **settings,
    )
    return Known(situation, best, images_per_s, best_images_per_s)
