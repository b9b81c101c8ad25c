"""64-bit hashes that find repeated names, and fingerprints that find images with the same bytes.

8 bytes a name suffice to find repeated keys and to look up files: the probability that two of ImageNet's keys share a
hash is 4e-8, and code that finds equal hashes compares the names. An image's fingerprint is its size and CRC32C, which
index and receipts have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import combinations
from typing import NamedTuple

from dataprep.arrays import NDArray, np, pa
from dataprep.dataset.columns import numbers_or_zero
from dataprep.messages import counted

LOOKED_AT = 2_000_000
"""Maximum number of images of a split that are compared with other splits; they take 60 MB of memory."""


def name_hash(name: str) -> int:
    """Return the hash of a name, 0..2**64-1, the same on every machine."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def no_hashes() -> NDArray[np.uint64]:
    """Return the hashes of no names."""
    return np.empty(0, np.uint64)


def name_hashes(names: Iterable[str]) -> NDArray[np.uint64]:
    """Return the hashes of names, in their order, shape (names,)."""
    return np.fromiter(map(name_hash, names), np.uint64)


def repeated(sorted_hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes that occur more than once, without repetition."""
    found = sorted_hashes[1:][sorted_hashes[1:] == sorted_hashes[:-1]]
    return np.unique(found) if len(found) else found  # `unique` imports numpy.ma


def position_of(sorted_hashes: NDArray[np.uint64], name: str) -> int | None:
    """Return the position of a name's hash, or None if it is not among them."""
    value = np.uint64(name_hash(name))
    at = int(np.searchsorted(sorted_hashes, value))
    return at if at < len(sorted_hashes) and sorted_hashes[at] == value else None


class Prints:
    """Fingerprints of the first images of a split: size and CRC32C in one number. Images with the same bytes have the
    same fingerprint; others hardly ever do."""

    def __init__(self) -> None:
        self._found: list[NDArray[np.uint64]] = []
        self._is_known = True
        self.images = 0
        """Number of images that were added."""

    def add(self, num_bytes: NDArray[np.int64], checksums: pa.Array | pa.ChunkedArray) -> None:
        """Add the next images; without a CRC32C of each image nothing is compared."""
        self._is_known = self._is_known and checksums.null_count == 0
        if self.images < LOOKED_AT and self._is_known:
            self._found.append(numbers_or_zero(checksums, np.uint64) << np.uint64(32) | num_bytes.astype(np.uint32))
        self.images += len(num_bytes)

    def numbers(self) -> NDArray[np.uint64]:
        """Return a number for each image that is compared, in the order of the index; none without checksums."""
        found = self._found if self._is_known else []
        return np.concatenate([no_hashes(), *found])[:LOOKED_AT]


class SharedImages(NamedTuple):
    """Images of a split that are also in another one."""

    split: str
    other: str
    positions: NDArray[np.int64]


def shared_images(prints: Mapping[str, Prints]) -> Iterator[SharedImages]:
    """Compare every two splits, by name, and yield those that share images; train is always the other one."""
    for other, split in combinations(sorted(prints, key=lambda name: name != "train"), 2):
        positions = np.flatnonzero(np.isin(prints[split].numbers(), prints[other].numbers()))
        if len(positions):
            yield SharedImages(split, other, positions)


def also_in(split: str, other: str, images: int) -> str:
    """Say how many images of a split are also in another one: `2 images of val are also in train`."""
    return f"{counted(images, 'image')} of {split} {'is' if images == 1 else 'are'} also in {other}"
