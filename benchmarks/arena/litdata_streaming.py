"""LitData's StreamingDataset of what litdata.optimize wrote, with bytes decoded to tensors by torchvision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import litdata
from arena_peers import PeerConfig
from arena_tensors import Decoded, endless

if TYPE_CHECKING:
    from arena_peers import Batch


class Images(litdata.StreamingDataset):
    """Images and labels of chunks."""

    def __init__(self, config: PeerConfig) -> None:
        super().__init__(str(config.root), shuffle=True, drop_last=True)
        self._decoded = Decoded(config)

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        row = super().__getitem__(index)
        return self._decoded(row["image"]), row["class"]


@dataclass(frozen=True, slots=True)
class LitData:
    """Chunks in worker processes."""

    config: PeerConfig
    layout: ClassVar[str] = "litdata"
    packages: ClassVar[dict[str, str]] = {"litdata": "litdata"}

    def iterate(self) -> Iterator[Batch]:
        config = self.config
        loader = litdata.StreamingDataLoader(
            Images(config),
            batch_size=config.batch_size,
            num_workers=config.workers,
            drop_last=True,
            persistent_workers=True,
        )
        return endless(loader, config)
