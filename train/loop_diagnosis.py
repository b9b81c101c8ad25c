"""`--diagnose` of a run in PyTorch: the very updates that training would make, measured.

Shapes: N images of this host, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from loaders.findings import Diagnosis
from loaders.torch import TorchBatch
from train.diagnosis import diagnose_run
from train.loop import Training

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TrainingDevice:
    """The steps of a run, for `loaders.diagnose`."""

    training: Training
    name: str

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> TorchBatch:
        """A batch on the device; returns when it is there."""
        runtime, images = self.training.runtime, len(images_NHWC)
        return TorchBatch(
            images=runtime.put_whole(torch.from_numpy(images_NHWC)),
            labels=runtime.put(torch.from_numpy(labels_N)),
            mask=runtime.put(torch.ones(images, dtype=torch.bool)),
            keys=[""] * images,
            fields={},
            state={},
        )

    def step(self, resident: TorchBatch) -> None:
        """One update; returns when the device is done with it."""
        self.training.apply(resident, range(len(resident.keys)))
        self.training.runtime.wait()


def diagnose_training(training: Training, *, name: str, seconds: float = 3.0) -> Diagnosis:
    """As `diagnose_run`."""
    return diagnose_run(
        training.loader,
        TrainingDevice(training, name),
        transfer_ahead=training.runtime.transfer_ahead,
        folder=training.logs.folder,
        seconds=seconds,
    )
