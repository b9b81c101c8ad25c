"""What a loader asks of a bucket in one pass over a split: how many requests, how many bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dataprep.formats import FORMATS
from loaders.dataset import Dataset
from loaders.order import NUM_STREAMS, samples_per_block


@dataclass(frozen=True, slots=True)
class PassTraffic:
    """Of all ranks together."""

    gets: int
    num_bytes: int


def pass_traffic(dataset: Dataset, *, world_size: int = 1, deadline_s: float = 30.0) -> PassTraffic:
    """One shuffled pass with the default settings; reads one row group of the index.

    Args:
        world_size: Ranks. Where it divides the streams every byte is read once.
        deadline_s: Of the index.
    """
    split = dataset.split
    if FORMATS[dataset.manifest.format] is None:
        return PassTraffic(split.samples, split.num_bytes)
    at_once = 1
    if dataset.manifest.shuffled:
        at_once = samples_per_block(split.samples, dataset.rows(deadline_s).mean_image_bytes())
    counts = [shard["samples"] for shard in split.shards]
    pieces = num_pieces(counts, at_once)
    readers = ranks_a_piece(world_size, split.samples / max(1.0, pieces))
    return PassTraffic(round(pieces * readers), round(split.num_bytes * readers))


def num_pieces(shard_samples: list[int], at_once: int, num_streams: int = NUM_STREAMS) -> float:
    """Blocks, and as many second parts as are to be expected of blocks that two streams share."""
    samples = sum(shard_samples)
    blocks = sum(-(-count // at_once) for count in shard_samples)
    streams = min(num_streams, samples)
    return blocks + (streams - 1) * (1 - blocks / samples) if samples else 0.0


def ranks_a_piece(world_size: int, samples: float, num_streams: int = NUM_STREAMS) -> float:
    """How many ranks have a sample of a piece of so many: one, where the ranks divide the streams."""
    sharing = world_size // math.gcd(world_size, num_streams)
    without: float = (1 - 1 / sharing) ** samples
    return sharing * (1 - without)
