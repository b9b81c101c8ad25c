"""What is learnt once is not asked again, within bounds; bytes are given out in turn."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.web.caches import Cache
from dataprep.web.outcomes import Failed, Status


def test_concurrent_requests_share_one_look_up():
    asked = Counter()

    async def make():
        asked["key"] += 1
        await asyncio.sleep(0.01)
        return "value"

    async def ask():
        cache = Cache(10, 60.0)
        return await asyncio.gather(*(cache.get("key", make) for _ in range(50)))

    assert asyncio.run(ask()) == ["value"] * 50
    assert asked["key"] == 1


def test_a_cancelled_request_does_not_cancel_the_shared_look_up():
    async def make():
        await asyncio.sleep(0.05)
        return "value"

    async def ask():
        cache = Cache(10, 60.0)
        first, second = (asyncio.create_task(cache.get("key", make)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        return await second

    assert asyncio.run(ask()) == "value"


def test_failures_are_cached_and_old_values_expire():
    made = []

    async def fail():
        made.append("failure")
        raise Failed(Status.DNS, "no such name")

    async def succeed():
        made.append("value")
        return len(made)

    async def ask():
        cache = Cache(10, 0.0)
        for _ in range(3):
            with pytest.raises(Failed, match="no such name"):
                await cache.get("dead", fail)
        return [await cache.get("old", succeed) for _ in range(2)]

    assert asyncio.run(ask()) == [2, 3]
    assert made == ["failure", "value", "value"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=60))
def test_the_weight_of_a_cache_is_bounded_and_the_oldest_entries_go_first(asked):
    held: dict[str, int] = {}

    async def run():
        cache = Cache(100, 60.0, lambda value: value)
        for key, weight in asked:

            async def make(weight=weight):
                return weight

            assert await cache.get(str(key), make) == held.get(str(key), weight)
            held.setdefault(str(key), weight)
            while sum(held.values()) > 100:
                held.pop(next(iter(held)))

    asyncio.run(run())
