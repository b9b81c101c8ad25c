"""Training steps of a model by its name, on a real device: for `dataprep diagnose`, which measures them.

Shapes: N images, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from dataprep.arrays import NDArray, np
from train.batches.masks import MaskConfig, draw_masks
from train.loops.runtime import Runtime, open_autocast, open_runtime
from train.loops.tasks import normalised
from train.models.mae import MaskedAutoencoder
from train.models.registry import TinyCNN, create_model
from train.optim.optimizer import open_adamw

NUM_CLASSES = 1000
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.05


Resident: TypeAlias = tuple[torch.Tensor, *tuple[torch.Tensor, ...]]
"""A batch on the device: images, uint8, NHWC, then the labels; for a masked autoencoder the indices of
`train.batches.masks.Masks`, int32."""


@dataclass(slots=True)
class Workload:
    """A model and its optimiser on a device."""

    name: str
    model: nn.Module
    runtime: Runtime
    optimizer: torch.optim.Optimizer
    masks: MaskConfig | None
    """Settings of a masked autoencoder's masks; None for a classifier."""
    _positions: itertools.count[int] = field(default_factory=itertools.count)

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Resident:
        """Copy a batch, of 0..255 and any integers as labels, to the device; return when it has arrived. Another thread
        may run a step meanwhile."""
        targets = [self.runtime.put(torch.from_numpy(each)) for each in self._targets(labels_N)]
        return self.runtime.put_whole(torch.from_numpy(images_NHWC)), *targets

    def step(self, resident: Resident) -> None:
        """Normalise, forward, backward, AdamW; return when the device is done."""
        self._train(resident)
        self.runtime.wait()

    @property
    def compute_threads(self) -> int:
        """Number of threads of a step on a CPU; 0 on another device."""
        return self.runtime.compute_threads

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads from now on."""
        self.runtime.use_threads(count)

    def _train(self, resident: Resident) -> None:
        stride = self.model.pixel_stride if isinstance(self.model, TinyCNN) else 1
        images_NHWC, *targets = resident
        images_NCHW = normalised(images_NHWC[:, ::stride, ::stride])
        with open_autocast(self.runtime.device, "auto"):
            if isinstance(self.model, MaskedAutoencoder):
                visible_NK, place_NL = targets
                loss = self.model(images_NCHW, visible_NK.long(), place_NL.long()).loss
            else:
                loss = F.cross_entropy(self.model(images_NCHW).float(), targets[0])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _targets(self, labels_N: NDArray[np.int64]) -> tuple[NDArray[np.generic], ...]:
        if self.masks is None:
            return (labels_N % NUM_CLASSES,)
        first = next(self._positions) * len(labels_N)
        masks = draw_masks(self.masks, seed=0, positions=range(first, first + len(labels_N)))
        return masks.visible_NK, masks.place_NL


def training_workload(model: str, *, device: str, batch_size: int, image_size: int) -> Workload:
    """Make one of `train.models.registry.model_names()`, with its optimiser, to be trained on batches from memory.
    Raises UsageError if there is no such model or device, or the model does not take such images."""
    runtime = open_runtime(device)
    torch.manual_seed(0)
    network = create_model(model, image_size=image_size).to(runtime.device)
    masks = MaskConfig(grid=network.config.grid) if isinstance(network, MaskedAutoencoder) else None
    return Workload(
        name=f"{model} at {image_size} pixels, {batch_size} a step, on {device}",
        model=network,
        runtime=runtime,
        optimizer=open_adamw(network, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        masks=masks,
    )
