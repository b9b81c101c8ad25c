"""The order of samples, written from its rules alone: slow, and from the start."""

from __future__ import annotations

import itertools

from dataprep.dataset.randomness import permutation, philox_words
from loaders.order import Order

Sample = tuple[int, int]
"""Number of a shard, and of a sample in it."""


def reference_pass(order: Order, q: int) -> list[Sample]:
    """One whole pass by the rules: every list is written out, nothing is clever."""
    heads = order.heads if q == 0 else ()
    cuts = [0, *heads, len(order.shard_samples)]
    laps = [(f"load/head/{n}", range(*cut)) for n, cut in enumerate(itertools.pairwise(cuts))]
    laps[-1] = ("load", laps[-1][1])
    return [sample for purpose, shards in laps for sample in reference_lap(order, q, purpose, shards)]


def reference_lap(
    order: Order, q: int, purpose: str, shards: range, members: frozenset[Sample] | None = None
) -> list[Sample]:
    """Return the samples of some shards, in the order in which a pass takes them; all of them, or only the members."""
    blocks = []
    for shard in shards:
        samples = order.shard_samples[shard]
        of_shard = -(-samples // order.samples_per_block)
        for j in range(of_shard):
            block = [(shard, s) for s in range(j * samples // of_shard, (j + 1) * samples // of_shard)]
            blocks.append([sample for sample in block if members is None or sample in members])
    blocks = [block for block in blocks if block]
    shuffled = permutation(len(blocks), seed=order.seed, purpose=f"{purpose}/blocks", pass_index=q)
    slots = [(number, sample) for number, b in enumerate(shuffled) for sample in blocks[b]]
    streams, at = [], 0
    for k in range(order.num_streams):
        length = len(slots) // order.num_streams + (k < len(slots) % order.num_streams)
        owned, at = slots[at : at + length], at + length
        pieces = [[sample for _, sample in group] for _, group in itertools.groupby(owned, key=lambda slot: slot[0])]
        words = philox_words(length, seed=order.seed, purpose=f"{purpose}/window/{k}", pass_index=q).tolist()
        stream, stagger = [], k * order.window // order.num_streams
        windows = itertools.groupby(enumerate(pieces), key=lambda each: (each[0] + stagger) // order.window)
        for _, group in windows:
            samples = [sample for _, piece in group for sample in piece]
            window_words = words[len(stream) : len(stream) + len(samples)]
            stream += [sample for _, sample in sorted(zip(window_words, samples, strict=True))]
        streams.append(stream)
    return [streams[p % order.num_streams][p // order.num_streams] for p in range(len(slots))]


def reference(order: Order, stop: int) -> list[Sample]:
    """Return shard and sample at global positions 0..stop-1."""
    found: list[Sample] = []
    while len(found) < stop:
        found += reference_pass(order, len(found) // order.num_samples)
    return found[:stop]
