"""A data loader for torchtitan, whose training resumes with the batches that come next, on any number of ranks.

In a trainer's configuration: dataloader=ImageDataLoader.Config(dataset_path="gs://bucket/imagenet", image_size=224)

torchtitan's own ParallelAwareDataloader takes TorchBatches as well, but refuses its states on another number of ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from loaders import open_loader
from loaders.torch import TorchBatches


class ImageDataLoader(BaseDataLoader):
    """Images and labels of one rank, epoch after epoch."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        image_size: int = 224
        seed: int = 0

    def __init__(
        self, config: Config, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **_of_text: Any
    ) -> None:
        self.loader = open_loader(
            str(config.dataset_path),
            batch_size=local_batch_size * dp_world_size,
            image_size=config.image_size,
            seed=config.seed,
            rank=dp_rank,
            world_size=dp_world_size,
        )
        self._batches = TorchBatches(self.loader)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            for batch in self._batches:
                yield {"input": batch.images, "mask": batch.mask}, batch.labels

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch; it is the same on every rank."""
        return {"loader": json.dumps(self._batches.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after a state of any number of ranks, with the same number of images a step over all ranks."""
        self._batches.load_state_dict(json.loads(state_dict["loader"]))
