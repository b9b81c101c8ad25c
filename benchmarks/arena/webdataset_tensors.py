"""webdataset with bytes decoded by torchvision's decode_jpeg and v2 transforms on uint8 tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import webdataset
from arena_peers import SHUFFLE_SAMPLES, PeerConfig
from arena_tensors import Decoded, endless, started_by

if TYPE_CHECKING:
    from arena_peers import Batch


@dataclass(frozen=True, slots=True)
class WebDatasetTensors:
    """Tar files, in worker processes that make batches."""

    config: PeerConfig
    layout: ClassVar[str] = "webdataset"
    packages: ClassVar[dict[str, str]] = {"webdataset": "webdataset"}

    def iterate(self) -> Iterator[Batch]:
        shards = self.config.shards("*.tar")
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=len(shards))
            .shuffle(SHUFFLE_SAMPLES)
            .to_tuple("jpg;jpeg", "cls")
            .map_tuple(Decoded(self.config), int)
            .batched(self.config.batch_size, partial=False)
        )
        loader = webdataset.WebLoader(
            dataset,
            batch_size=None,
            num_workers=self.config.workers,
            persistent_workers=True,
            worker_init_fn=partial(started_by, os.getpid()),
        )
        return endless(loader, self.config)
