"""From picks to places in packed rows: looks the images' sizes up in the index, and plans rows of them.

Shapes: R rows of these picks, M images in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dataprep.dataset.paths import named
from dataprep.errors import UsageError
from loaders.config import LoaderConfig
from loaders.decode.crop import View, whole_views
from loaders.decode.decoders import cut_patches, image_of_patches
from loaders.order import Pick
from loaders.packs.layout import starts_of
from loaders.packs.plan import plan_alone, plan_rows
from loaders.packs.settings import Packs

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from loaders.fetch.index import SplitIndex


class Place(NamedTuple):
    """How one image is seen, and where its patches go."""

    view: View
    start: int
    """First token of the image, counted over all rows of this rank's batch."""
    patches: int
    columns: int
    """Patches of the image, and of one row of its grid."""


def place_images(
    picks: Sequence[tuple[int, Pick]], index: SplitIndex, config: LoaderConfig, packs: Packs, grids: NDArray[np.int32]
) -> list[Place]:
    """Plan the rows of a batch that these picks fill, and return the place of each.

    Args:
        picks: Places among the rank's images, row by row, with the samples for them; ascending by position, and all
            images of a row or, at the end of an evaluation, some.
        index: Index of the split.
        config: Settings of the loader.
        packs: The setting `packs` of the loader.
        grids: Receives the grids of these images, shape (images of the rank, 2).

    Raises:
        UsageError: The index does not know the size of an image.
    """
    import numpy as np

    if not picks:
        return []
    slots = np.array([slot for slot, _ in picks])
    sizes = np.array([_size(index, pick) for _, pick in picks], np.int64)
    rows, row = np.unique(slots // packs.images, return_inverse=True)
    planned_RM2 = np.zeros((len(rows), packs.images, 2), np.int32)
    at = row, slots % packs.images
    if config.augment:
        positions = [pick.position for _, pick in picks]
        seen = whole_views(config.seed, positions, sizes, crop=packs.crop, flip=config.flip)
        boxes, flips = seen.boxes, seen.flips
        planned_RM2[:] = _drawn(packs, planned_RM2.shape, at, boxes[:, 2:], seen.spare)
    else:
        boxes, flips = np.concatenate([np.zeros_like(sizes), sizes], axis=1), np.zeros(len(sizes), np.bool_)
        planned_RM2[at] = plan_alone(packs, sizes[:, 0], sizes[:, 1])
    grids[slots] = planned_RM2[at]
    starts = rows[row] * packs.tokens + starts_of(planned_RM2)[at]
    return _places(packs, boxes, flips, planned_RM2[at], starts)


def _drawn(
    packs: Packs,
    shape: tuple[int, ...],
    at: tuple[NDArray[np.intp], NDArray[np.intp]],
    sizes: NDArray[np.int64],
    draws: NDArray[np.float64],
) -> NDArray[np.int32]:
    """Plan rows; images that are missing at the end of an evaluation are planned as if they were squares."""
    import numpy as np

    sizes_RM2, draws_RM = np.ones(shape, np.int64), np.zeros(shape[:2])
    sizes_RM2[at], draws_RM[at] = sizes, draws
    return plan_rows(packs, sizes_RM2[..., 0], sizes_RM2[..., 1], draws_RM)


def _places(
    packs: Packs,
    boxes: NDArray[np.int64],
    flips: NDArray[np.bool_],
    grids: NDArray[np.int32],
    starts: NDArray[np.int64],
) -> list[Place]:
    import numpy as np

    places = []
    numbers = np.concatenate([boxes, grids, starts[:, None]], axis=1).tolist()
    for (top, left, height, width, rows, columns, start), flip in zip(numbers, flips.tolist(), strict=True):
        view = View(top, left, height, width, rows * packs.patch, columns * packs.patch, 0, 0, flip)
        places.append(Place(view, start, rows * columns, columns))
    return places


def transform_patches(
    transform: Callable[[NDArray[np.uint8]], None], rows_RTV: NDArray[np.uint8], place: Place
) -> None:
    """Put an image together from its patches, let `transform` change it in place, and write it back."""
    flat = rows_RTV.reshape(-1, rows_RTV.shape[-1])
    image_HWC = image_of_patches(flat[place.start : place.start + place.patches], place.columns)
    transform(image_HWC)
    cut_patches(image_HWC, rows_RTV, place.start)


def _size(index: SplitIndex, pick: Pick) -> tuple[int, int]:
    entries = index.shard(pick.piece.shard)
    height, width = int(entries.height[pick.sample]), int(entries.width[pick.sample])
    if height < 1 or width < 1:
        raise UsageError(
            f"packs: the index has no height and width of {named(entries.key(pick.sample))}, and packs are planned "
            "from them; make a dataset that has them with `dataprep convert`"
        )
    return height, width
