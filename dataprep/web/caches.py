"""Caches what a process has learnt about hosts, so that the next shards need not fetch it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from dataprep.web.outcomes import Failed

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult

    from dataprep.web.robots import Rules

V = TypeVar("V")

FAILURE_KEPT_S = 60.0
"""Time for which a failure is cached: long enough for a shard's rows of one dead host, while later shards try again."""


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V | Failed
    until_s: float
    weight: int


class Cache(Generic[V]):
    """A cache of values or failures by key, bounded in weight and time; each value is made once, even for concurrent
    callers.

    One event loop may use it at a time, one after the other.
    """

    def __init__(self, max_weight: int, kept_s: float, weight: Callable[[V], int] = lambda value: 1) -> None:
        self._max_weight, self._kept_s, self._weight_of = max_weight, kept_s, weight
        self._weight = 0
        self._entries: dict[str, _Entry[V]] = {}
        self._making: dict[str, asyncio.Task[V | Failed]] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[V]]) -> V:
        """Return the value of `key`; if it is absent or too old, make it with `make`.

        Raises:
            Failed: `make` raised it, now or within the last FAILURE_KEPT_S.
        """
        entry = self._entries.get(key)
        if entry and entry.until_s > time.monotonic():
            value = entry.value
        else:
            if key not in self._making:
                self._making[key] = asyncio.create_task(self._make(key, make))
            # A caller that waits may be cancelled; the others still want the value.
            value = await asyncio.shield(self._making[key])
        if isinstance(value, Failed):
            raise value.again()
        return value

    async def stop(self) -> None:
        """Cancel the values that are being made."""
        making = list(self._making.values())
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        self._making.clear()

    async def _make(self, key: str, make: Callable[[], Awaitable[V]]) -> V | Failed:
        try:
            try:
                value: V | Failed = await make()
            except Failed as failure:
                value = failure.again()
            self._put(key, value)
            return value
        finally:
            self._making.pop(key, None)

    def _put(self, key: str, value: V | Failed) -> None:
        failed = isinstance(value, Failed)
        weight = 1 if isinstance(value, Failed) else self._weight_of(value)
        kept_s = FAILURE_KEPT_S if failed else self._kept_s
        self._drop(key)
        self._entries[key] = _Entry(value, time.monotonic() + kept_s, weight)
        self._weight += weight
        while self._weight > self._max_weight:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        if entry := self._entries.pop(key, None):
            self._weight -= entry.weight


def _robots_cache() -> Cache[Rules]:
    # Room for about 30,000 sites of an ordinary size. RFC 9309, 2.4: rules are kept for a day at most.
    return Cache(128 << 20, 86_400.0, lambda rules: rules.weight_bytes)


def _name_cache() -> Cache[list[ResolveResult]]:
    return Cache(200_000, 300.0)


@dataclass(frozen=True, slots=True)
class Known:
    """Cached addresses of host names, and rules of their robots.txt.

    Calls of `fetch_many` in a process share one; they must run one after the other, with the same limits.
    """

    names: Cache[list[ResolveResult]] = field(default_factory=_name_cache)
    robots: Cache[Rules] = field(default_factory=_robots_cache)

    async def stop(self) -> None:
        """Cancel look-ups in flight; cached values stay."""
        await asyncio.gather(self.names.stop(), self.robots.stop())
