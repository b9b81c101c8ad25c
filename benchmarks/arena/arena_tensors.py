"""Parts that several peers of the arena share: torchvision's fast road, which stays in uint8 tensors from the file on.

Shapes: C = 3, H = W = `image_size`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from arena_peers import CROP_AREA, CROP_ASPECT, PeerConfig, endless, started_by
from arena_peers import torch_batches as batches
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

__all__ = ["Decoded", "augmentation", "batches", "endless", "read", "started_by"]


def augmentation(config: PeerConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a random resized crop and a flip of uint8 tensors, as torchvision's page on performance advises."""
    crop = v2.RandomResizedCrop(
        config.image_size,
        scale=CROP_AREA,
        ratio=CROP_ASPECT,
        interpolation=v2.InterpolationMode(config.interpolation),
        antialias=True,
    )
    flipped: Callable[[torch.Tensor], torch.Tensor] = v2.Compose([crop, v2.RandomHorizontalFlip()])
    return flipped


def read(path: str | Path) -> bytes:
    """Return the bytes of a file."""
    return Path(path).read_bytes()


class Decoded:
    """Turns the bytes of a JPEG into an augmented uint8 tensor, CHW."""

    def __init__(self, config: PeerConfig) -> None:
        self._augment = augmentation(config)

    def __call__(self, data: bytes) -> torch.Tensor:
        return self._augment(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB))
