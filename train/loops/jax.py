"""The JAX backend of the training loop: a network's functions on a mesh of all processes' devices, also a ResNet's.

Everything on devices is a function of its arguments under `jax.jit`. A batch is sharded along the `data` axis, so a sum
over it is a sum over all devices; each device holds a copy of a ResNet's values.

No random generator has a state: a checkpoint holds weights, statistics and moments, and the step of the last
evaluation.

Shapes: N images of this process, H x W pixels, C = 3 channels, A arrays of a state;
B images of the global batch, K classes.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from dataprep.errors import UsageError, install_hint
from loaders.engine.batch import LoaderState
from loaders.jax import JaxBatch, device_batches
from loaders.loader import STATE_VERSION, Loader
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.checkpoints.checkpoint import named_leaves
from train.checkpoints.files import ARRAYS, flags_of_its_run
from train.checkpoints.files import State as SavedState
from train.loops.backend import Backend, Update, sharded_dimension, skipped_images
from train.models.jax_resnet import ResNet

StateT = TypeVar("StateT")
_PROCESS_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
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


def open_mesh(tensor_parallel: int) -> Mesh:
    """Lay out the devices of all processes; the `tensor_parallel` ones that share the heads of a block are side by
    side. Raises UsageError if the devices of a process cannot be divided so."""
    local, devices = jax.local_device_count(), np.asarray(jax.devices())
    if local % tensor_parallel:
        raise UsageError(
            f"`tensor_parallel` {tensor_parallel} does not divide the {local} devices of a process; choose a divisor "
            "of them"
        )
    return Mesh(devices.reshape(-1, tensor_parallel), (DATA_AXIS, MODEL_AXIS))


def shardings_of(tree: Any, mesh: Mesh, *, fsdp: bool) -> Any:
    """Return the sharding of each weight of a tree, or of an optimiser's state for each weight.

    Args:
        tree: Arrays, or their shapes, in the layout of `train.models.jax_transformers`, or below other names.
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


def arrays_of(state: Any) -> dict[str, NDArray[Any]]:
    """Copy a state to the host: arrays by the names of `named_leaves`."""
    return {name: np.asarray(leaf) for name, leaf in named_leaves(state)}


def on_devices(state: StateT, arrays: Mapping[str, NDArray[Any]]) -> StateT:
    """Copy arrays, by the names of `named_leaves`, to the devices, sharded as a state's are. Raises UsageError if names
    or shapes differ from `state`."""
    check_shapes(state, arrays)
    leaves = [_placed(leaf, arrays[name]) for name, leaf in named_leaves(state)]
    restored: StateT = jax.tree.unflatten(jax.tree.structure(state), leaves)
    return restored


def _placed(like: jax.Array, array: Any) -> jax.Array:
    if isinstance(array, jax.Array):  # on the devices already, as Orbax has read it
        return jax.device_put(array, like.sharding)
    return jax.make_array_from_callback(like.shape, like.sharding, array.__getitem__)


def check_shapes(state: Any, arrays: Mapping[str, Any]) -> None:
    """Raise UsageError, with the first difference, if arrays do not have the names and shapes of a state."""
    expected = {name: tuple(leaf.shape) for name, leaf in named_leaves(state)}
    found = {name: tuple(array.shape) for name, array in arrays.items()}
    if expected != found:
        name = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        theirs, ours = (each.get(name, "absent") for each in (found, expected))
        raise UsageError(f"{name}: {theirs}, in this model {ours}")


def rows_on_devices(local: NDArray[Any], rows: NamedSharding) -> jax.Array:
    """Copy this process's rows of a global batch to its devices."""
    shape = (len(local) * jax.process_count(), *local.shape[1:])
    return jax.make_array_from_process_local_data(rows, local, shape)


def normalised(images_BHWC: jax.Array) -> jax.Array:
    """Return images of 0..255 as float32 with mean 0 and standard deviation 1, by ImageNet's statistics."""
    mean, std = (255 * jnp.asarray(each, jnp.float32) for each in (IMAGENET_MEAN, IMAGENET_STD))
    return (images_BHWC.astype(jnp.float32) - mean) / std


_UPDATES_AHEAD = 2
"""Number of updates in the device's queue before the loop waits for an earlier one: more would only hold more batches
in its memory."""
_MOMENTS = ("momentum/", "optimizer/")
"""Prefixes of the names of arrays that belong to an optimiser."""


class Batch(NamedTuple):
    """Labelled images, sharded among the devices of all processes."""

    images_BHWC: jax.Array
    """Images, uint8, 0..255."""
    labels_B: jax.Array
    mask_B: jax.Array
    """Whether a row holds a sample, bool."""


def losses_of(logits_BK: jax.Array, labels_B: jax.Array) -> jax.Array:
    """Return the cross entropy of each row; of padded rows, whose label is -1, some number."""
    losses_B: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits_BK, jnp.maximum(labels_B, 0))
    return losses_B


