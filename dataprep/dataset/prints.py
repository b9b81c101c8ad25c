"""Finds images with the same bytes by their sizes and CRC32Cs, which index and receipts have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from dataprep.dataset.columns import numbers_or_zero
from dataprep.messages import counted

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

LOOKED_AT = 2_000_000
"""Limit of the number of images of a split that are compared with others; they take 60 MB of memory."""


class Prints:
    """Size and CRC32C of each of the first images of a split, in one number: equal where two have the same bytes, and
    hardly ever elsewhere."""

    def __init__(self) -> None:
        self._found: list[NDArray[np.uint64]] = []
        self._is_known = True
        self.images = 0
        """Number of images that were added."""

    def add(self, num_bytes: NDArray[np.int64], checksums: pa.Array | pa.ChunkedArray) -> None:
        """Add the next images; without a CRC32C of each image nothing is compared."""
        import numpy as np

        self._is_known = self._is_known and checksums.null_count == 0
        if self.images < LOOKED_AT and self._is_known:
            self._found.append(numbers_or_zero(checksums, np.uint64) << np.uint64(32) | num_bytes.astype(np.uint32))
        self.images += len(num_bytes)

    def numbers(self) -> NDArray[np.uint64]:
        """Return a number for each image that is compared, in the order of the index; none without checksums."""
        import numpy as np

        found = self._found if self._is_known else []
        return np.concatenate([np.empty(0, np.uint64), *found])[:LOOKED_AT]


class SharedImages(NamedTuple):
    """Images of a split that are also in another one."""

    split: str
    other: str
    positions: NDArray[np.int64]
    """Positions of the images in `split`."""


def shared_images(prints: Mapping[str, Prints]) -> Iterator[SharedImages]:
    """Compare every two splits, by name, and yield those that share images; train is always the other one."""
    import numpy as np

    for other, split in combinations(sorted(prints, key=lambda name: name != "train"), 2):
        positions = np.flatnonzero(np.isin(prints[split].numbers(), prints[other].numbers()))
        if len(positions):
            yield SharedImages(split, other, positions)


def also_in(split: str, other: str, images: int) -> str:
    """Say how many images of a split are also in another one: `2 images of val are also in train`."""
    return f"{counted(images, 'image')} of {split} {'is' if images == 1 else 'are'} also in {other}"
