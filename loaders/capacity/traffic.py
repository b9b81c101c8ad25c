"""Requests that loaders send to a bucket, and bytes that they read from it, in one pass over a split."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dataprep.formats import FORMATS
from loaders.dataset import Dataset
from loaders.order import NUM_STREAMS, samples_per_block


@dataclass(frozen=True, slots=True)
class PassTraffic:
    """Requests and bytes of all ranks together."""

    gets: int
    num_bytes: int


def pass_traffic(dataset: Dataset, *, world_size: int = 1, deadline_s: float = 30.0) -> PassTraffic:
    """Count one shuffled pass with the default settings; this reads one row group of the index.

    Args:
        dataset: Dataset that is read.
        world_size: Number of ranks; where it divides the number of streams, every byte is read once.
        deadline_s: Deadline of reading the index, seconds.
    """
    split = dataset.split
    if FORMATS[dataset.manifest.format].one_file_per_image:
        return PassTraffic(split.samples, split.num_bytes)
    at_once = 1
    if dataset.manifest.shuffled:
        at_once = samples_per_block(split.samples, dataset.open_index(deadline_s).mean_image_bytes())
    counts = [shard["samples"] for shard in split.shards]
    pieces = num_pieces(counts, at_once)
    readers = ranks_per_piece(world_size, split.samples / max(1.0, pieces))
    return PassTraffic(round(pieces * readers), round(split.num_bytes * readers))


def num_pieces(shard_samples: list[int], at_once: int, num_streams: int = NUM_STREAMS) -> float:
    """Return the expected number of pieces: the blocks, and one more for each that two streams share."""
    samples = sum(shard_samples)
    blocks = sum(-(-count // at_once) for count in shard_samples)
    streams = min(num_streams, samples)
    return blocks + (streams - 1) * (1 - blocks / samples) if samples else 0.0


def ranks_per_piece(world_size: int, samples: float, num_streams: int = NUM_STREAMS) -> float:
    """Return the expected number of ranks that read a piece of some samples; 1 where the ranks divide the streams."""
    sharing = world_size // math.gcd(world_size, num_streams)
    without: float = (1 - 1 / sharing) ** samples
    return sharing * (1 - without)
