"""Functions that JAX's devices run to train, fine-tune or probe a transformer: initialise, one update, a batch of an
evaluation.

Everything is a function of its arguments under `jax.jit`: random numbers are a function of the seed and the step.

Shapes: B images of the global batch, H x W pixels, C = 3 channels, K visible of L patches; in probes D the
width of the features, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from loaders.jax import JaxBatch
from loaders.loader import Loader
from train.batches.masks import MaskConfig, draw_masks
from train.batches.mixing import MixConfig, Mixes, draw_mixes, own_shares
from train.checkpoints.checkpoint import named_leaves
from train.checkpoints.jax_weights import from_torch, probe_state_from_torch, split_probe, state_from_torch
from train.loops.backend import Update
from train.loops.jax import (
    DATA_AXIS,
    Batch,
    Steps,
    judged,
    losses_of,
    normalised,
    on_devices,
    rows_on_devices,
    shardings_of,
)
from train.models.jax_transformers import MaskedAutoencoder, VisionTransformer
from train.models.sizes import LAYER_NORM_EPSILON, layer_of
from train.optim.optimizer import MOMENTUM, TRUST

CLIP_EPSILON = 1e-6
"""Number that PyTorch adds to a gradient's norm before it divides by it."""


class Values(NamedTuple):
    """Arrays that an update changes; float32."""

    params: Any
    optimizer: optax.ScaleByAdamState
    average: Any
    """Exponential moving average of the weights; an empty dictionary if none is kept."""


class Inputs(NamedTuple):
    """Arrays of one update."""

    rows: Any
    """Arrays with an entry for each row of the global batch, sharded among the devices."""
    step: np.uint32


