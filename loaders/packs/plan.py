"""How many patches each image of a row gets along its sides: a pure function of the images' sizes and their draws.

    wanted tokens   drawn for each image, uniformly along the side: the root of the tokens is uniform within the bounds
    shares          wanted tokens times one factor a row, held within the bounds, whose sum is the row's length
    grids           whole patches: the grid whose shape is nearest to the image's, within its share; what rounding
                    leaves over goes to the next image, and the last one takes a grid that leaves little

The plan of a row needs the sizes of this row's images only, so it costs the same at any batch of any epoch. In an
evaluation every image gets the same share, so that its pixels do not depend on its neighbours.

Shapes: R rows, M images in a row, N images. Only integers are summed; floats are multiplied, divided, rounded and
compared one by one, and roots are taken, so that plans are the same on every processor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loaders.packs.settings import Packs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WANTED_BITS = 8
"""Binary places of the tokens that an image wants."""
_FACTOR_BITS = 20
"""Binary places of the factor by which the images of a row are scaled."""
_MAX_FACTOR = 2**36
"""Largest factor; with MAX_TOKENS a product stays below 2^61."""
_COST_OF_SHAPE = 0.5
"""Share of the last image's tokens that may be left over, for each unit of its shape's distortion."""


def plan_rows(
    packs: Packs, heights_RM: NDArray[np.int64], widths_RM: NDArray[np.int64], draws_RM: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Return the grids of rows for training: patches along height and width, shape (R, M, 2).

    Args:
        packs: Length of the rows, and bounds.
        heights_RM: Heights of what is seen of the images, pixels, 1 or more.
        widths_RM: Widths of the same.
        draws_RM: A random number in [0, 1) for each image.
    """
    import numpy as np

    shares_RM = _shares(packs, draws_RM)
    spare_R = packs.tokens - shares_RM.sum(axis=1)
    grids_RM2 = np.empty((*shares_RM.shape, 2), np.int32)
    last = shares_RM.shape[1] - 1
    for image in range(last + 1):
        spare_R = spare_R + shares_RM[:, image]
        budget_R = np.minimum(spare_R, packs.most)
        grids_RM2[:, image] = _grids(budget_R, heights_RM[:, image], widths_RM[:, image], fill=image == last)
        spare_R = spare_R - np.prod(grids_RM2[:, image], axis=1, dtype=np.int64)
    return grids_RM2


def plan_alone(packs: Packs, heights_N: NDArray[np.int64], widths_N: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the grids of an evaluation: for each image the best one within an equal share of a row, shape (N, 2)."""
    import numpy as np

    budget = min(packs.tokens // packs.images, packs.most)
    return _grids(np.full(len(heights_N), budget, np.int64), heights_N, widths_N, fill=True)


def _shares(packs: Packs, draws_RM: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many tokens each image may have; a row's sum is its length, but for a token an image at most."""
    import numpy as np

    low, high = math.sqrt(packs.least), math.sqrt(packs.most)
    sides_RM = low + draws_RM * (high - low)
    wanted_RM = np.rint(sides_RM * sides_RM * 2**_WANTED_BITS).astype(np.int64)
    rows = len(wanted_RM)
    least, most = np.zeros((rows, 1), np.int64), np.full((rows, 1), _MAX_FACTOR, np.int64)
    for _ in range(_MAX_FACTOR.bit_length()):  # search the largest factor with which the images fit
        factor = (least + most + 1) // 2
        fits = _scaled(packs, wanted_RM, factor).sum(axis=1, keepdims=True) <= packs.tokens
        least, most = np.where(fits, factor, least), np.where(fits, most, factor - 1)
    return _scaled(packs, wanted_RM, least)


def _scaled(packs: Packs, wanted_RM: NDArray[np.int64], factor_R1: NDArray[np.int64]) -> NDArray[np.int64]:
    import numpy as np

    scaled_RM: NDArray[np.int64] = (wanted_RM * factor_R1) >> (_WANTED_BITS + _FACTOR_BITS)
    return np.clip(scaled_RM, packs.least, packs.most)


def _grids(
    budget_N: NDArray[np.int64], heights_N: NDArray[np.int64], widths_N: NDArray[np.int64], *, fill: bool
) -> NDArray[np.int32]:
    """Return the grid of each image that costs least, shape (N, 2).

    Args:
        budget_N: Most tokens of each image, 1 or more.
        heights_N: Heights, pixels.
        widths_N: Widths, pixels.
        fill: True: tokens that are left over cost, too. False: only a shape that differs from the image's does.
    """
    import numpy as np

    grids_CN2 = _candidates(budget_N, heights_N, widths_N)
    rows_CN, columns_CN = grids_CN2[..., 0], grids_CN2[..., 1]
    shape_CN = (columns_CN * heights_N) / (rows_CN * widths_N)
    cost_CN = np.maximum(shape_CN, 1 / shape_CN) - 1
    if fill:
        cost_CN = _COST_OF_SHAPE * cost_CN + (1 - rows_CN * columns_CN / budget_N)
    cost_CN[rows_CN * columns_CN > budget_N] = np.inf
    found: NDArray[np.int32] = grids_CN2[cost_CN.argmin(axis=0), np.arange(len(budget_N))].astype(np.int32)
    return found


def _candidates(
    budget_N: NDArray[np.int64], heights_N: NDArray[np.int64], widths_N: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return grids around the one that has exactly the image's shape and all its tokens, shape (candidates, N, 2).

    The first one fits; others may be too large. Larger ones come before smaller ones of the same shape.
    """
    import numpy as np

    ideal_N = np.sqrt(budget_N * (widths_N / heights_N))
    rows_N = np.clip(np.floor(budget_N / ideal_N).astype(np.int64), 1, budget_N)
    columns_N = np.clip(np.floor(ideal_N).astype(np.int64), 1, budget_N // rows_N)
    more_rows_N, more_columns_N = rows_N + 1, columns_N + 1
    pairs = [
        (rows_N, budget_N // rows_N),
        (more_rows_N, np.maximum(1, budget_N // more_rows_N)),
        (budget_N // columns_N, columns_N),
        (np.maximum(1, budget_N // more_columns_N), more_columns_N),
        (more_rows_N, more_columns_N),
        (rows_N, more_columns_N),
        (more_rows_N, columns_N),
        (rows_N, columns_N),
    ]
    return np.stack([np.stack(pair, axis=-1) for pair in pairs])
