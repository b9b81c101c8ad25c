"""Functions that devices run for `train.train_resnet_jax`: initialise, one update, one batch of an evaluation.

Everything is a function of its arguments under `jax.jit`. A batch is sharded along the `data` axis of a mesh of all
processes' devices, and each device holds a copy of the state, so a sum over a batch is a sum over all devices.

Shapes: B images of the global batch, H x W pixels, C = 3 channels, K classes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from dataprep.errors import UsageError, install_hint
from loaders.jax import JaxBatch
from train.loops.backend import Update
from train.loops.jax import DATA_AXIS, Batch, Steps, judged, normalised
from train.models.jax_resnet import ResNet

_PROCESS_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


class State(NamedTuple):
    """Arrays that an update changes; float32."""

    params: Any
    batch_stats: Any
    optimizer: Any


def join_processes() -> None:
    """Connect to the other processes of a TPU pod or cluster; call this before devices are used.

    Elsewhere JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID describe the processes.

    Raises:
        UsageError: The environment sets only some of the three, or there is no device.
    """
    _, processes, process = (os.environ.get(name) for name in _PROCESS_VARIABLES)
    try:
        jax.distributed.initialize(
            num_processes=None if processes is None else int(processes),
            process_id=None if process is None else int(process),
        )
    except ValueError as error:  # this is not a cluster that JAX detects
        if given := [name for name in _PROCESS_VARIABLES if name in os.environ]:
            raise UsageError(f"{', '.join(given)}: {error}; set {', '.join(_PROCESS_VARIABLES)}") from None
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        named, reason = os.environ.get("JAX_PLATFORMS", ""), str(error).partition(" (")[0]
        raise UsageError(
            f"no device (JAX_PLATFORMS={named}): {reason or 'not found'}; on a TPU {install_hint('tpu-jax')}, "
            "elsewhere set JAX_PLATFORMS=cpu"
        ) from None


def all_devices() -> Mesh:
    """Make a mesh of one axis over the devices of all processes, one process's side by side."""
    return Mesh(np.asarray(jax.devices()), (DATA_AXIS,))


class ResNetSteps(Steps):
    """The functions of one network and optimiser on one mesh.

    Args:
        model: Network whose batch statistics are computed over complete batches.
        momentum: Momentum of SGD, with Nesterov's correction.
        weight_decay: Factor of a weight that is added to its gradient; vectors do not decay.
    """

    def __init__(self, model: ResNet, mesh: Mesh, *, momentum: float, weight_decay: float) -> None:
        self._model = model
        self._optimizer = optax.chain(
            optax.add_decayed_weights(weight_decay, mask=partial(jax.tree.map, lambda each: each.ndim > 1)),
            optax.trace(decay=momentum, nesterov=True),
        )
        self._copies = NamedSharding(mesh, PartitionSpec())
        self.update = jax.jit(self._update, donate_argnums=0, out_shardings=self._copies)
        """(State, Batch, lr) -> (State, {loss, accuracy}), means over the batch."""
        self.evaluate = jax.jit(self._evaluate, out_shardings=self._copies)
        """(State, Batch) -> {loss, correct, images}, sums over the batch."""

    def initial(self, *, seed: int, image_size: int) -> State:
        """Draw weights from a seed; they do not depend on the number of devices."""

        def state_of(key: jax.Array) -> State:
            variables = self._model.init(key, jnp.zeros((1, image_size, image_size, 3)), train=False)
            params = variables["params"]
            return State(params, variables["batch_stats"], self._optimizer.init(params))

        state: State = jax.jit(state_of, out_shardings=self._copies)(jax.random.key(seed))
        return state

    def inputs(self, batch: JaxBatch, update: Update) -> Batch:
        return Batch(batch.images, batch.labels, batch.mask)

    def from_torch(self, where: str, state: Mapping[str, Any], values: State) -> dict[str, NDArray[Any]]:
        """Refuse a checkpoint of PyTorch, whose ResNets have other weights, with a UsageError."""
        raise UsageError(f"{where}: a checkpoint of PyTorch, expected one of dataprep-train-resnet-jax")

    def _update(self, state: State, batch: Batch, lr: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        def loss_of(params: Any) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits_BK, changed = self._model.apply(
                variables, normalised(batch.images_BHWC), train=True, mutable=["batch_stats"]
            )
            sums = judged(logits_BK, batch)
            images = jnp.maximum(sums["images"], 1)
            loss = sums["loss"] / images
            return loss, (changed["batch_stats"], {"loss": loss, "accuracy": sums["correct"] / images})

        gradient, (batch_stats, means) = jax.grad(loss_of, has_aux=True)(state.params)
        direction, optimizer = self._optimizer.update(gradient, state.optimizer, state.params)
        params = jax.tree.map(lambda each, step: each - lr * step, state.params, direction)
        return State(params, batch_stats, optimizer), means

    def _evaluate(self, state: State, batch: Batch) -> dict[str, jax.Array]:
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        logits_BK: Any = self._model.apply(variables, normalised(batch.images_BHWC), train=False)
        return judged(logits_BK, batch)
