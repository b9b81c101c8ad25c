"""`--diagnose` of a run in JAX: the very updates that training would make, measured.

Shapes: N images of this host, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from loaders.findings import Diagnosis
from train.diagnosis import diagnose_run
from train.jax_loop import Training
from train.jax_steps import DATA_AXIS, Batch


@dataclass(frozen=True, slots=True)
class TrainingDevice:
    """The steps of a run, for `loaders.diagnose`."""

    training: Training
    name: str

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Batch:
        """A batch on the devices, cut as in training; returns when it is there."""
        rows = NamedSharding(self.training.mesh, PartitionSpec(DATA_AXIS))
        arrays = images_NHWC, labels_N.astype(np.int32), np.ones(len(labels_N), np.bool_)
        return Batch(*jax.block_until_ready(jax.device_put(arrays, rows)))

    def step(self, resident: Batch) -> None:
        """One update; returns when the devices are done with it."""
        self.training.apply(resident, lr=0.0)
        jax.block_until_ready(self.training.state)


def diagnose_training(training: Training, *, name: str, seconds: float = 3.0) -> Diagnosis:
    """As `diagnose_run`."""
    return diagnose_run(
        training.loader,
        TrainingDevice(training, name),
        transfer_ahead=training.config.prefetch,
        folder=training.logs.folder,
        seconds=seconds,
    )
