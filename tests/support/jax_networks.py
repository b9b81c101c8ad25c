"""Facts about the ResNets in JAX and their backend, in a process of JAX's own.

python -m tests.support.jax_networks networks | backend      prints some of them as JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train.loops.backend import Update
from train.loops.jax import JaxBackend
from train.loops.jax_steps import Steps, all_devices
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


def backend() -> dict[str, Any]:
    """Train three steps on one batch, save, train on, restore, and train the same steps again."""
    model = ResNet(architecture=ARCHITECTURES["_ResNet1"], num_classes=3, dtype="float32", width=4)
    mesh = all_devices()
    steps = Steps(model, mesh, momentum=0.9, weight_decay=0.0)
    values = steps.initial(seed=0, image_size=SIDE)
    found = JaxBackend(mesh=mesh, steps=steps, values=values, validation=None)
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
        "evaluated": found.evaluate(lambda: False),
        "stops": [found.agree_to_stop(asked, 1) for asked in (False, True)],
        "facts": [found.name, found.is_first, found.transfer_ahead, found.catches_signals],
    }


if __name__ == "__main__":
    if sys.argv[1] == "backend":
        print(json.dumps(backend()))
    else:
        names = ("ResNet18", "ResNet50", "_ResNet1")
        print(json.dumps({"shapes": {name: shapes(name) for name in names}, "identity": new_blocks_are_the_identity()}))
