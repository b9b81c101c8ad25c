"""Masks: which patches a masked autoencoder sees, a pure function of the seed and a sample's global position.

Shapes: N samples, L patches in an image, row by row, K of them visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep.dataset.randomness import philox_words
from dataprep.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskConfig:
    """How images are masked.

    Raises:
        UsageError: Nothing would be visible, or nothing hidden.
    """

    grid: int
    """Patches along a side of the image."""
    ratio: float = 0.75
    """Share of the patches that is hidden."""
    unit: int = 1
    """Side, in patches, of the blocks that are shown or hidden as a whole; the image's border may cut the last ones."""

    def __post_init__(self) -> None:
        if self.unit < 1:
            raise UsageError(f"mask_downsampling must be 1 or more, got {self.unit}")
        if not 0 < self.num_visible < self.num_patches:
            raise UsageError(
                f"mask_ratio {self.ratio} shows {self.num_visible} of {self.num_patches} patches; "
                "choose one that shows some and hides some"
            )

    @property
    def num_patches(self) -> int:
        """Number of patches in an image, L."""
        return self.grid**2

    @property
    def num_visible(self) -> int:
        """Number of visible patches, K."""
        return int(self.num_patches * (1 - self.ratio))


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks of some samples."""

    visible_NK: NDArray[np.int32]
    """Numbers of the visible patches."""
    place_NL: NDArray[np.int32]
    """Index of each patch in the sample's permutation of patches; the first K of the permutation are visible."""


def draw_masks(config: MaskConfig, *, seed: int, positions: Sequence[int]) -> Masks:
    """Permute the blocks of each sample and show the first K patches of them.

    Masks do not depend on the batch or the number of ranks: a sample's draws are the words of one stream at an offset
    that follows from its position.

    Args:
        config: How images are masked.
        seed: Seed of the run.
        positions: Global positions of the samples, counted over all epochs: `Loader.positions`.
    """
    import numpy as np

    side = -(-config.grid // config.unit)
    per_sample = side**2
    first = min(positions)
    count = max(positions) + 1 - first
    words = philox_words(count * per_sample, seed=seed, purpose="train/mask", start=first * per_sample)
    words_NB = words.reshape(count, per_sample)[np.asarray(positions) - first]
    along = np.arange(config.grid) // config.unit
    block_L = (along[:, None] * side + along).ravel()
    order_NL = np.argsort(words_NB[:, block_L], axis=1, kind="stable").astype(np.int32)  # row by row within a block
    place_NL = np.empty_like(order_NL)
    np.put_along_axis(place_NL, order_NL, np.arange(config.num_patches, dtype=np.int32)[None], axis=1)
    return Masks(np.ascontiguousarray(order_NL[:, : config.num_visible]), place_NL)
