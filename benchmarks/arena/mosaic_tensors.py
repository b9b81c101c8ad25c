"""MosaicML streaming with a column of bytes, decoded by torchvision's decode_jpeg, and v2 transforms on tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from arena_peers import PeerConfig
from arena_tensors import Decoded, batches
from streaming import StreamingDataset

if TYPE_CHECKING:
    from arena_peers import Batch


class Images(StreamingDataset):
    """Images and labels of MDS shards."""

    def __init__(self, config: PeerConfig) -> None:
        super().__init__(local=str(config.root), shuffle=True, batch_size=config.batch_size)
        self._decoded = Decoded(config)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        row: dict[str, Any] = super().__getitem__(index)
        return self._decoded(row["x"]), row["y"]


@dataclass(frozen=True, slots=True)
class MosaicTensors:
    """MDS shards in worker processes."""

    config: PeerConfig
    layout: ClassVar[str] = "mds-bytes"
    packages: ClassVar[dict[str, str]] = {"streaming": "mosaicml-streaming"}

    def iterate(self) -> Iterator[Batch]:
        return batches(Images(self.config), self.config)
