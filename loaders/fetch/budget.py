"""Memory that the order of a loader needs while it reads from a bucket."""

from __future__ import annotations

import math

from dataprep.errors import UsageError
from loaders.order import Order

HEDGED_SHARE = 1 / 32
"""Share of the prefetch budget reserved for hedged (duplicate) reads."""


def bytes_held(order: Order, world_size: int, mean_image_bytes: float) -> float:
    """Return the bytes of encoded images that a rank or process holds at once; 0 where each image is read alone.

    Args:
        order: Order of the samples.
        world_size: Number of ranks times processes that fetch for each.
        mean_image_bytes: Mean size of an encoded image.
    """
    if order.samples_per_block == 1:
        return 0.0
    streams = order.num_streams // math.gcd(order.num_streams, world_size)
    # The last window of a pass and the first one of the next may overlap.
    held = streams * order.window * order.samples_per_block * mean_image_bytes
    return min(held, 2 * order.num_samples * mean_image_bytes)


def check_budget(order: Order, world_size: int, mean_image_bytes: float, prefetch_bytes: int) -> None:
    """Refuse a budget that the order would exceed: every stream of a rank mixes the samples of a window of pieces.

    Args:
        order: Order of the samples.
        world_size: Number of ranks times processes that fetch for each.
        mean_image_bytes: Mean size of an encoded image.
        prefetch_bytes: Budget of one rank or process.

    Raises:
        UsageError: The budget is too small; the message shows the arithmetic.
    """
    needed = bytes_held(order, world_size, mean_image_bytes)
    if needed <= prefetch_bytes * (1 - HEDGED_SHARE):
        return
    block_bytes = order.samples_per_block * mean_image_bytes
    sharers = math.gcd(order.num_streams, world_size)
    shared = f" / {sharers} ranks" if sharers == world_size else f" / {sharers} (divides {world_size} ranks, too)"
    shared = "" if sharers == 1 else shared
    raise UsageError(
        f"prefetch_bytes {prefetch_bytes:,} must be {math.ceil(needed / (1 - HEDGED_SHARE)):,} or more: "
        f"{order.num_streams} streams{shared} * window {order.window} * blocks of {block_bytes:,.0f} bytes "
        f"({order.samples_per_block} images) are held at once, and {HEDGED_SHARE:.0%} is reserved for hedged reads; "
        "raise it, or lower block_bytes, num_streams or window"
    )
