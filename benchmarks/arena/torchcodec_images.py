"""torchcodec's decode_jpeg, which torchvision's page names as its successor, with v2 transforms on uint8 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from arena_peers import PeerConfig
from arena_tensors import augmentation, batches
from torchcodec.decoders import decode_jpeg
from torchvision.datasets import DatasetFolder

if TYPE_CHECKING:
    from arena_peers import Batch


@dataclass(frozen=True, slots=True)
class TorchCodec:
    """Files in class folders, read and decoded by torchcodec in worker processes."""

    config: PeerConfig
    layout: ClassVar[str] = "imagefolder"
    packages: ClassVar[dict[str, str]] = {"torchcodec": "torchcodec"}

    def iterate(self) -> Iterator[Batch]:
        dataset = DatasetFolder(
            str(self.config.root), decode_jpeg, extensions=(".jpeg", ".jpg"), transform=augmentation(self.config)
        )
        return batches(dataset, self.config, shuffle=True)
