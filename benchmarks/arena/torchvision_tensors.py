"""torchvision in its fastest documented form: decode_jpeg, v2 transforms on uint8 tensors, DataLoader workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from arena_peers import PeerConfig
from arena_tensors import Decoded, batches, read
from torchvision.datasets import DatasetFolder

if TYPE_CHECKING:
    from arena_peers import Batch


@dataclass(frozen=True, slots=True)
class TorchvisionTensors:
    """Files in class folders."""

    config: PeerConfig
    layout: ClassVar[str] = "imagefolder"
    packages: ClassVar[dict[str, str]] = {"torchvision": "torchvision"}

    def iterate(self) -> Iterator[Batch]:
        dataset = DatasetFolder(
            str(self.config.root), read, extensions=(".jpeg", ".jpg"), transform=Decoded(self.config)
        )
        return batches(dataset, self.config, shuffle=True)
