"""Packs planned slowly and plainly, one image after another: what the loader's plans are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from dataprep.dataset.randomness import philox_words
from loaders.order import Order
from loaders.packs import Packs

WORDS, RESOLUTION = 24, 23
"""Random words of a position, and the one that decides an image's number of tokens."""
COST_OF_SHAPE = 0.5

Grid = tuple[int, int]


def draw(seed: int, position: int) -> float:
    """The random number in [0, 1) on which the tokens of the image at a position depend."""
    words = philox_words(WORDS, seed=seed, purpose="load/augment", start=position * WORDS)
    return (int(words[RESOLUTION]) >> 11) * 2.0**-53


def row_of(packs: Packs, sizes: Sequence[tuple[int, int]], draws: Sequence[float]) -> list[Grid]:
    """The grids of one row."""
    shares = shares_of(packs, draws)
    spare = packs.tokens - sum(shares)
    grids = []
    for number, (share, size) in enumerate(zip(shares, sizes, strict=True)):
        spare += share
        grids.append(grid_of(min(spare, packs.most), size, fill=number == len(sizes) - 1))
        spare -= math.prod(grids[-1])
    return grids


def alone(packs: Packs, size: tuple[int, int]) -> Grid:
    """The grid of an image in an evaluation."""
    return grid_of(min(packs.tokens // packs.images, packs.most), size, fill=True)


def shares_of(packs: Packs, draws: Sequence[float]) -> list[int]:
    low, high = math.sqrt(packs.least), math.sqrt(packs.most)
    wanted = [round((low + each * (high - low)) ** 2 * 256) for each in draws]

    def scaled(factor: int) -> list[int]:
        return [min(max(each * factor // 2**28, packs.least), packs.most) for each in wanted]

    factor, step = 0, 2**36
    while step:
        if factor + step <= 2**36 and sum(scaled(factor + step)) <= packs.tokens:
            factor += step
        step //= 2
    return scaled(factor)


def grid_of(budget: int, size: tuple[int, int], *, fill: bool) -> Grid:
    height, width = size
    ideal = math.sqrt(budget * (width / height))
    rows = min(max(math.floor(budget / ideal), 1), budget)
    columns = min(max(math.floor(ideal), 1), budget // rows)
    best, best_cost = (1, 1), math.inf
    for grid in (
        (rows, budget // rows),
        (rows + 1, max(1, budget // (rows + 1))),
        (budget // columns, columns),
        (max(1, budget // (columns + 1)), columns + 1),
        (rows + 1, columns + 1),
        (rows, columns + 1),
        (rows + 1, columns),
        (rows, columns),
    ):
        shape = (grid[1] * height) / (grid[0] * width)
        cost = max(shape, 1 / shape) - 1
        if fill:
            cost = COST_OF_SHAPE * cost + (1 - math.prod(grid) / budget)
        if math.prod(grid) <= budget and cost < best_cost:
            best, best_cost = grid, cost
    return best


def rows_of_batches(
    packs: Packs, order: Order, sizes: Sequence[Sequence[tuple[int, int]]], first_batch: int
) -> Iterator[list[list[tuple[int, int, Grid]]]]:
    """For each batch its rows, for all ranks together: (shard, sample, grid) of every image. Without end, no crop.

    Args:
        packs: Settings.
        order: Order of the samples.
        sizes: Height and width of every sample of every shard.
        first_batch: Number of the first batch.
    """
    picks = order.picks(first_batch)
    while True:
        batch = list(islice(picks, order.global_batch))
        rows = []
        for row in range(order.global_batch // packs.images):
            members = batch[row :: order.global_batch // packs.images]
            row_sizes = [sizes[pick.piece.shard][pick.sample] for pick in members]
            grids = row_of(packs, row_sizes, [draw(order.seed, pick.position) for pick in members])
            rows.append([(pick.piece.shard, pick.sample, grid) for pick, grid in zip(members, grids, strict=True)])
        yield rows
