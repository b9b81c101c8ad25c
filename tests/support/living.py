"""Runs over a living dataset, and what they must deliver: of each epoch every sample once, through all changes."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable
from pathlib import Path

import dataprep
from loaders import open_loader
from tests.support.loading import run_ranks, together
from tests.support.own_data import picture

SETTINGS = {"batch_size": 12, "image_size": 32, "threads": 1}
WORLDS = (1, 2, 3, 4)
LIVES = 4
"""Number of times that a run starts; all but the last are killed."""


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


class Living:
    """A dataset of pictures that grows, loses samples, and is seen through views."""

    def __init__(self, folder: Path, samples: int, rng: random.Random) -> None:
        self.folder, self.root, self._rng, self._drawn = folder, folder / "data", rng, 0
        self._draw(samples)
        self._build()

    def _build(self, **options: bool) -> None:
        source = self.folder / "pictures"
        dataprep.build_folder(source=source, output=self.root, format="webdataset", workers=1, **options)

    def _draw(self, samples: int) -> None:
        for _ in range(samples):
            path = self.folder / "pictures" / ("cat", "dog")[self._drawn % 2] / f"{self._drawn}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(self._drawn, "JPEG", (40, 30)))
            self._drawn += 1

    def grow(self, share: float = 0.1) -> None:
        """Add pictures to the source, and append what it has more."""
        self._draw(max(1, round(share * len(keys_of(self.root)))))
        self._build(append=True)

    def lose(self, share: float = 0.01) -> frozenset[str]:
        """Remove samples, and return their keys."""
        keys = sorted(keys_of(self.root))
        chosen = self._rng.sample(keys, max(1, round(share * len(keys))))
        (self.folder / "takedown.txt").write_text("".join(f"{key}\n" for key in chosen))
        dataprep.remove(self.root, keys=[self.folder / "takedown.txt"])
        for key in chosen:  # an image that is gone is not appended again
            (self.folder / "pictures" / f"{key}.jpg").unlink()
        return frozenset(chosen)

    def viewed(self, name: str) -> str:
        """Return the address of a new view of some samples."""
        sample, seed = self._rng.uniform(0.4, 0.9), self._rng.randrange(100)
        return dataprep.select(self.root, name=name, sample=sample, seed=seed).url


def killed_and_changed(folder: Path, rng: random.Random) -> str:
    """Three epochs, killed at random steps and each time resumed by other ranks on a dataset that was changed: no
    sample comes twice or is skipped, and none comes that was removed.

    Returns:
        What happened, for the log.
    """
    living = Living(folder, 120, rng)
    url, state, told = str(living.root), None, []
    ledger, removed, count = Ledger(keys_of(url)), frozenset[str](), 0
    for life in range(LIVES):
        logs = folder / f"life-{life}"
        logs.mkdir()
        world_size, is_last = rng.choice(WORLDS), life + 1 == LIVES
        lines = run_ranks(url, logs, world_size, state, None if is_last else rng.randint(1, 12), **SETTINGS)
        batches = together(lines)
        for key in (key for batch in batches for key in batch):
            assert key not in removed
            ledger.take(key)
            count += 1
        if batches:  # none where a kill was quicker
            state = lines[0][len(batches) - 1]["state"]
        if not is_last:
            changes = rng.choice(
                [("grow",), ("lose",), ("view",), ("grow", "lose"), ("lose", "view"), ("grow", "view")]
            )
            if "grow" in changes:
                living.grow()
            if "lose" in changes:
                removed |= living.lose()
            url = living.viewed(f"v{life}") if "view" in changes else str(living.root)
            ledger.change(keys_of(url))
            told.append("+".join(changes))
    # The last epoch ends before a batch that it would not fill.
    assert ledger.owed < SETTINGS["batch_size"], f"{ledger.owed} samples of the last epoch were skipped"
    return f"{count} samples through {', '.join(told)}: repeats, skips and removed ones 0"
