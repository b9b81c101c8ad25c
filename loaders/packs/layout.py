"""Where the patches of packed images lie: segments, positions and masks, made from the grids of a batch's images.

Shapes: R rows, M images in a row, T tokens in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Layout(NamedTuple):
    """What each token of a batch is."""

    segments_RT: NDArray[np.int32]
    """Number of the image in its row, from 1 on; 0 where a token is padding."""
    positions_RT2: NDArray[np.int32]
    """Row and column of each patch in its image's grid; 0 in padding."""


def starts_of(grids_RM2: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the token at which each image begins in its row, shape (R, M): images follow each other without gaps."""
    import numpy as np

    tokens_RM: NDArray[np.int64] = np.prod(grids_RM2, axis=-1, dtype=np.int64)
    return np.cumsum(tokens_RM, axis=1) - tokens_RM


def lay_out(grids_RM2: NDArray[np.int32], mask_RM: NDArray[np.bool_], tokens: int) -> Layout:
    """Return what each token is.

    Args:
        grids_RM2: Patches of each image along height and width, 0 where there is no image.
        mask_RM: False for images that could not be read: their tokens stay where they are, as padding.
        tokens: Tokens in a row, T.
    """
    import numpy as np

    rows, images, _ = grids_RM2.shape
    starts_RM, counts_RM = starts_of(grids_RM2), np.prod(grids_RM2, axis=-1, dtype=np.int64)
    left_R1 = tokens - counts_RM.sum(axis=1, keepdims=True)
    # The padding at the end of a row is one image more, whose number becomes 0.
    numbers = np.tile(np.append(np.arange(images), images), rows)
    image_RT = np.repeat(numbers, np.concatenate([counts_RM, left_R1], axis=1).ravel()).reshape(rows, tokens)
    padded = np.concatenate([mask_RM, np.zeros((rows, 1), np.bool_)], axis=1)
    is_patch_RT = np.take_along_axis(padded, image_RT, axis=1)
    image_RT[~is_patch_RT] = 0
    index_RT = np.arange(tokens) - np.take_along_axis(starts_RM, image_RT, axis=1)
    columns_RT = np.maximum(1, np.take_along_axis(grids_RM2[..., 1], image_RT, axis=1))
    positions_RT2 = np.stack(np.divmod(index_RT, columns_RT), axis=-1).astype(np.int32)
    positions_RT2[~is_patch_RT] = 0
    return Layout(np.where(is_patch_RT, image_RT + 1, 0).astype(np.int32), positions_RT2)
