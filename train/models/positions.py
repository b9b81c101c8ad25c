"""Fixed positions of a masked autoencoder in NumPy, equal to `train.models.mae.sincos_positions`, without PyTorch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LONGEST_PERIOD = 10_000.0
"""Factor between the first and the last frequency: Vaswani et al., "Attention is all you need", 2017."""


def sincos_positions(dim: int, grid: int) -> NDArray[np.float32]:
    """Return the fixed position embeddings of `train.models.mae.sincos_positions`: (1, 1 + grid^2, dim)."""
    frequencies = _LONGEST_PERIOD ** (-np.arange(dim // 4) / (dim // 4))
    angles = np.outer(np.arange(grid), frequencies)
    along = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    patches = np.concatenate([np.tile(along, (grid, 1)), np.repeat(along, grid, axis=0)], axis=1)
    return np.concatenate([np.zeros((1, dim)), patches]).astype(np.float32)[None]
