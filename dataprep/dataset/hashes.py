"""64-bit hashes of names: 8 bytes a sample suffice to find repeated keys and to look up files.

The probability that two of ImageNet's keys share a hash is 4e-8; code that finds equal hashes compares the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

NO_HASHES: NDArray[np.uint64] = np.empty(0, np.uint64)


def name_hash(name: str) -> int:
    """Return the hash of a name, 0..2**64-1, the same on every machine."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def name_hashes(names: Iterable[str]) -> NDArray[np.uint64]:
    """Return the hashes of names, in their order, shape (names,)."""
    return np.fromiter(map(name_hash, names), np.uint64)


def repeated(sorted_hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes that occur more than once, without repetition."""
    return np.unique(sorted_hashes[1:][sorted_hashes[1:] == sorted_hashes[:-1]])


def position_of(sorted_hashes: NDArray[np.uint64], name: str) -> int | None:
    """Return the position of a name's hash, or None if it is not among them."""
    value = np.uint64(name_hash(name))
    at = int(np.searchsorted(sorted_hashes, value))
    return at if at < len(sorted_hashes) and sorted_hashes[at] == value else None
