"""Histories of a run's data: other batches, ranks, images, revisions and mixtures at every life, against an oracle that
only counts what was delivered."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from dataprep.errors import UsageError
from loaders import Loader, MixtureSource, mixture, open_loader
from loaders.mixtures.order import Member, whole_weights
from tests.support.living import Ledger, Living, keys_of
from tests.support.mixing import Walk

NAMES = ("pets", "cars", "flats")
WORLDS, BATCHES = range(1, 13), range(8, 97)
keys_in = cache(keys_of)


def revisions(folder: Path, count: int = 3) -> dict[str, list[str]]:
    """Make datasets, and a copy of each as it was at every revision; return their URLs."""
    found: dict[str, list[str]] = {}
    for number, name in enumerate(NAMES):
        living = Living(folder / name, 20 + 37 * number, random.Random(number))
        found[name] = []
        for revision in range(count):
            if revision:
                (living.grow if revision % 2 else living.lose)(0.2)
            found[name].append(str(copytree(living.root, folder / f"{name}-{revision}")))
    return found


class _Oracle:
    """What a run must deliver: each dataset's samples once an epoch, in the proportions of the weights."""

    def __init__(self) -> None:
        self.ledgers: dict[str, Ledger] = {}
        self.samples, self.weights = 0, (0,) * len(NAMES)
        self.walk = Walk(tuple(Member(None, "repeat", None) for _ in NAMES))

    def opened(self, urls: Mapping[str, str], weights: Mapping[str, int]) -> None:
        """Go on with these datasets; the rotation begins again where weights or the length of an epoch change."""
        for name, url in urls.items():
            self.ledgers.setdefault(name, Ledger(keys_in(url))).change(keys_in(url))
        samples = sum(len(keys_in(url)) for url in urls.values())
        if samples != self.samples:
            self.walk.weights = ()
        absent = [""] * (len(NAMES) - len(self.ledgers))
        entered = (*self.ledgers, *absent)  # on the circle in the order of their first coming
        self.samples, self.weights = samples, whole_weights([weights.get(name, 0) for name in entered])

    def take(self, batch: Sequence[tuple[int, str, str]]) -> None:
        """Count the samples of a batch of all ranks: position, dataset and key of each."""
        before = len(self.walk.found)
        self.walk.walk(self.weights, before + len(batch))
        assert [position for position, _, _ in batch] == list(range(before, before + len(batch)))
        names = [list(self.ledgers)[found[1]] for found in self.walk.found[before:] if found]
        assert [name for _, name, _ in batch] == names
        for _, name, key in batch:
            self.ledgers[name].take(key)


def _batches(loader: Loader, names: Sequence[str], steps: int) -> list[list[tuple[int, str, str]]]:
    """Return position, dataset and key of the samples of the next batches; each rank must fill its rows."""
    plan, config, found = loader._plan(), loader.config, []  # no image is decoded
    plans = [iter(replace(plan, rank=rank)) for rank in range(config.world_size)]
    for _ in range(steps):
        batch = []
        for rows in map(next, plans):
            assert sorted(row for row, _ in rows) == list(range(config.rows))
            for _, pick in rows:
                shard = pick.piece.shard
                name = loader.dataset.origin_of(shard).name if len(names) > 1 else names[0]
                batch.append((pick.position, name, loader.index.shard(shard).key(pick.sample)))
        found.append(sorted(batch))
    return found


def history(rng: random.Random, urls: Mapping[str, Sequence[str]]) -> tuple[int, int]:
    """Load some batches in each of several lives, all but the first from the state of the one before.

    Returns:
        Number of samples, and the size of the largest state, bytes of JSON.
    """
    oracle, state, largest, count = _Oracle(), None, 0, 0
    is_mixture = rng.random() < 0.6
    at, names = dict.fromkeys(NAMES, 0), rng.sample(NAMES, rng.randint(2, 3) if is_mixture else 1)
    weights = {name: rng.randint(1, 9) for name in names}
    for life in range(rng.randint(3, 7)):
        for name in names:
            at[name] = rng.randint(at[name], len(urls[name]) - 1) if rng.random() < 0.3 else at[name]
        if is_mixture and life and rng.random() < 0.6:
            names = rng.sample(NAMES, rng.randint(2, 3))
            weights = {name: rng.randint(1, 9) for name in names}
        opened = {name: urls[name][at[name]] for name in names}
        oracle.opened(opened, weights)
        what: Any = opened[names[0]]
        if is_mixture:
            what = mixture([MixtureSource(url=opened[name], name=name, weight=weights[name]) for name in names])
        world_size = rng.choice(WORLDS)
        batch_size = rng.choice([size for size in BATCHES if size % world_size == 0])
        settings = {"image_size": rng.choice((8, 16)), "threads": 1, "world_size": world_size}
        if world_size > 1:
            with pytest.raises(UsageError, match=f"a batch of {batch_size + 1} cannot be shared by {world_size} ranks"):
                open_loader(what, batch_size=batch_size + 1, **settings)
        ranks = [open_loader(what, batch_size=batch_size, rank=rank, **settings) for rank in {0, world_size - 1}]
        for loader in ranks if state is not None else ():
            loader.load_state_dict(state)
        for batch in _batches(ranks[-1], names, rng.randint(1, 6)):
            oracle.take(batch)
            count += len(batch)
        for loader in ranks:
            loader.rewind({"position": count})
        (text,) = {json.dumps(loader.state_dict()) for loader in ranks}
        state, largest = json.loads(text), max(largest, len(text))
    return count, largest
