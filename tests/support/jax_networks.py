"""Facts about the ResNets in JAX and their backend, in a process of JAX's own.

python -m tests.support.jax_networks networks | backend | replicas      prints some of them as JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train.loops.backend import Update
from train.loops.jax import JaxBackend, named_leaves
from train.loops.jax_steps import ResNetSteps, all_devices, join_processes
from train.models.jax_resnet import ARCHITECTURES, ResNet, create_resnet

SIDE = 16


def shapes(name: str) -> list[int]:
    """Return the shape of a network's logits."""
    model = create_resnet(name, num_classes=3, dtype="bfloat16")
    images = jnp.zeros((2, 64, 64, 3))
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), images, train=False))
    logits: Any = jax.eval_shape(lambda variables: model.apply(variables, images, train=False), variables)
    return [*logits.shape, str(logits.dtype)]


def new_blocks_are_the_identity() -> bool:
    """Return whether a normalisation of a new block is zero, so that the block gives what a ReLU makes of its input."""
    model = ResNet(architecture=ARCHITECTURES["_ResNet1"], num_classes=3, dtype="float32", width=4)
    variables = model.init(jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 3)), train=False)
    scales = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(variables["params"]) if "scale" in str(path)]
    return any(not bool(leaf.any()) for leaf in scales)


def opened() -> JaxBackend:
    """Make the backend of a small network on the devices of all processes."""
    model = ResNet(architecture=ARCHITECTURES["_ResNet1"], num_classes=3, dtype="float32", width=4)
    mesh = all_devices()
    steps = ResNetSteps(model, mesh, momentum=0.9, weight_decay=0.0)
    return JaxBackend(mesh=mesh, steps=steps, values=steps.initial(seed=0, image_size=SIDE), validation=None)


def with_last(values: Any, name: str, number: float) -> Any:
    """Return values in which the last number of one array, on this process's devices alone, is another one."""

    def changed(path: Any, leaf: jax.Array) -> jax.Array:
        if jax.tree_util.keystr(path, simple=True, separator="/") != name:
            return leaf
        array = np.array(leaf)
        array.flat[-1] = number
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, array.__getitem__)

    return jax.tree_util.tree_map_with_path(changed, values)


def replicas() -> list[list[str]]:
    """Return the arrays that are not finite: of all devices alike, and where one process's copy of one differs."""
    join_processes()
    found = opened()
    answers = [found.not_finite()]
    if jax.process_index() == 1:
        found.values = with_last(found.values, "params/conv_init/kernel", np.nan)
    return [*answers, found.not_finite()]


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
    found.try_step(resident)
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


if __name__ == "__main__":
    if sys.argv[1] == "backend":
        print(json.dumps(backend()))
    elif sys.argv[1] == "replicas":
        print(json.dumps(replicas()))
    else:
        names = ("ResNet18", "ResNet50", "_ResNet1")
        print(json.dumps({"shapes": {name: shapes(name) for name in names}, "identity": new_blocks_are_the_identity()}))
