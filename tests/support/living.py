"""Runs over a living dataset, and what they must deliver: of each epoch every sample once, through all changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from loaders import open_loader

SETTINGS = {"batch_size": 12, "image_size": 32, "threads": 1}


class Ledger:
    """The samples that an epoch still owes.

    Args:
        samples: All of the dataset or view that is open.
        passes: Passes of an epoch, each of which delivers all of them.
    """

    def __init__(self, samples: Iterable[Hashable], passes: int = 1) -> None:
        self._all, self._passes = frozenset(samples), passes
        self._owed: list[frozenset[Hashable]] = []
        """Samples that the epoch still has, by pass; none between two epochs."""

    def take(self, sample: Hashable) -> None:
        """Count a sample that was delivered; it must be owed."""
        if not any(self._owed):
            self._owed = [self._all] * self._passes
        while not self._owed[0]:
            del self._owed[0]
        assert sample in self._owed[0], f"{sample}: delivered before, removed, or not in the view"
        self._owed[0] -= {sample}

    @property
    def owed(self) -> int:
        """Number of samples that the epoch still has."""
        return sum(map(len, self._owed))

    def change(self, samples: Iterable[Hashable]) -> tuple[int, int]:
        """Open other data: the epoch has what they still have, the next one all. Return numbers removed and added."""
        before, self._all = self._all, frozenset(samples)
        self._owed = [owed & self._all for owed in self._owed]
        return len(before - self._all), len(self._all - before)


def keys_of(url: object) -> frozenset[str]:
    """Return the keys of all samples of the split `train`."""
    with open_loader(str(url), shuffle=False, **SETTINGS) as loader:
        return frozenset(key for batch in loader for key in batch.keys if key)
