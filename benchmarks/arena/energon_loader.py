"""Megatron Energon: a task encoder that decodes bytes to tensors, over tars that `energon prepare` has indexed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from arena_peers import SHUFFLE_SAMPLES, PeerConfig
from arena_tensors import Decoded
from megatron.energon import (
    DefaultTaskEncoder,
    ImageClassificationSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    stateless,
)

if TYPE_CHECKING:
    from arena_peers import Batch


class Images(DefaultTaskEncoder):
    """Decodes and augments bytes, and makes batches of tensors."""

    decoder = None

    def __init__(self, config: PeerConfig) -> None:
        super().__init__()
        self._decoded = Decoded(config)

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: ImageClassificationSample) -> ImageClassificationSample:
        sample.image = self._decoded(sample.image)
        return sample

    def batch(self, samples: list[ImageClassificationSample]) -> tuple[Any, Any]:
        return torch.stack([each.image for each in samples]), torch.tensor([int(each.label) for each in samples])


@dataclass(frozen=True, slots=True)
class Energon:
    """Tars of `dataprep build` in worker processes."""

    config: PeerConfig
    layout: ClassVar[str] = "energon"
    packages: ClassVar[dict[str, str]] = {"megatron.energon": "megatron-energon"}

    def iterate(self) -> Iterator[Batch]:
        config = self.config
        dataset = get_train_dataset(
            config.root,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=config.workers),
            batch_size=config.batch_size,
            shuffle_buffer_size=SHUFFLE_SAMPLES // config.workers,
            max_samples_per_sequence=100,
            task_encoder=Images(config),
            batch_drop_last=True,
            repeat=True,
        )
        for images_NCHW, labels_N in get_loader(dataset):
            yield images_NCHW.permute(0, 2, 3, 1).numpy(), labels_N.numpy()
