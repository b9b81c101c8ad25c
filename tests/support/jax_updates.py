"""Updates of the ResNet in JAX beside SGD with Nesterov's correction in NumPy's float64; run in its own process.

python -m tests.support.jax_updates      prints the largest difference of every weight, and what was compared, as JSON
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from train.loops.jax_steps import Batch, ResNetSteps, all_devices
from train.models.jax_resnet import ARCHITECTURES, ResNet

MOMENTUM, DECAY = 0.8, 0.3
RATES = (0.0, 0.05, 0.2, 0.1)
SAMPLES = (True, True, False, True)
"""Rows of a batch that hold an image; the others have the label -1."""


def batch_of(step: int) -> Batch:
    rng = np.random.default_rng(step)
    images = rng.integers(0, 256, (len(SAMPLES), 16, 16, 3), dtype=np.uint8)
    labels = np.where(SAMPLES, rng.integers(0, 3, len(SAMPLES)), -1).astype(np.int32)
    return Batch(jnp.asarray(images), jnp.asarray(labels), jnp.asarray(SAMPLES))


def gradient_of(model: ResNet) -> Any:
    """Return the gradient of the mean negative logarithm of the right class's probability, over rows with an image."""
    mean, deviation = np.array((0.485, 0.456, 0.406)), np.array((0.229, 0.224, 0.225))
    rows = np.flatnonzero(SAMPLES)

    def loss(params: Any, batch_stats: Any, batch: Batch) -> jax.Array:
        images = ((batch.images_BHWC / 255 - mean) / deviation).astype("float32")
        variables = {"params": params, "batch_stats": batch_stats}
        logits, _ = model.apply(variables, images, train=True, mutable=["batch_stats"])
        probabilities = jnp.exp(logits) / jnp.exp(logits).sum(1, keepdims=True)
        return -jnp.log(probabilities[rows, batch.labels_B[rows]]).mean()

    return jax.jit(jax.grad(loss))


def leaves(tree: Any) -> list[NDArray[np.float64]]:
    return [np.array(each, np.float64) for each in jax.tree.leaves(tree)]


def main() -> None:
    model = ResNet(architecture=ARCHITECTURES["_ResNet1"], num_classes=3, dtype="float32", width=4)
    steps = ResNetSteps(model, all_devices(), momentum=MOMENTUM, weight_decay=DECAY)
    state = steps.initial(seed=0, image_size=16)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.params)]
    weights = leaves(state.params)
    before = [each.copy() for each in weights]
    velocities = [np.zeros_like(each) for each in weights]
    gradient = gradient_of(model)
    for step, rate in enumerate(RATES):
        batch = batch_of(step)
        gradients = leaves(gradient(state.params, state.batch_stats, batch))
        for index, each in enumerate(gradients):
            decayed = each + (DECAY * weights[index] if weights[index].ndim > 1 else 0)
            velocities[index] = MOMENTUM * velocities[index] + decayed
            weights[index] = weights[index] - rate * (decayed + MOMENTUM * velocities[index])
        state, _ = steps.update(state, batch, rate)
    found = leaves(state.params)
    differences = [float(np.abs(ours - theirs).max()) for ours, theirs in zip(found, weights, strict=True)]
    changes = [float(np.abs(ours - first).max()) for ours, first in zip(found, before, strict=True)]
    print(json.dumps({"names": names, "differences": differences, "changes": changes}))


if __name__ == "__main__":
    main()
