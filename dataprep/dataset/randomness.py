"""Permutations and draws that stay the same in every version of Python and NumPy; positions spread evenly over a list.

NumPy's Generator methods may change between releases, but the raw words of a bit generator do not: a permutation is the
stable argsort of raw Philox words, keyed by a hash of its purpose. Golden vectors in the tests hold this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count, islice

from dataprep.arrays import NDArray, np

ORDER_VERSION = 1
"""Version of the order, in manifests and loader states; readers refuse any other."""
_WORDS_PER_COUNT = 4
"""Words that Philox-4x64 makes from one value of its counter."""
_GOLDEN = (5**0.5 - 1) / 2
"""Step whose multiples, modulo 1, divide the unit interval evenly wherever they end."""


def philox_words(
    count: int, *, seed: int, purpose: str, epoch: int = 0, pass_index: int = 0, start: int = 0
) -> NDArray[np.uint64]:
    """Return raw 64-bit words `start` to `start + count` of the Philox stream of (seed, purpose, epoch, pass).

    Philox-4x64-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    name = f"{ORDER_VERSION}/{seed}/{purpose}/{epoch}/{pass_index}".encode()
    key = int.from_bytes(hashlib.sha256(name).digest()[:16], "little")
    counts, skipped = divmod(start, _WORDS_PER_COUNT)
    generator = np.random.Philox(key=key)
    if counts:
        generator.advance(counts)
    words: NDArray[np.uint64] = generator.random_raw(skipped + count)
    return words[skipped:]


def permutation(count: int, *, seed: int, purpose: str, epoch: int = 0, pass_index: int = 0) -> NDArray[np.int64]:
    """Return a permutation of 0..count-1, shape (count,)."""
    words = philox_words(count, seed=seed, purpose=purpose, epoch=epoch, pass_index=pass_index)
    return np.argsort(words, kind="stable")


def spread(length: int, most: int) -> list[int]:
    """Return up to `most` different positions below `length`; the first n of them are spread evenly, for every n."""
    return list(islice(_different(length), min(length, most)))


def _different(length: int) -> Iterator[int]:
    seen = set()
    for number in count():
        position = int(length * (number * _GOLDEN % 1))
        if position not in seen:
            seen.add(position)
            yield position
