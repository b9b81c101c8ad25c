"""How well the loader's order mixes, compared with a full permutation of every pass: one table.

    python benchmarks/shuffle_quality.py --samples 1281167

mates:    pairs of samples that share a batch in one pass and again in the next, relative to a full permutation (1.00)
classes:  classes in a batch, relative to a full permutation; `sorted`: a dataset whose shards hold class after class
held:     bytes of a bucket that a single rank holds at once: streams * window * block
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from loaders.order import NUM_STREAMS, WINDOW, Order, samples_per_block

CLASSES = 1000
SHARD_SAMPLES = 2300


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of one row of the table."""

    block_bytes: int
    num_streams: int
    window: int


SETTINGS = [
    Setting(block_bytes=block_bytes, num_streams=num_streams, window=window)
    for block_bytes, num_streams, window in (
        (1, NUM_STREAMS, WINDOW),
        (2**20, NUM_STREAMS, WINDOW),
        (2**21, NUM_STREAMS, WINDOW),
        (2**22, NUM_STREAMS, WINDOW),
        (2**21, 96, WINDOW),
        (2**21, 384, WINDOW),
        (2**21, NUM_STREAMS, 1),
        (2**21, NUM_STREAMS, 4),
    )
]


def positions(order: Order, passes: int) -> list[NDArray[np.int64]]:
    """Return for each pass the position of every stored sample in it."""
    starts = np.concatenate([[0], np.cumsum(order.shard_samples)])
    found = []
    picks = order.picks(0)
    for _ in range(passes):
        one_pass = itertools.islice(picks, order.num_samples)
        stored = np.fromiter((starts[pick.piece.shard] + pick.sample for pick in one_pass), np.int64, order.num_samples)
        place = np.empty(order.num_samples, np.int64)
        place[stored] = np.arange(order.num_samples)
        found.append(place)
    return found


def mates_met_again(first: NDArray[np.int64], second: NDArray[np.int64], batch: int) -> float:
    """Return the number of pairs that share a batch in both passes, divided by that of two full permutations."""
    batches = -(-len(first) // batch)
    _, together = np.unique((first // batch) * batches + second // batch, return_counts=True)
    pairs = float((together * (together - 1) // 2).sum())
    expected = len(first) * (batch - 1) / 2 * (batch - 1) / (len(first) - 1)
    return pairs / expected


def classes_in_a_batch(place: NDArray[np.int64], labels: NDArray[np.int64], batch: int) -> float:
    """Return the mean number of classes in a batch."""
    whole = len(place) // batch
    inside = place < whole * batch
    pairs = np.unique((place[inside] // batch) * CLASSES + labels[inside])
    return len(pairs) / whole


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--image-bytes", type=int, default=113_000, help="mean size of an image")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1024])
    options = parser.parse_args()
    samples: int = options.samples
    counts = (SHARD_SAMPLES,) * (samples // SHARD_SAMPLES) + (samples % SHARD_SAMPLES,)
    rng = np.random.default_rng(0)
    by_class = np.sort(rng.integers(0, CLASSES, samples))
    shuffled = rng.permutation(by_class)
    full = rng.permutation(samples)
    print(f"{samples:,} samples of {options.image_bytes / 1000:.0f} kB, {CLASSES:,} classes\n")
    heads = "".join(f"  mates {batch:<5} classes  sorted" for batch in options.batches)
    print(f"{'block':>9}{'samples':>9}{'streams':>9}{'window':>8}{'held':>8}{heads}")
    for setting in SETTINGS:
        at_once = samples_per_block(
            samples,
            options.image_bytes,
            block_bytes=setting.block_bytes,
            num_streams=setting.num_streams,
            window=setting.window,
        )
        order = Order(
            shard_samples=counts,
            seed=0,
            global_batch=1,
            samples_per_block=at_once,
            num_streams=setting.num_streams,
            window=setting.window,
        )
        first, second = positions(order, 2)
        block_mib = at_once * options.image_bytes / 2**20
        held_mib = setting.num_streams * setting.window * block_mib
        line = f"{block_mib:7.1f} M{at_once:>9}{setting.num_streams:>9}{setting.window:>8}{held_mib:6.0f} M"
        for batch in options.batches:
            mates = mates_met_again(first, second, batch)
            mixed = classes_in_a_batch(first, shuffled, batch) / classes_in_a_batch(full, shuffled, batch)
            in_order = classes_in_a_batch(first, by_class, batch) / classes_in_a_batch(full, by_class, batch)
            line += f"  {mates:>10.2f} {mixed:>8.2f}{in_order:>8.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
