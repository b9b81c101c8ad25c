"""Training steps of a model by its name, on a real device: for `dataprep diagnose`, which measures them.

Shapes: N images, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from dataprep.arrays import NDArray, np
from loaders.torch import normalize
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.batches.masks import MaskConfig, draw_masks
from train.loops.runtime import Runtime, open_autocast, open_runtime
from train.models.mae import MaskedAutoencoder
from train.models.registry import TinyCNN, create_model
from train.optim.optimizer import open_adamw

NUM_CLASSES = 1000
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.05


@dataclass(frozen=True, slots=True)
class Resident:
    """A batch that is on the device."""

    images_NHWC: torch.Tensor
    """Images, uint8, 0..255."""
    targets: tuple[torch.Tensor, ...]
    """Labels; for a masked autoencoder the indices of `train.batches.masks.Masks`, int32."""


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
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Resident:
        """Copy a batch to the device; return when it has arrived.

        Another thread may run a step meanwhile. On XLA the copy then runs during the step, and is awaited after it.

        Args:
            images_NHWC: Values from 0 to 255.
            labels_N: Any integers; they are taken modulo the number of classes.
        """
        images = self.runtime.put(torch.from_numpy(images_NHWC))
        targets = tuple(self.runtime.put(torch.from_numpy(each)) for each in self._targets(labels_N))
        if self.runtime.name == "xla":
            with self._lock:  # a step of another thread would launch half of the operations recorded here
                int(images[0, 0, 0, 0])
        elif self.runtime.name == "tpu":
            self.runtime.wait()
        elif self.runtime.name == "cuda":
            torch.cuda.current_stream().synchronize()
        return Resident(images, targets)

    def step(self, resident: Resident) -> None:
        """Normalise, forward, backward, AdamW; return when the device is done."""
        with self._lock:
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
        images_NHWC = resident.images_NHWC[:, ::stride, ::stride]
        images_NCHW = normalize(images_NHWC, mean=IMAGENET_MEAN, std=IMAGENET_STD)
        with open_autocast(self.runtime.device, "auto"):
            if isinstance(self.model, MaskedAutoencoder):
                visible_NK, place_NL = resident.targets
                loss = self.model(images_NCHW, visible_NK.long(), place_NL.long()).loss
            else:
                loss = F.cross_entropy(self.model(images_NCHW).float(), resident.targets[0])
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
    """Make a model, with its optimiser, that can be trained on batches from memory.

    Args:
        model: One of `train.models.registry.model_names()`.
        device: `xla`, `tpu`, `cuda` or `cpu`.
        batch_size: Images of a step.
        image_size: Side of the images, pixels.

    Raises:
        UsageError: There is no such model or device, or the model does not take such images.
    """
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
