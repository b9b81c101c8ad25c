"""Learning rates in JAX that grow from the pixels to the head, as `layer_decay.py` has them in PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from train.models.layers import layer_of


def layer_scales(params: Any, layer_decay: float | None) -> Any:
    """Return the factor of the learning rate for each weight, or an array of them, one for each block.

    Args:
        params: Weights of a vision transformer, in the layout of `train.models.jax_transformers`.
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
