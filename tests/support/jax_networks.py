"""Facts about the ResNets in JAX, their updates and their backend, which a process of JAX's own prints as JSON."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from train.checkpoints.checkpoint import named_leaves
from train.loops.backend import Update
from train.loops.jax import Batch, JaxBackend, ResNetSteps, all_devices
from train.models.jax_resnet import ARCHITECTURES, ResNet, create_resnet

SIDE = 16
MOMENTUM, DECAY = 0.8, 0.3
RATES = (0.0, 0.05, 0.2, 0.1)
SAMPLES = (True, True, False, True)
"""Rows of a batch that hold an image; the others have the label -1."""


def small() -> ResNet:
    """Make a network that a processor trains at once."""
    return ResNet(architecture=ARCHITECTURES["_ResNet1"], num_classes=3, dtype="float32", width=4)


def shapes(name: str) -> list[int]:
    """Return the shape of a network's logits."""
    model = create_resnet(name, num_classes=3, dtype="bfloat16")
    images = jnp.zeros((2, 64, 64, 3))
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), images, train=False))
    logits: Any = jax.eval_shape(lambda variables: model.apply(variables, images, train=False), variables)
    return [*logits.shape, str(logits.dtype)]


def new_blocks_are_the_identity() -> bool:
    """Return whether a normalisation of a new block is zero, so that the block gives what a ReLU makes of its input."""
    model = small()
    variables = model.init(jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 3)), train=False)
    scales = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(variables["params"]) if "scale" in str(path)]
    return any(not bool(leaf.any()) for leaf in scales)


def opened() -> JaxBackend:
    """Make the backend of a small network on all devices."""
    model = small()
    mesh = all_devices()
    steps = ResNetSteps(model, mesh, momentum=0.9, weight_decay=0.0)
    return JaxBackend(mesh=mesh, steps=steps, values=steps.initial(seed=0, image_size=SIDE), validation=None)


def with_last(values: Any, name: str, number: float) -> Any:
    """Return values in which the last number of one array is another one."""

    def changed(path: Any, leaf: jax.Array) -> jax.Array:
        if jax.tree_util.keystr(path, simple=True, separator="/") != name:
            return leaf
        array = np.array(leaf)
        array.flat[-1] = number
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, array.__getitem__)

    return jax.tree_util.tree_map_with_path(changed, values)


def not_finite(found: JaxBackend) -> dict[str, list[str]]:
    """Return the arrays that are not finite after one number of one of them, by its name and this number, was set."""
    values, answers = found.values, {"": found.not_finite()}
    names = [name for name, _ in named_leaves(values)]
    for number, part in ((np.nan, "params/"), (np.inf, "optimizer/"), (-np.inf, "batch_stats/"), (3e38, "params/")):
        name = next(each for each in names if each.startswith(part))
        found.values = with_last(values, name, number)
        answers[f"{name} {number:g}"] = found.not_finite()
    found.values = values
    return answers


def backend() -> dict[str, Any]:
    """Train three steps on one batch, save, train on, restore, and train the same steps again."""
    found = opened()
    rng = np.random.default_rng(0)
    resident = found.put(rng.integers(0, 256, (4, SIDE, SIDE, 3), dtype=np.uint8), np.arange(4) % 3)

    def losses(first: int) -> list[float]:
        updates = [Update(step=step, lr=0.1, positions=range(4)) for step in range(first, first + 3)]
        return [float(found.update(resident, update)["loss"]) for update in updates]

    before = losses(0)
    saved = found.state()
    after = losses(3)
    found.restore("x", saved, [])
    again = losses(3)
    unchanged = found.state()["arrays"]["params/conv_init/kernel"].copy()
    found.step(resident)
    return {
        "before": before,
        "after": after,
        "again": again,
        "rate_0": bool(np.array_equal(found.state()["arrays"]["params/conv_init/kernel"], unchanged)),
        "not finite": not_finite(found),
        "evaluated": found.evaluate(lambda: False),
        "stops": [found.agree_to_stop(asked, 1) for asked in (False, True)],
        "facts": [found.name, found.is_first, found.transfer_ahead, found.catches_signals],
    }


def batch_of(step: int) -> Batch:
    rng = np.random.default_rng(step)
    images = rng.integers(0, 256, (len(SAMPLES), SIDE, SIDE, 3), dtype=np.uint8)
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


def updates() -> dict[str, Any]:
    """Compare some updates with SGD with Nesterov's correction in NumPy's float64: names, differences and changes."""
    model = small()
    steps = ResNetSteps(model, all_devices(), momentum=MOMENTUM, weight_decay=DECAY)
    state = steps.initial(seed=0, image_size=SIDE)
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
    return {"names": names, "differences": differences, "changes": changes}


if __name__ == "__main__":
    logits = {name: shapes(name) for name in ("ResNet18", "ResNet50", "_ResNet1")}
    networks = {"shapes": logits, "identity": new_blocks_are_the_identity()}
    print(json.dumps({"networks": networks, "backend": backend(), "updates": updates()}))
