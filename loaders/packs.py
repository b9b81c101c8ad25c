"""Packs: images at native aspect ratio, cut into patches, in rows of one static length.

`Packs` has the settings. `plan_rows` computes the number of patches along each image's sides, a pure
function of the images' sizes and their draws:

    wanted tokens   drawn for each image, uniformly along the side: the root of the tokens is uniform within the bounds
    shares          wanted tokens times one factor a row, held within the bounds, whose sum is the row's length
    grids           whole patches: the grid whose shape is nearest to the image's, within its share; what rounding
                    leaves over goes to the next image, and the last one takes a grid that leaves little

The plan of a row needs the sizes of this row's images only, so it costs the same at any batch of any epoch. In an
evaluation every image gets the same share, so that its pixels do not depend on its neighbours. `lay_out` turns grids
into segments, positions and masks. docs/decisions/0016 says why a row has a fixed number of images.

Shapes: R rows, M images in a row, N images, T tokens in a row. Only integers are summed; floats are multiplied,
divided, rounded and compared one by one, and roots are taken, so that plans are the same on every processor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError

MAX_PATCH = 512
"""Largest side of a patch, pixels."""
MAX_TOKENS = 2**16
"""Largest number of tokens in a row; a plan computes with 64-bit integers, which hold the products of such numbers."""


@dataclass(frozen=True, kw_only=True)
class Packs:
    """Images at their own aspect ratio, cut into patches and packed into rows of one length.

    A row holds a fixed number of images. Each gets a number of tokens that is drawn within bounds and scaled so that
    the row is full, and is resized to a grid of whole patches with about that number of tokens and about its own shape.

    Raises:
        UsageError: A value has the wrong type or is out of range, or the images cannot fill a row within the bounds.
    """

    tokens: int
    """Tokens in a row; a token is one patch."""
    images: int
    """Images in a row. `batch_size` counts images, so that a batch has `batch_size // images` rows over all ranks."""
    patch: int = 16
    """Side of a patch, pixels."""
    min_tokens: int | None = None
    """Fewest tokens of an image, before its grid is rounded to whole patches; by default half of the mean."""
    max_tokens: int | None = None
    """Most tokens of an image; by default twice the mean."""
    crop: tuple[float, float] | None = None
    """Smallest and largest area of a random crop of the image's own shape, as shares of its area; None: no crop."""

    def __post_init__(self) -> None:
        for name, most in (("tokens", MAX_TOKENS), ("images", MAX_TOKENS), ("patch", MAX_PATCH)):
            object.__setattr__(self, name, whole(f"packs: {name}", getattr(self, name), most))
        if self.images > self.tokens:
            raise UsageError(f"packs: {self.images} images do not fit into {self.tokens} tokens; give more tokens")
        for name in ("min_tokens", "max_tokens"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(f"packs: {name}", getattr(self, name), self.tokens))
        if not self.least <= self.tokens // self.images <= self.most:
            raise UsageError(
                f"packs: {self.images} images of {self.least} to {self.most} tokens cannot fill {self.tokens} tokens, "
                f"{self.tokens // self.images} each; change images, tokens, min_tokens or max_tokens"
            )
        if self.crop is not None:
            if not is_pair(self.crop) or not 0 < self.crop[0] <= self.crop[1] <= 1:
                raise UsageError(f"packs: crop must be a range within 0 to 1, or None, got {self.crop!r}")
            object.__setattr__(self, "crop", (float(self.crop[0]), float(self.crop[1])))

    @property
    def least(self) -> int:
        """Fewest tokens of an image."""
        return max(1, self.tokens // self.images // 2) if self.min_tokens is None else self.min_tokens

    @property
    def most(self) -> int:
        """Most tokens of an image."""
        return min(self.tokens, 2 * (self.tokens // self.images)) if self.max_tokens is None else self.max_tokens

    @property
    def patch_bytes(self) -> int:
        """Size of one patch: its pixels row by row, three colours each."""
        return 3 * self.patch**2

    def document(self) -> dict[str, object]:
        """Return the settings that the batches depend on, for a loader's state."""
        crop = None if self.crop is None else list(self.crop)
        names = ("tokens", "images", "patch")
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        return found | {"min_tokens": self.least, "max_tokens": self.most, "crop": crop}


def whole(name: str, value: Any, most: int) -> int:
    """Return a whole number from 1 to `most`. Raises UsageError for anything else; it names the setting."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UsageError(f"{name} must be a whole number, got {value!r}")
    number = int(value)
    if not 1 <= number <= most:
        raise UsageError(f"{name} must be 1 to {most:,}, got {number:,}")
    return number


def is_pair(value: Any) -> bool:
    """Whether a value is a pair of numbers."""
    is_two = isinstance(value, tuple | list) and len(value) == len(("low", "high"))
    return is_two and all(isinstance(each, Real) and not isinstance(each, bool) for each in value)


_WANTED_BITS = 8
"""Binary places of an image's wanted number of tokens."""
_FACTOR_BITS = 20
"""Binary places of the factor that scales the images of a row."""
_MAX_FACTOR = 2**36
"""Largest factor; with MAX_TOKENS a product stays below 2^61."""
_COST_OF_SHAPE = 0.5
"""Share of the last image's tokens that may stay unused, for each unit of distortion of its shape."""


def plan_rows(
    packs: Packs, heights_RM: NDArray[np.int64], widths_RM: NDArray[np.int64], draws_RM: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Return the grids of rows for training, patches along height and width, shape (R, M, 2), from the sides of the
    crops, 1 pixel or more, and a random number in [0, 1) for each image."""
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
    budget = min(packs.tokens // packs.images, packs.most)
    return _grids(np.full(len(heights_N), budget, np.int64), heights_N, widths_N, fill=True)


def _shares(packs: Packs, draws_RM: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the maximum number of tokens of each image; their sum is at most the row's length, and short of it by at
    most a token an image."""
    low, high = math.sqrt(packs.least), math.sqrt(packs.most)
    sides_RM = low + draws_RM * (high - low)
    wanted_RM = np.rint(sides_RM * sides_RM * 2**_WANTED_BITS).astype(np.int64)
    rows = len(wanted_RM)
    least, most = np.zeros((rows, 1), np.int64), np.full((rows, 1), _MAX_FACTOR, np.int64)
    # The bounds of an image clip its share, so the factor that fills a row cannot be computed by one division. But the
    # sum of the shares never falls as the factor grows, so bisection finds the largest factor that fits, in as many
    # steps as it has bits. Factor 0 always fits, because `Packs` refuses `least` above the mean. All is in integers:
    # with floats a rounding that differs between processors would move a token, and with it all later patches.
    for _ in range(_MAX_FACTOR.bit_length()):  # search the largest factor that lets the images fit
        factor = (least + most + 1) // 2
        fits = _scaled(packs, wanted_RM, factor).sum(axis=1, keepdims=True) <= packs.tokens
        least, most = np.where(fits, factor, least), np.where(fits, most, factor - 1)
    return _scaled(packs, wanted_RM, least)


def _scaled(packs: Packs, wanted_RM: NDArray[np.int64], factor_R1: NDArray[np.int64]) -> NDArray[np.int64]:
    scaled_RM: NDArray[np.int64] = (wanted_RM * factor_R1) >> (_WANTED_BITS + _FACTOR_BITS)
    return np.clip(scaled_RM, packs.least, packs.most)


def _grids(
    budget_N: NDArray[np.int64], heights_N: NDArray[np.int64], widths_N: NDArray[np.int64], *, fill: bool
) -> NDArray[np.int32]:
    """Return the grid of each image that costs least, shape (N, 2), within a budget of tokens. With `fill` tokens that
    are left over cost, too; otherwise only a difference from the image's shape costs."""
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
    # The best grid rounds the ideal sides down or up. Each side rounded either way, with the other one as long as the
    # budget allows, gives the first four; they leave few tokens. The last four are the roundings of both sides, which
    # keep the shape. Ties go to the first, so this order is a part of the plan.
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


class Layout(NamedTuple):
    """Image and grid position of each token of a batch."""

    segments_RT: NDArray[np.int32]
    """Number of the image in its row, from 1 on; 0 for padding."""
    positions_RT2: NDArray[np.int32]
    """Row and column of each patch in its image's grid; 0 in padding."""


def starts_of(grids_RM2: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the first token of each image in its row, shape (R, M): images follow each other without gaps."""
    tokens_RM: NDArray[np.int64] = np.prod(grids_RM2, axis=-1, dtype=np.int64)
    return np.cumsum(tokens_RM, axis=1) - tokens_RM


def lay_out(grids_RM2: NDArray[np.int32], mask_RM: NDArray[np.bool_], tokens: int) -> Layout:
    """Return the layout of the tokens. A grid is 0 where there is no image, and the mask False for images that could
    not be read: their tokens stay where they are, as padding."""
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
