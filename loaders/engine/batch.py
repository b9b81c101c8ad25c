"""Batches of all kinds, their arrays by name, and the state that each carries.

Shapes: NHWC, uint8, 0..255, for images as squares; those of packs and views are said where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar

from loaders.config import LoaderConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loaders.decode.boxes import RowView

T = TypeVar("T")


class MixtureChange(TypedDict):
    """Weights of a mixture's datasets that hold from a position on."""

    start: int
    """Images of all ranks before the position."""
    weights: list[int]
    """Weight of each dataset as a whole number, in the order of the mixture."""
    counts: list[int]
    """Images of each dataset before the position."""


class LoaderState(TypedDict):
    """Where a loader goes on, as values of JSON."""

    state_version: int
    position: int
    """Images of all ranks before the next batch, counted over all epochs."""
    epoch: int
    sequence: dict[str, object]
    """All that the sequence of batches depends on."""
    mixture: NotRequired[list[MixtureChange]]
    """The weights of a mixture, and the positions from which on they hold."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's part of one step."""

    images: NDArray[np.uint8]
    """(rows, size, size, 3); the memory is reused when nothing refers to it any more."""
    labels: NDArray[np.int64]
    """(rows,); -1 where an image has no label."""
    keys: list[str]
    """Name of each image, unique in the split of its dataset; empty in the tail of an evaluation."""
    mask: NDArray[np.bool_]
    """(rows,); False where a row holds no sample: the tail of an evaluation, or an image that was skipped."""
    fields: dict[str, list[Any]]
    """Values of the fields that the setting `fields` names, one for each row, or what the `transform` made of them;
    None in the tail of an evaluation."""
    state: LoaderState
    """State for `load_state_dict`, which continues after this batch."""
    views: list[RowView | None] | None = None
    """How each image was cropped and flipped, with the setting `views`; None for a row without a sample."""


ARRAYS = {"images": 4, "labels": 1, "mask": 1}
"""Names of a batch's arrays, with their numbers of dimensions."""
PACK_ARRAYS = {"images": 3, "labels": 2, "mask": 2, "segments": 2, "positions": 3, "token_mask": 2, "grids": 3}
"""The same of packs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBatch(Batch):
    """One rank's part of one step, with images as patches in rows of one length.

    The images of a row follow each other, each row by row of its own grid, and padding is at the end of the row.
    Shapes: R rows of this rank, T = `packs.tokens` tokens, M = `packs.images` images in a row. `images` are patches,
    (R, T, patch * patch * 3): the pixels of each row by row, 0 in padding. `labels` and `mask` are (R, M); keys and
    fields have an entry for each image, row by row: image m of row r is `keys[r * M + m]`.
    """

    segments: NDArray[np.int32]
    """(R, T): number of the token's image in its row, from 1 to M; 0 in padding."""
    positions: NDArray[np.int32]
    """(R, T, 2): row and column of each patch in its image's grid."""
    token_mask: NDArray[np.bool_]
    """(R, T); False in padding: the mask of keys in attention."""
    grids: NDArray[np.int32]
    """(R, M, 2): patches of each image along height and width; 0 where there is no image."""


@dataclass(frozen=True, slots=True)
class ViewBatch(Batch):
    """One rank's part of one step, with several views of each image; labels, keys and the rest are those of images."""

    images: tuple[NDArray[np.uint8], ...]  # type: ignore[assignment]  # in place of one array
    """For each group of views an array (rows, views, size, size, 3); the memory is reused as that of `Batch`."""


def arrays_of(batch: Batch) -> dict[str, NDArray[Any]]:
    """Return the arrays of a batch by name, for adapters; those of several groups of views are `images/0` and so on."""
    if isinstance(batch, ViewBatch):
        images = {f"images/{number}": group for number, group in enumerate(batch.images)}
        return images | {name: getattr(batch, name) for name in ARRAYS if name != "images"}
    return {name: getattr(batch, name) for name in (PACK_ARRAYS if isinstance(batch, PackBatch) else ARRAYS)}


def image_groups(arrays: Mapping[str, T]) -> tuple[T, ...]:
    """Return the groups of views among what became of the arrays of a `ViewBatch`."""
    return tuple(arrays[f"images/{number}"] for number in range(len(arrays) - len(ARRAYS) + 1))


def array_dimensions(config: LoaderConfig) -> dict[str, int]:
    """Return the names of the arrays of a loader's batches, as `arrays_of` has them, with their dimensions."""
    if config.view_groups:
        groups = {f"images/{number}": 5 for number in range(len(config.view_groups))}
        return groups | {name: dimensions for name, dimensions in ARRAYS.items() if name != "images"}
    return ARRAYS if config.packs is None else PACK_ARRAYS
