"""Arrays on JAX's devices: how devices are laid out, which array is cut where, copies on the host and their way back.

The devices of a mesh have two dimensions. A batch is cut along `data`, and under FSDP so are weights, gradients and
moments; the compiler gathers the weights of a block when it is computed, and frees them again. Along `model` the heads
of attention and the hidden layer of the MLP are cut (tensor parallelism: Shoeybi et al., "Megatron-LM", 2019), so that
one block's products are shared by devices that have the same images.

Shapes: B images of the global batch, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from dataprep.errors import UsageError
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.loops.fsdp import sharded_dimension

StateT = TypeVar("StateT")
DATA_AXIS = "data"
MODEL_AXIS = "model"
_STACKED = ("blocks", "decoder_blocks")
"""Names of modules whose weights have a first dimension for the depth, which is never cut."""
_MODEL_DIMENSIONS = {
    ("qkv", "kernel"): -2,
    ("qkv", "bias"): -2,
    ("attn", "q_bias"): -2,
    ("attn", "v_bias"): -2,
    ("attn/proj", "kernel"): -3,
    ("fc1", "kernel"): -1,
    ("fc1", "bias"): -1,
    ("fc2", "kernel"): -2,
}
"""Dimension that is cut along `model`, by the names of a module (with its parent's if needed) and of its weight."""


def open_mesh(tensor_parallel: int) -> Mesh:
    """Lay out the devices of all processes; devices that share heads are side by side.

    Args:
        tensor_parallel: Number of devices that share the heads of a block.

    Raises:
        UsageError: The devices of a process cannot be divided so.
    """
    local, devices = jax.local_device_count(), np.asarray(jax.devices())
    if local % tensor_parallel:
        raise UsageError(
            f"--tensor_parallel {tensor_parallel} does not divide the {local} devices of a process; choose a divisor "
            "of them"
        )
    return Mesh(devices.reshape(-1, tensor_parallel), (DATA_AXIS, MODEL_AXIS))


def shardings_of(tree: Any, mesh: Mesh, *, fsdp: bool) -> Any:
    """Return the sharding of each weight of a tree, or of what is kept for each weight.

    Args:
        tree: Arrays, or their shapes, in the layout of `train.models.jax_transformers`, or below other names.
        mesh: Devices, as `open_mesh` lays them out.
        fsdp: Whether weights are cut along `data`; otherwise each device along it has a copy.
    """

    def sharding_of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        return NamedSharding(mesh, _spec(names, tuple(leaf.shape), mesh, fsdp))

    return jax.tree_util.tree_map_with_path(sharding_of, tree)


def _spec(names: list[str], shape: tuple[int, ...], mesh: Mesh, fsdp: bool) -> PartitionSpec:
    axes: list[str | None] = [None] * len(shape)
    cut = _model_dimension(names, len(shape))
    if cut is not None and mesh.shape[MODEL_AXIS] > 1 and shape[cut] % mesh.shape[MODEL_AXIS] == 0:
        axes[cut] = MODEL_AXIS
    first = int(any(name in _STACKED for name in names))
    free = [0 if dimension < first or axes[dimension] else length for dimension, length in enumerate(shape)]
    longest = sharded_dimension(free, mesh.shape[DATA_AXIS]) if fsdp else None
    if longest is not None:
        axes[longest] = DATA_AXIS
    return PartitionSpec(*axes)


def _model_dimension(names: list[str], dimensions: int) -> int | None:
    for depth in (1, 2):
        module = "/".join(names[-1 - depth : -1])
        if (found := _MODEL_DIMENSIONS.get((module, names[-1]))) is not None:
            return dimensions + found
    return None


def named_leaves(state: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a tree by their names, e.g. `params/conv_init/kernel`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def arrays_of(state: Any) -> dict[str, NDArray[Any]]:
    """Copy a state to the host: arrays by the names of `named_leaves`."""
    return {name: np.asarray(leaf) for name, leaf in named_leaves(state)}


def on_devices(state: StateT, arrays: Mapping[str, NDArray[Any]]) -> StateT:
    """Copy arrays, by the names of `named_leaves`, to the devices, sharded as those of a state are.

    Raises:
        UsageError: Names or shapes are not those of `state`.
    """
    check_shapes(state, arrays)
    leaves = [_placed(leaf, arrays[name]) for name, leaf in named_leaves(state)]
    restored: StateT = jax.tree.unflatten(jax.tree.structure(state), leaves)
    return restored


def _placed(like: jax.Array, array: Any) -> jax.Array:
    if isinstance(array, jax.Array):  # on the devices already, as Orbax has read it
        return jax.device_put(array, like.sharding)
    return jax.make_array_from_callback(like.shape, like.sharding, array.__getitem__)


def check_shapes(state: Any, arrays: Mapping[str, Any]) -> None:
    """Raise UsageError if arrays do not have the names and shapes of a state; the message names the first difference.

    Args:
        state: Tree of arrays, or of their shapes.
        arrays: Arrays, or their shapes, by the names of `named_leaves`.
    """
    expected = {name: tuple(leaf.shape) for name, leaf in named_leaves(state)}
    found = {name: tuple(array.shape) for name, array in arrays.items()}
    if expected != found:
        name = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        theirs, ours = (each.get(name, "absent") for each in (found, expected))
        raise UsageError(f"{name}: {theirs}, in this model {ours}")


def rows_on_devices(local: NDArray[Any], rows: NamedSharding) -> jax.Array:
    """Copy this process's rows of a global batch to its devices.

    Args:
        local: Rows of this process.
        rows: Sharding of the batch, along its first dimension.
    """
    shape = (len(local) * jax.process_count(), *local.shape[1:])
    return jax.make_array_from_process_local_data(rows, local, shape)


def normalised(images_BHWC: jax.Array) -> jax.Array:
    """Return images of 0..255 as float32 with mean 0 and standard deviation 1, by ImageNet's statistics."""
    mean, std = (255 * jnp.asarray(each, jnp.float32) for each in (IMAGENET_MEAN, IMAGENET_STD))
    return (images_BHWC.astype(jnp.float32) - mean) / std