class Task(Protocol):
    """Task that is trained: a network and its loss."""

    def initial(self, key: jax.Array) -> Any:
        """Draw the weights."""

    def rows(self, batch: JaxBatch, positions: range, sharding: NamedSharding) -> Any:
        """Return the arrays of an update that have an entry for each row of the global batch."""

    def loss(self, params: Any, rows: Any, key: jax.Array) -> jax.Array:
        """Return the mean loss of some of the arrays that `rows` returned, with the key of this update and part."""

    def sums(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return sums over a batch of an evaluation: `loss`, `correct` and `images`; a task without labels has none."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of the updates."""

    weight_decay: float
    betas: tuple[float, float]
    decay_vectors: bool = False
    """Whether biases, normalisations, tokens and positions decay as matrices do."""
    layer_decay: float | None = None
    """Learning rate of a layer, divided by the next layer's; None: all weights have the same one."""
    clip_grad_norm: float = 0.0
    """Largest norm of the gradient of all weights; 0: no limit."""
    accum_iter: int = 1
    """Number of parts of a batch over which its gradient is accumulated."""
    ema_decay: float = 0.0
    """Share of the moving average of the weights that an update keeps; 0: no average is kept."""
    fsdp: bool = False
    """Whether weights, moments and averages are sharded among the devices."""
    seed: int = 0


class TransformerSteps(Steps):
    """The functions of one task on one mesh of all processes' devices."""

    def __init__(self, task: Task, mesh: Mesh, settings: Settings) -> None:
        self._task, self._settings = task, settings
        self._adam = optax.scale_by_adam(*settings.betas)
        copies, self._rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(DATA_AXIS))
        shapes = jax.eval_shape(self._initial, jax.random.key(0))
        self._shardings = shardings_of(shapes, mesh, fsdp=settings.fsdp)
        self.update = jax.jit(self._update, donate_argnums=0, out_shardings=(self._shardings, copies))
        """(Values, Inputs, lr) -> (Values, {loss}), a mean over the batch."""
        self.evaluate = jax.jit(self._evaluate, out_shardings=copies)
        """(Values, Batch) -> {loss, correct, images}, sums over the batch."""

    def initial(self) -> Values:
        """Draw weights from the seed; they do not depend on the number of devices."""
        values: Values = jax.jit(self._initial, out_shardings=self._shardings)(jax.random.key(self._settings.seed))
        return values

    def with_weights(self, where: str, values: Values, tensors: Mapping[str, NDArray[Any]]) -> Values:
        """Return values with other weights, given by PyTorch's names, in its layouts. Raises UsageError if the weights
        are of another network."""
        arrays = from_torch(where, tensors, _shapes(values.params))
        params = on_devices(values.params, arrays)
        return values._replace(params=params, average=values.average and on_devices(values.average, arrays))

    def inputs(self, batch: JaxBatch, update: Update) -> Inputs:
        return Inputs(self._task.rows(batch, update.positions, self._rows), np.uint32(update.step))

    def on_devices(self, values: Values, arrays: Mapping[str, NDArray[Any]]) -> Values:
        """Copy arrays on the host to the devices; a state without an average starts it with its weights. Raises
        UsageError if names or shapes differ from `values`."""
        found = {name: each for name, each in arrays.items() if values.average or not name.startswith("average/")}
        if values.average and not any(name.startswith("average/") for name in found):
            weights = {name.removeprefix("params/"): name for name in arrays if name.startswith("params/")}
            found |= {f"average/{short}": arrays[name] for short, name in weights.items()}
        return on_devices(values, found)

    def from_torch(self, where: str, state: Mapping[str, Any], values: Values) -> dict[str, NDArray[Any]]:
        """Return weights and moments of a checkpoint of PyTorch as arrays for `on_devices`."""
        settings = self._settings
        groups = {"decay_vectors": settings.decay_vectors, "layered": settings.layer_decay is not None}
        return state_from_torch(where, state, _shapes(values.params), **groups)

    def _initial(self, key: jax.Array) -> Values:
        params = self._task.initial(key)
        average = jax.tree.map(jnp.copy, params) if self._settings.ema_decay else {}
        return Values(params, self._adam.init(params), average)

    def _update(self, values: Values, inputs: Inputs, lr: jax.Array) -> tuple[Values, dict[str, jax.Array]]:
        # One program of fixed shapes, whose order is that of PyTorch's update: the gradient is clipped before Adam sees
        # it, decay is of the weight before the step (`_moved`), and layer decay scales both, since PyTorch scales the
        # group's rate. Blocks are stacked along the first dimension, so a layer's scale is an array with an entry for
        # each block. `values` is donated, which halves the memory of an update: its arrays are deleted, so the backend
        # replaces its own immediately.
        settings = self._settings
        loss, gradient = self._gradient(values.params, inputs)
        if settings.clip_grad_norm:
            norm = optax.global_norm(gradient)
            share = jnp.minimum(1.0, settings.clip_grad_norm / (norm + CLIP_EPSILON))
            gradient = jax.tree.map(lambda each: each * share, gradient)
        direction, optimizer = self._adam.update(gradient, values.optimizer)
        scales = layer_scales(values.params, settings.layer_decay)
        params = jax.tree_util.tree_map_with_path(partial(self._moved, lr), values.params, direction, scales)
        keep = settings.ema_decay
        average = jax.tree.map(lambda old, new: keep * old + (1 - keep) * new, values.average, params) if keep else {}
        return Values(params, optimizer, average), {"loss": loss}

    def _moved(
        self, lr: jax.Array, path: tuple[Any, ...], weight: jax.Array, direction: jax.Array, scale: Any
    ) -> jax.Array:
        lr = lr * scale
        decays = self._settings.decay_vectors or path[-1].key == "kernel"
        decayed = weight - lr * self._settings.weight_decay * weight if decays else weight  # as torch.optim.AdamW does
        return decayed - lr * direction

    def _gradient(self, params: Any, inputs: Inputs) -> tuple[jax.Array, Any]:
        """Return loss and gradient: means over the parts of the batch; part i has rows i, i + parts, …"""
        num_parts = self._settings.accum_iter
        key = jax.random.fold_in(jax.random.key(self._settings.seed), inputs.step)
        of_part = jax.value_and_grad(self._task.loss)
        if num_parts == 1:
            found: tuple[jax.Array, Any] = of_part(params, inputs.rows, key)
            return found
        # Part i has rows i, i + parts, …, not a block of neighbours: rows are sharded among the devices in blocks, so
        # each device has rows of every part, and none moves. PyTorch's `rows_of_part` takes the same rows, so that the
        # losses of both backends can be compared. Each part weighs 1 / parts, also where masked rows leave it fewer
        # images, as in PyTorch. The key is of the step and the part alone: no generator has a state, so a resumed run
        # draws the same numbers, on any number of devices.
        parts = jax.tree.map(lambda rows: rows.reshape(-1, num_parts, *rows.shape[1:]).swapaxes(0, 1), inputs.rows)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            index, rows = part
            found = of_part(params, rows, jax.random.fold_in(key, index))
            return jax.tree.map(lambda old, new: old + new / num_parts, total, found), None

        nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        (loss, gradient), _ = jax.lax.scan(add, nothing, (jnp.arange(num_parts), parts))
        return loss, gradient

    def _evaluate(self, values: Values, batch: Batch) -> dict[str, jax.Array]:
        return self._task.sums(values.average if self._settings.ema_decay else values.params, batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class MAETask(Task):
    """Training of a masked autoencoder."""

    model: MaskedAutoencoder
    masks: MaskConfig
    loader: Loader
    seed: int

    def initial(self, key: jax.Array) -> Any:
        side, masks = self.model.config.image_size, self.masks
        visible_BK, place_BL = (jnp.zeros((1, each), jnp.int32) for each in (masks.num_visible, masks.num_patches))
        return self.model.init(key, jnp.zeros((1, side, side, 3)), visible_BK, place_BL)["params"]

    def rows(self, batch: JaxBatch, positions: range, sharding: NamedSharding) -> Any:
        """Return images, which rows hold samples, and masks of patches, which are drawn on the host."""
        own = self.loader.positions(positions.start // self.loader.config.batch_size)
        masks = draw_masks(self.masks, seed=self.seed, positions=own)
        return (
            batch.images,
            batch.mask,
            *(rows_on_devices(each, sharding) for each in (masks.visible_NK, masks.place_NL)),
        )

    def loss(self, params: Any, rows: Any, key: jax.Array) -> jax.Array:
        """Return the mean squared error over hidden patches of the rows that hold samples."""
        images_BHWC, mask_B, visible_BK, place_BL = rows
        output: Any = self.model.apply({"params": params}, normalised(images_BHWC), visible_BK, place_BL, mask_B)
        loss: jax.Array = output.loss
        return loss


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierTask(Task):
    """Training of a classifier: cross entropy of its logits."""

    model: VisionTransformer

    def initial(self, key: jax.Array) -> Any:
        side = self.model.config.image_size
        return self.model.init(key, jnp.zeros((1, side, side, 3)))["params"]

    def rows(self, batch: JaxBatch, positions: range, sharding: NamedSharding) -> Any:
        return Batch(batch.images, batch.labels, batch.mask)

    def loss(self, params: Any, rows: Any, key: jax.Array) -> jax.Array:
        images_BHWC, labels_B, mask_B = rows
        variables, rngs = {"params": params}, {"dropout": key}
        logits_BK: Any = self.model.apply(variables, normalised(images_BHWC), train=True, rngs=rngs)
        return mean_loss(losses_of(logits_BK, labels_B), labels_B, mask_B)

    def sums(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        logits_BK: Any = self.model.apply({"params": params}, normalised(batch.images_BHWC))
        return judged(logits_BK, batch)


def mean_loss(losses_B: jax.Array, labels_B: jax.Array, mask_B: jax.Array) -> jax.Array:
    """Return the mean of the losses of the rows that hold samples with labels."""
    is_judged_B = mask_B & (labels_B >= 0)
    return jnp.sum(losses_B, where=is_judged_B) / jnp.maximum(is_judged_B.sum(), 1)


def _shapes(params: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in named_leaves(params)}


def layer_scales(params: Any, layer_decay: float | None) -> Any:
    """Return the factor of the learning rate for each weight, or an array of them, one for each block.

    Args:
        layer_decay: Learning rate of a layer, divided by the next layer's; None: all factors are 1.
    """
    if layer_decay is None:
        return jax.tree.map(lambda _: 1.0, params)
    depth = len(jax.tree.leaves(params["blocks"])[0])

    def scale(path: tuple[Any, ...], weight: Any) -> Any:
        if path[0].key != "blocks":
            return layer_decay ** (depth + 1 - layer_of(path[0].key, depth + 1))
        above = np.arange(depth, 0, -1, dtype=np.float64)  # layers between a block and the head, and the head
        return (layer_decay**above).astype(np.float32).reshape(-1, *[1] * (weight.ndim - 1))

    return jax.tree_util.tree_map_with_path(scale, params)


STATISTICS_SHARE = 0.1
"""Share of a batch in the running statistics after it, as in PyTorch's BatchNorm."""


@dataclass(frozen=True, kw_only=True)
class FinetuneTask(ClassifierTask):
    """Training of a classifier on mixed images and smoothed labels, as `train.loops.tasks` trains it in PyTorch."""

    seed: int
    mix: MixConfig
    label_smoothing: float = 0.0

    def rows(self, batch: JaxBatch, positions: range, sharding: NamedSharding) -> Any:
        """Return images, labels, and which rows hold samples; if images are mixed, also their partners and shares."""
        plain = super().rows(batch, positions, sharding)
        if not self.mix.enabled:
            return plain
        size, side = (int(length) for length in batch.images.shape[:2])
        mixes = draw_mixes(self.mix, seed=self.seed, positions=positions, batch_size=size, image_size=side)
        partners = _reversed((batch.images, batch.labels), sharding=sharding)
        return *plain, *partners, *(rows_on_devices(each, sharding) for each in mixes)

    def loss(self, params: Any, rows: Any, key: jax.Array) -> jax.Array:
        """Return the mean cross entropy of the rows that hold samples, to shares of the classes."""
        images_BHWC, labels_B, mask_B, *mixed = rows
        images_BHWC, num_classes = normalised(images_BHWC), self.model.config.num_classes
        shares_BK = jax.nn.one_hot(labels_B, num_classes)
        if mixed:
            partners_BHWC, partner_labels_B, *mixes = mixed
            at = jnp.arange(images_BHWC.shape[1])
            share_B, own_BHW = own_shares(Mixes(*mixes), partner_labels_B >= 0, at, jnp.where)
            own_BHW1 = own_BHW[..., None]
            images_BHWC = own_BHW1 * images_BHWC + (1 - own_BHW1) * normalised(partners_BHWC)
            partner_shares_BK = jax.nn.one_hot(partner_labels_B, num_classes)
            shares_BK = share_B[:, None] * shares_BK + (1 - share_B[:, None]) * partner_shares_BK
        shares_BK = (1 - self.label_smoothing) * shares_BK + self.label_smoothing / num_classes
        logits_BK: Any = self.model.apply({"params": params}, images_BHWC, train=True, rngs={"dropout": key})
        return mean_loss(optax.softmax_cross_entropy(logits_BK, shares_BK), labels_B, mask_B)


@partial(jax.jit, static_argnames="sharding")
def _reversed(rows: Any, *, sharding: NamedSharding) -> Any:
    """Return the global batch's rows from its end: row i is the partner of row i, on whichever device that is."""
    return jax.tree.map(lambda each: jax.lax.with_sharding_constraint(each[::-1], sharding), rows)


class ProbeValues(NamedTuple):
    """Arrays that a probe's update changes; of the weights only the head's."""

    params: Any
    momentum: Any
    """Momentum of the head's kernel and bias."""
    statistics: Any
    """Running mean and variance of the features, (D,), and the number of batches in them."""


class ProbeSteps(TransformerSteps):
    """The functions of a linear probe: LARS on the head, to which features come normalised over the batch."""

    _task: ClassifierTask

    def with_weights(self, where: str, values: Any, tensors: Mapping[str, NDArray[Any]]) -> Any:
        """Return values with other weights and statistics, by the names of PyTorch's probe."""
        weights, statistics = split_probe(tensors)
        return values._replace(
            params=on_devices(values.params, from_torch(where, weights, _shapes(values.params))),
            statistics=on_devices(values.statistics, statistics),
        )

    def on_devices(self, values: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
        return on_devices(values, arrays)

    def from_torch(self, where: str, state: Mapping[str, Any], values: Any) -> dict[str, NDArray[Any]]:
        return probe_state_from_torch(where, state, _shapes(values.params))

    def _initial(self, key: jax.Array) -> Any:
        params = self._task.initial(key)
        dim = self._task.model.config.block.dim
        statistics = {
            "running_mean": jnp.zeros(dim),
            "running_var": jnp.ones(dim),
            "num_batches_tracked": jnp.zeros((), jnp.int32),
        }
        return ProbeValues(params, jax.tree.map(jnp.zeros_like, params["head"]), statistics)

    def _update(self, values: Any, inputs: Inputs, lr: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        loss, gradient, statistics = self._parts(values, inputs.rows)
        head = values.params["head"]
        steps = {name: self._scaled(head[name], gradient[name]) for name in head}
        momentum = {name: MOMENTUM * values.momentum[name] + steps[name] for name in head}
        moved = {name: head[name] - lr * momentum[name] for name in head}
        return ProbeValues({**values.params, "head": moved}, momentum, statistics), {"loss": loss}

    def _scaled(self, weight: jax.Array, gradient: jax.Array) -> jax.Array:
        """Return a gradient with the length that LARS gives it, as in `train.optim.optimizer`."""
        if weight.ndim == 1:
            return gradient
        gradient = gradient + self._settings.weight_decay * weight
        length, step_length = jnp.linalg.norm(weight), jnp.linalg.norm(gradient)
        is_scaled = (length > 0) & (step_length > 0)
        return gradient * jnp.where(is_scaled, TRUST * length / step_length, 1.0)

    def _parts(self, values: Any, rows: Any) -> tuple[jax.Array, Any, Any]:
        """Return loss, the head's gradient, and statistics; each part of the batch is normalised by itself."""
        num_parts = self._settings.accum_iter
        parts = jax.tree.map(lambda each: each.reshape(-1, num_parts, *each.shape[1:]).swapaxes(0, 1), rows)
        head = values.params["head"]

        def add(total: Any, part: Any) -> tuple[Any, None]:
            loss, gradient, statistics = total
            features_BD = self._features(values.params, part[0])
            mean_D, variance_D = features_BD.mean(axis=0), features_BD.var(axis=0)
            normed_BD = (features_BD - mean_D) * jax.lax.rsqrt(variance_D + LAYER_NORM_EPSILON)

            def loss_of(head: Any) -> jax.Array:
                return mean_loss(losses_of(self._logits(head, normed_BD), part[1]), part[1], part[2])

            found = jax.value_and_grad(loss_of)(head)
            added = jax.tree.map(lambda old, new: old + new / num_parts, (loss, gradient), found)
            return (*added, _tracked(statistics, mean_D, variance_D, len(features_BD))), None

        nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, head), values.statistics
        (loss, gradient, statistics), _ = jax.lax.scan(add, nothing, parts)
        return loss, gradient, statistics

    def _evaluate(self, values: Any, batch: Batch) -> dict[str, jax.Array]:
        statistics = values.statistics
        scale_D = jax.lax.rsqrt(statistics["running_var"] + LAYER_NORM_EPSILON)
        normed_BD = (self._features(values.params, batch.images_BHWC) - statistics["running_mean"]) * scale_D
        return judged(self._logits(values.params["head"], normed_BD), batch)

    def _features(self, params: Any, images_BHWC: jax.Array) -> jax.Array:
        features_BD: Any = self._task.model.apply({"params": params}, normalised(images_BHWC), head=False)
        return jax.lax.stop_gradient(features_BD).astype(jnp.float32)

    def _logits(self, head: Any, features_BD: jax.Array) -> jax.Array:
        dtype = self._task.model.computation.dtype
        return (features_BD.astype(dtype) @ head["kernel"].astype(dtype)).astype(jnp.float32) + head["bias"]


def _tracked(statistics: Any, mean_D: jax.Array, variance_D: jax.Array, rows: int) -> Any:
    """Return running statistics after a batch, with the unbiased variance, as PyTorch's BatchNorm keeps them."""
    unbiased_D = variance_D * (rows / max(1, rows - 1))
    old, share = statistics, STATISTICS_SHARE
    return {
        "running_mean": (1 - share) * old["running_mean"] + share * mean_D,
        "running_var": (1 - share) * old["running_var"] + share * unbiased_D,
        "num_batches_tracked": old["num_batches_tracked"] + 1,
    }