def judged(logits_BK: jax.Array, batch: Batch) -> dict[str, jax.Array]:
    """Return sums over the rows that hold samples: `loss`, `correct` and `images`."""
    return {
        "loss": jnp.sum(losses_of(logits_BK, batch.labels_B), where=batch.mask_B),
        "correct": jnp.sum(logits_BK.argmax(axis=-1) == batch.labels_B, where=batch.mask_B),
        "images": jnp.sum(batch.mask_B),
    }


class Steps(Protocol):
    """The functions of one network and its optimiser."""

    update: Callable[[Any, Any, float], tuple[Any, dict[str, jax.Array]]]
    """Function of values, of what `inputs` returns and of the learning rate; it returns new values, and scalars with
    `loss` among them."""
    evaluate: Callable[[Any, Batch], Mapping[str, jax.Array]]
    """Function of values and a batch: sums `loss`, `correct` and `images`."""

    def inputs(self, batch: JaxBatch, update: Update) -> Any:
        """Return the arguments of `update`, on the devices."""

    def on_devices(self, values: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """Copy the arrays of a checkpoint to the devices, as values like those that are given. Raises UsageError if
        they are of another model."""
        return on_devices(values, arrays)

    def from_torch(self, where: str, state: Mapping[str, Any], values: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint of PyTorch. Raises UsageError if it cannot be continued here."""


@dataclass(kw_only=True)
class JaxBackend(Backend):
    """State of a network, its updates and its evaluations."""

    mesh: Mesh
    steps: Steps
    values: Any
    """Arrays that an update changes: weights, statistics, moments."""
    validation: Loader | None
    """Loader of evaluations; None: nothing is evaluated."""
    eval_batches: int | None = None
    """Number of batches in an evaluation; None: all, so that every image counts once."""
    prefetch: int = 2
    saves_parts: bool = False
    """Whether a checkpoint takes arrays on the devices; every process writes its own part."""
    agreement_steps: int = 20
    """Interval in steps at which several processes agree that it is time to save."""
    judge: Callable[[dict[str, float]], dict[str, float]] = dict
    """Function that adds numbers to an evaluation's."""
    same_model: str = "use the flags that it was trained with"
    """Advice for the message if a checkpoint is from another model."""
    _in_flight: deque[jax.Array] = field(default_factory=deque)
    """Losses of the updates that were handed to the devices last."""

    saved_entries = (ARRAYS,)
    compiles = True

    @property
    def name(self) -> str:
        return str(jax.default_backend())

    @property
    def is_first(self) -> bool:
        return bool(jax.process_index() == 0)

    @property
    def transfer_ahead(self) -> int:
        return self.prefetch

    @property
    def catches_signals(self) -> bool:
        """Whether there is one process; with several, JAX handles SIGTERM and stops all after the same step."""
        return bool(jax.process_count() == 1)

    def batches(self, loader: Loader) -> Generator[JaxBatch]:
        return device_batches(loader, self.mesh, axis=DATA_AXIS, prefetch=self.prefetch)

    def update(self, batch: JaxBatch, update: Update) -> dict[str, jax.Array]:
        """Do one update; return its loss, and other means over the batch if the network has them."""
        means = self._apply(batch, update)
        self._in_flight.append(means["loss"])
        if len(self._in_flight) > _UPDATES_AHEAD:
            self._in_flight.popleft().block_until_ready()
        return means

    def evaluate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        if self.validation is None:
            return {}
        sums = dict.fromkeys(("loss", "correct", "images"), 0.0)
        with contextlib.closing(self.batches(self.validation)) as batches:
            for batch in islice(batches, self.eval_batches):
                found = self.steps.evaluate(self.values, Batch(batch.images, batch.labels, batch.mask))
                sums = {name: sums[name] + float(found[name]) for name in sums}
                if is_stopped():
                    return None
        images = sums["images"]
        skipped = skipped_images(self.validation, int(images)) if self.eval_batches is None or not images else {}
        means = {"loss": sums["loss"] / images, "accuracy": sums["correct"] / images, "images": images}
        return self.judge({**means, **skipped})

    def agree_to_stop(self, asked: bool, step: int) -> bool:
        """Return whether a signal came; with several processes, whether JAX saw that one reached any of them."""
        if jax.process_count() == 1:
            return asked
        return bool(multihost_utils.reached_preemption_sync_point(step))

    def agree_on_time(self, elapsed: bool, step: int) -> bool:
        if jax.process_count() == 1:
            return elapsed
        return step % self.agreement_steps == 0 and bool(multihost_utils.process_allgather(elapsed).any())

    def check_same_checkpoint(self, step: int, url: str) -> None:
        """Refuse a folder if processes see different checkpoints in it: they would train different weights."""
        steps = {int(each) for each in multihost_utils.process_allgather(step).flatten()}
        if len(steps) > 1:
            raise UsageError(
                f"`workdir` {url}: some processes find a checkpoint of step {max(steps)}, others of step {min(steps)}; "
                "give a folder that all hosts share, or gs://"
            )

    def not_finite(self) -> list[str]:
        """Return the names of arrays with values that are not finite, in any process."""
        named = {name: each for name, each in named_leaves(self.values) if jnp.issubdtype(each.dtype, jnp.floating)}
        whole = NamedSharding(self.mesh, PartitionSpec())
        finite_A = np.asarray(jax.jit(_are_finite, out_shardings=whole)(list(named.values())))
        # Each process asks its own copies of arrays that are not sharded.
        finite_A = multihost_utils.process_allgather(finite_A).reshape(-1, len(named)).all(axis=0)
        return [name for name, is_finite in zip(named, finite_A, strict=True) if not is_finite]

    def state(self) -> SavedState:
        """Return all arrays by their names, e.g. `params/conv_init/kernel`."""
        return {ARRAYS: dict(named_leaves(self.values)) if self.saves_parts else arrays_of(self.values)}

    def converted(self, where: str, state: SavedState) -> SavedState:
        """Return a state of this backend, converted from PyTorch's if needed."""
        if "model" not in state or ARRAYS in state or "version" not in state:
            return state
        arrays = self.steps.from_torch(where, state, self.values)
        return {**state, "evaluated_step": state.get("step"), ARRAYS: arrays}

    def restore(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        try:
            self.values = self.steps.on_devices(self.values, state[ARRAYS])
        except UsageError as error:
            raise UsageError(f"{where}: {error}{flags_of_its_run(changes)}; {self.same_model}") from None

    def take_weights(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        """Take the weights of a checkpoint, their average, and the statistics of its normalisations."""
        moments = {name: leaf for name, leaf in named_leaves(self.values) if name.startswith(_MOMENTS)}
        weights = {name: each for name, each in state[ARRAYS].items() if not name.startswith(_MOMENTS)}
        self.restore(where, {**state, ARRAYS: weights | moments}, changes)

    def memory_bytes(self) -> int | None:
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_in_use")

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        """Trace into `plugins/profile/<run>/<host>.xplane.pb`; no update is in progress when it begins or ends."""
        jax.block_until_ready(self.values)
        with jax.profiler.trace(str(folder)):
            yield
            jax.block_until_ready(self.values)

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> JaxBatch:
        rows = NamedSharding(self.mesh, PartitionSpec(DATA_AXIS))
        arrays = images_NHWC, labels_N.astype(np.int32), np.ones(len(labels_N), np.bool_)
        state: LoaderState = {"state_version": STATE_VERSION, "position": 0, "epoch": 0, "sequence": {}}
        images, labels, mask = jax.block_until_ready(jax.device_put(arrays, rows))
        return JaxBatch(images, labels, mask, [""] * len(labels_N), {}, state)

    def step(self, resident: JaxBatch) -> None:
        self._apply(resident, Update(step=0, lr=0.0, positions=range(len(resident.keys))))
        jax.block_until_ready(self.values)

    def close(self) -> None:
        if self.validation is not None:
            self.validation.close()

    def _apply(self, batch: JaxBatch, update: Update) -> dict[str, jax.Array]:
        """Update the values with a batch; return its loss and other means without waiting for them."""
        self.values, means = self.steps.update(self.values, self.steps.inputs(batch, update), update.lr)
        return means


def _are_finite(arrays: list[jax.Array]) -> jax.Array:
    """Return for each array whether all of its values are finite."""
    return jnp.stack([jnp.isfinite(each).all() for each in arrays])


class ResNetValues(NamedTuple):
    """Arrays that an update changes; float32."""

    params: Any
    batch_stats: Any
    optimizer: Any


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
        """(ResNetValues, Batch, lr) -> (ResNetValues, {loss, accuracy}), means over the batch."""
        self.evaluate = jax.jit(self._evaluate, out_shardings=self._copies)
        """(ResNetValues, Batch) -> {loss, correct, images}, sums over the batch."""

    def initial(self, *, seed: int, image_size: int) -> ResNetValues:
        """Draw weights from a seed; they do not depend on the number of devices."""

        def state_of(key: jax.Array) -> ResNetValues:
            variables = self._model.init(key, jnp.zeros((1, image_size, image_size, 3)), train=False)
            params = variables["params"]
            return ResNetValues(params, variables["batch_stats"], self._optimizer.init(params))

        state: ResNetValues = jax.jit(state_of, out_shardings=self._copies)(jax.random.key(seed))
        return state

    def inputs(self, batch: JaxBatch, update: Update) -> Batch:
        return Batch(batch.images, batch.labels, batch.mask)

    def from_torch(self, where: str, state: Mapping[str, Any], values: ResNetValues) -> dict[str, NDArray[Any]]:
        """Refuse a checkpoint of PyTorch, whose ResNets have other weights, with a UsageError."""
        raise UsageError(f"{where}: a checkpoint of PyTorch, expected one of dataprep-train-resnet-jax")

    def _update(self, state: ResNetValues, batch: Batch, lr: jax.Array) -> tuple[ResNetValues, dict[str, jax.Array]]:
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
        return ResNetValues(params, batch_stats, optimizer), means

    def _evaluate(self, state: ResNetValues, batch: Batch) -> dict[str, jax.Array]:
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        logits_BK: Any = self._model.apply(variables, normalised(batch.images_BHWC), train=False)
        return judged(logits_BK, batch)
