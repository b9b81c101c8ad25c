"""Functions that JAX's devices run to fine-tune a pretrained transformer, or to probe it with a linear layer.

Shapes: B images of the global batch, H x W pixels, C = 3 channels, D the width of the features, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from loaders.jax import JaxBatch
from train.batches.mixing import MixConfig, draw_mixes
from train.checkpoints.jax_weights import from_torch, probe_state_from_torch, split_probe
from train.loops.jax import named_leaves, normalised, on_devices, rows_on_devices
from train.loops.jax_transformer_steps import ClassifierTask, Inputs, TransformerSteps, judged, mean_loss
from train.models.sizes import LAYER_NORM_EPSILON
from train.optim.optimizer import MOMENTUM, TRUST

STATISTICS_SHARE = 0.1
"""Share of a batch in the running statistics after it, as in PyTorch's BatchNorm."""


@dataclass(frozen=True, kw_only=True)
class FinetuneTask(ClassifierTask):
    """Training of a classifier on mixed images and smoothed labels, as `train.loops.classify` trains it in PyTorch."""

    seed: int
    batch_size: int
    """Images of one update, of all processes and parts together."""
    mix: MixConfig
    label_smoothing: float = 0.0

    def rows(self, batch: JaxBatch, positions: range, sharding: NamedSharding) -> Any:
        """Return images, labels, and which rows hold samples; if images are mixed, also their partners and shares."""
        plain = super().rows(batch, positions, sharding)
        if not self.mix.enabled:
            return plain
        side = int(batch.images.shape[1])
        mixes = draw_mixes(self.mix, seed=self.seed, positions=positions, batch_size=self.batch_size, image_size=side)
        partners = _reversed((batch.images, batch.labels), sharding=sharding)
        return *plain, *partners, *(rows_on_devices(each, sharding) for each in mixes)

    def loss(self, params: Any, rows: Any, key: jax.Array) -> jax.Array:
        """Return the mean cross entropy of the rows that hold samples, to shares of the classes."""
        images_BHWC, labels_B, mask_B, *mixed = rows
        images_BHWC, num_classes = normalised(images_BHWC), self.model.config.num_classes
        shares_BK = jax.nn.one_hot(labels_B, num_classes)
        if mixed:
            partners_BHWC, partner_labels_B, share_B, weight_B, box_B4 = mixed
            has_partner_B = partner_labels_B >= 0  # an image whose partner could not be read is not mixed
            share_B, weight_B = (jnp.where(has_partner_B, each, 1.0) for each in (share_B, weight_B))
            box_B4 = box_B4 * has_partner_B[:, None]
            own_BHW1 = weight_B[:, None, None, None] * ~_inside(box_B4, images_BHWC.shape[1])
            images_BHWC = own_BHW1 * images_BHWC + (1 - own_BHW1) * normalised(partners_BHWC)
            partner_shares_BK = jax.nn.one_hot(partner_labels_B, num_classes)
            shares_BK = share_B[:, None] * shares_BK + (1 - share_B[:, None]) * partner_shares_BK
        shares_BK = (1 - self.label_smoothing) * shares_BK + self.label_smoothing / num_classes
        logits_BK: Any = self.model.apply({"params": params}, images_BHWC, train=True, rngs={"dropout": key})
        is_judged_B = mask_B & (labels_B >= 0)
        losses_B = optax.softmax_cross_entropy(logits_BK, shares_BK)
        return jnp.sum(losses_B, where=is_judged_B) / jnp.maximum(is_judged_B.sum(), 1)


@partial(jax.jit, static_argnames="sharding")
def _reversed(rows: Any, *, sharding: NamedSharding) -> Any:
    """Return the global batch's rows from its end: row i is the partner of row i, on whichever device that is."""
    return jax.tree.map(lambda each: jax.lax.with_sharding_constraint(each[::-1], sharding), rows)


def _inside(box_B4: jax.Array, side: int) -> jax.Array:
    """Return for each pixel whether it is in its image's box: (B, H, W, 1)."""
    at = jnp.arange(side)
    top, bottom, left, right = (box_B4[:, each, None] for each in range(4))
    rows_BH, columns_BW = (at >= top) & (at < bottom), (at >= left) & (at < right)
    return (rows_BH[:, :, None] & columns_BW[:, None, :])[..., None]


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
        shapes = {name: tuple(leaf.shape) for name, leaf in named_leaves(values.params)}
        return values._replace(
            params=on_devices(values.params, from_torch(where, weights, shapes)),
            statistics=on_devices(values.statistics, statistics),
        )

    def on_devices(self, values: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
        return on_devices(values, arrays)

    def from_torch(self, where: str, state: Mapping[str, Any], values: Any) -> dict[str, NDArray[Any]]:
        shapes = {name: tuple(leaf.shape) for name, leaf in named_leaves(values.params)}
        return probe_state_from_torch(where, state, shapes)

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
                return mean_loss(self._logits(head, normed_BD), part[1], part[2])

            found = jax.value_and_grad(loss_of)(head)
            added = jax.tree.map(lambda old, new: old + new / num_parts, (loss, gradient), found)
            return (*added, _tracked(statistics, mean_D, variance_D, len(features_BD))), None

        nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, head), values.statistics
        (loss, gradient, statistics), _ = jax.lax.scan(add, nothing, parts)
        return loss, gradient, statistics

    def _evaluate(
        self, values: Any, images_BHWC: jax.Array, labels_B: jax.Array, mask_B: jax.Array
    ) -> dict[str, jax.Array]:
        statistics = values.statistics
        scale_D = jax.lax.rsqrt(statistics["running_var"] + LAYER_NORM_EPSILON)
        normed_BD = (self._features(values.params, images_BHWC) - statistics["running_mean"]) * scale_D
        return judged(self._logits(values.params["head"], normed_BD), labels_B, mask_B)

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
