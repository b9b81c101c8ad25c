"""Packs at random: any configuration against the slow reference, and ranks that are killed and resumed as fewer."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loaders import LoaderConfig, Packs, open_packs
from loaders.engine.batch import BatchPlan
from loaders.engine.pipeline import place_images
from loaders.fetch.index import ShardIndex, Texts
from loaders.order import Order, Piece
from tests.support.loading import run_ranks
from tests.support.packs_loading import packed_rows
from tests.support.packs_reference import Grid, rows_of_batches

WORLDS = (8, 6, 4, 3, 2, 1)
Sizes = list[list[tuple[int, int]]]
Row = list[tuple[int, int, Grid]]


@dataclass(frozen=True)
class Index:
    """What a plan asks of an index: the sizes of each shard's images."""

    sizes: Sizes

    def shard(self, shard: int) -> ShardIndex:
        heights, widths = np.array(self.sizes[shard], np.int32).reshape(-1, 2).T
        zeros = np.zeros(len(heights), np.int64)
        keys = Texts(zeros, b"")
        return ShardIndex(zeros, zeros, zeros, zeros, None, zeros, heights, widths, keys, None)

    def find(self, piece: Piece) -> tuple[ShardIndex, int]:
        return self.shard(piece.shard), piece.first


def random_configuration(number: int) -> int:
    """Plan batches of a random configuration by worlds of random sizes, one after the other, as the reference does.

    Every row must be the reference's, whatever world and process planned it, and every pass has every sample once.

    Returns:
        The number of batches.
    """
    rng = random.Random(f"packs {number}")
    packs, rows = _random_packs(rng), rng.choice((6, 8, 12, 24))
    sizes = [[_random_size(rng) for _ in range(rng.randint(0, 30))] for _ in range(rng.randint(1, 4))]
    sizes[0].append(_random_size(rng))
    order = Order(
        shard_samples=tuple(map(len, sizes)),
        seed=rng.randint(-(2**63), 2**64 - 1),
        global_batch=rows * packs.images,
        samples_per_block=rng.randint(1, 9),
        num_streams=rng.choice((1, 4, 12, 192)),
        window=rng.randint(1, 3),
    )
    config = LoaderConfig(batch_size=order.global_batch, seed=order.seed, packs=packs)
    first = batch = rng.randint(0, 5)
    expected = rows_of_batches(packs, order, sizes, first)
    seen: list[tuple[int, int]] = []
    for world_size in rng.sample([each for each in WORLDS if rows % each == 0], k=3):
        parts = rng.choice([each for each in (1, 2, 3, 4) if rows // world_size % each == 0])
        plans = _Plans(order, packs, config, Index(sizes), world_size, parts)
        count = rng.randint(1, 3)
        for found, reference in zip(plans.batches(batch, count), expected, strict=False):
            assert found == reference
            seen += [row[image][:2] for image in range(packs.images) for row in reference]
        batch += count
    _check_passes(order, first * order.global_batch, seen)
    return batch - first


@dataclass(frozen=True)
class _Plans:
    """The plans of all ranks and processes of a world."""

    order: Order
    packs: Packs
    config: LoaderConfig
    index: Index
    world_size: int
    parts: int

    def batches(self, first: int, count: int) -> list[list[Row]]:
        """The rows of all ranks together, for some batches."""
        images = self.packs.images
        found = [[[] for _ in range(self.order.global_batch // images)] for _ in range(count)]
        for rank, part in itertools.product(range(self.world_size), range(self.parts)):
            plan = BatchPlan(
                order=self.order,
                shuffle=True,
                rank=rank,
                world_size=self.world_size,
                first_batch=first,
                part=part,
                parts=self.parts,
                row_images=images,
            )
            for rows, picks in zip(found, plan, strict=False):
                grids = np.zeros((self.order.global_batch // self.world_size, 2), np.int32)
                place_images(picks, self.index, self.config, grids)
                for slot, pick in sorted(picks):
                    row = rows[slot // images * self.world_size + rank]
                    row.append((pick.piece.shard, pick.sample, tuple(grids[slot].tolist())))
        return found


def _check_passes(order: Order, position: int, seen: list[tuple[int, int]]) -> None:
    """Every pass that was seen whole has every sample once, and no part of one has a sample twice."""
    while seen:
        left = order.num_samples - position % order.num_samples
        part, seen, position = seen[:left], seen[left:], position + left
        assert len(set(part)) == len(part)
        assert len(part) < order.num_samples or left == len(part)


def _random_packs(rng: random.Random) -> Packs:
    images, mean = rng.randint(1, 6), rng.randint(1, 80)
    return Packs(
        tokens=images * mean + rng.randrange(images),
        images=images,
        patch=rng.choice((1, 8, 14, 16)),
        min_tokens=rng.choice((None, rng.randint(1, mean))),
        max_tokens=rng.choice((None, rng.randint(mean, images * mean))),
    )


def _random_size(rng: random.Random) -> tuple[int, int]:
    most = rng.choice((3, 500, 500, 500, 9000))
    return rng.randint(1, most), rng.randint(1, most)


def packs_killed_and_resumed(url: object, folder: Path, rng: random.Random, worlds: tuple[int, ...] = WORLDS) -> int:
    """Three epochs by ever fewer ranks, all but the last killed: every row is that of one rank which is not killed.

    Returns:
        The number of batches.
    """
    packs = {"tokens": 40, "images": 3, "patch": 4}
    settings: dict[str, Any] = {"batch_size": 72, "threads": 1}
    with open_packs(str(url), packs=Packs(**packs), **settings) as loader:
        expected = [packed_rows(batch) for _ in range(3) for batch in loader]
    found, state = [], None
    for world_size in worlds:
        steps = None if world_size == worlds[-1] else rng.randint(1, max(1, (len(expected) - len(found)) // 4))
        lines = run_ranks(url, folder, world_size, state, steps, packs=packs, **settings)
        for parts in zip(*lines, strict=False):
            state = parts[0]["state"]
            rows = zip(*(part["rows"] for part in parts), strict=True)
            found.append([[_image(each) for each in row] for of_ranks in rows for row in of_ranks])
    assert found == [[[_image(each) for each in row] for row in batch] for batch in expected]
    return len(expected)


def _image(values: Any) -> tuple[object, ...]:
    """An image of a row, as JSON and Python have it."""
    key, grid, label, digest = values
    return key, tuple(grid), label, digest
