"""Memory that an order needs while it reads from a bucket."""

from __future__ import annotations

import pytest

from dataprep.errors import UsageError
from loaders.fetch.budget import check_budget
from loaders.order import Order


def test_a_budget_that_is_too_small_is_refused_with_the_arithmetic():
    order = Order(shard_samples=(10**6,), seed=0, global_batch=12, samples_per_block=20, num_streams=12)
    check_budget(order, 1, 100_000, 50 << 20)
    check_budget(order, 4, 100_000, 15 << 20)
    check_budget(order, 5, 100_000, 50 << 20)  # every rank takes from every stream
    with pytest.raises(UsageError) as caught:
        check_budget(order, 4, 100_000, 12_000_000)
    assert str(caught.value) == (
        "prefetch_bytes 12,000,000 must be 12,387,097 or more: 12 streams / 4 ranks * window 2 * blocks of 2,000,000 "
        "bytes (20 images) are held at once, and 3% is reserved for hedged reads; raise it, or lower block_bytes, "
        "num_streams or window"
    )
    for world_size in (1, 5):
        with pytest.raises(UsageError, match="must be 49,548,388 or more: 12 streams \\* window 2"):
            check_budget(order, world_size, 100_000, 45_000_000)
    with pytest.raises(UsageError, match=r"12 streams / 2 \(divides 10 ranks, too\) \* window 2"):
        check_budget(order, 10, 100_000, 20_000_000)
    small = Order(shard_samples=(30,), seed=0, global_batch=12, samples_per_block=20)
    check_budget(small, 1, 100_000, 10 << 20)  # there is not that much to hold
