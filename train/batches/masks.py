"""Masks: which patches a masked autoencoder sees, a pure function of the seed and a sample's global position.

In packs a mask is drawn for each image of a row. Shapes: N samples, L patches in an image, row by row, K visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dataprep.arrays import NDArray, np
from dataprep.dataset.randomness import philox_words
from dataprep.errors import UsageError
from loaders.packs import Packs


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskConfig:
    """Settings of masks. Raises UsageError if nothing would be visible, or nothing hidden."""

    grid: int
    """Patches along a side of the image."""
    ratio: float = 0.75
    """Share of the patches that is hidden."""
    unit: int = 1
    """Side, in patches, of the blocks that are shown or hidden together; the image's border may cut the last ones."""

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
    that follows from its position among those of all epochs, as `Loader.positions` has it.
    """
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PackMaskConfig:
    """Settings of the masks of packed images. Raises UsageError if nothing would be visible, or nothing hidden."""

    packs: Packs
    ratio: float = 0.75
    """Share of each image's patches that is hidden, rounded up; one patch is visible in any case."""

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise UsageError(f"mask_ratio must be above 0 and below 1 with packs, got {self.ratio}")

    @property
    def num_visible(self) -> int:
        """Number of places for the visible tokens of a row, K: enough for every row."""
        return min(self.packs.tokens, int(self.packs.tokens * (1 - self.ratio)) + self.packs.images)


@dataclass(frozen=True, slots=True)
class PackMasks:
    """Masks of some rows."""

    visible_RK: NDArray[np.int32]
    """Token at each place of visible ones; any token at places that are left over."""
    is_visible_RK: NDArray[np.bool_]
    """False at places that are left over."""
    place_RT: NDArray[np.int32]
    """Place of each token among the visible ones; K for the others."""


def draw_pack_masks(
    config: PackMaskConfig, *, seed: int, positions: range, segments_RT: NDArray[np.int32]
) -> PackMasks:
    """Show a fixed share of the patches of each image, drawn at random.

    Args:
        positions: Global positions of this rank's images, counted over all epochs, ascending.
        segments_RT: Number of each token's image in its row, 0 in padding, as in `loaders.PackBatch`.
    """
    rows, tokens = segments_RT.shape
    noise_RT = _noise(config.packs, seed, positions, segments_RT)
    # Sorted by image and then by noise, the images stay where they are, with padding last.
    image_RT = np.where(segments_RT == 0, config.packs.images + 1, segments_RT)
    order_RT = np.lexsort((noise_RT, image_RT), axis=1)
    sorted_RT = np.take_along_axis(image_RT, order_RT, axis=1)
    counts = np.stack([(segments_RT == image).sum(axis=1) for image in range(config.packs.images + 2)], axis=1)
    starts = np.cumsum(counts, axis=1) - counts - counts[:, :1]  # padding, number 0, is not before the images
    shown = np.maximum(1, (counts * (1 - config.ratio)).astype(np.int64))
    shown[:, -1] = 0
    index_RT = np.arange(tokens) - np.take_along_axis(starts, sorted_RT, axis=1)
    is_shown_RT = index_RT < np.take_along_axis(shown, sorted_RT, axis=1)
    first_RK = np.argsort(~is_shown_RT, axis=1, kind="stable")[:, : config.num_visible]
    visible_RK = np.take_along_axis(order_RT, first_RK, axis=1).astype(np.int32)
    is_visible_RK = np.take_along_axis(is_shown_RT, first_RK, axis=1)
    place_RT = np.full((rows, tokens), config.num_visible, np.int32)
    row, place = np.nonzero(is_visible_RK)
    place_RT[row, visible_RK[row, place]] = place
    return PackMasks(visible_RK, is_visible_RK, place_RT)


def _noise(packs: Packs, seed: int, positions: range, segments_RT: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a random word for every token; an image's are words of one stream at an offset of its position."""
    rows, tokens = segments_RT.shape
    per_image, first = packs.most, positions.start
    count = positions[-1] + 1 - first
    words = philox_words(count * per_image, seed=seed, purpose="train/pack-mask", start=first * per_image)
    of_rank = words.reshape(count, per_image)[:: positions.step]
    # Image m of row r is the (m * R + r)-th of this rank's batch.
    words_RMP = of_rank.reshape(packs.images, rows, per_image).swapaxes(0, 1)
    image_RT = np.maximum(segments_RT, 1) - 1
    is_first = np.diff(segments_RT, axis=1, prepend=-1) != 0
    start_RT = np.maximum.accumulate(np.where(is_first, np.arange(tokens), 0), axis=1)
    index_RT = np.minimum(np.arange(tokens) - start_RT, per_image - 1)  # padding may be longer than an image
    found: NDArray[np.uint64] = words_RMP[np.arange(rows)[:, None], image_RT, index_RT]
    return found
