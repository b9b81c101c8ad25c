"""Polite access to hosts: limits requests in flight and per second, pauses on demand, and spares a host that is down;
and a cache of what a process has learnt about hosts."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

from dataprep.web.consent import Site
from dataprep.web.requests import Failed, Limits, Status

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult


DOWN_S = 60.0
"""Time for which a host that does not answer gets no requests: enough for the rest of its rows in an ordinary shard."""
HOSTS_KEPT = 20_000
"""Number of hosts whose gates are kept: more than a shard has, in 15 MB. Beyond this number only gates with waiting
rows stay."""
_LATE = "no turn at its host in time"
V = TypeVar("V")
FAILURE_KEPT_S = 60.0
"""Time for which a failure is cached: long enough for a shard's rows of one dead host, while later shards try again."""


class Gate:
    """The gate of one host or address, through which every request to it passes.

    Args:
        connections: Maximum number of concurrent requests.
        per_s: Maximum rate of requests.
        failures: Number of consecutive requests without an answer after which none begins for a time.
    """

    def __init__(self, connections: int, per_s: float, failures: int) -> None:
        self._failures = failures
        self._slots = asyncio.Semaphore(connections)
        self._interval_s = 1 / per_s
        self._next_s = 0.0
        self._unanswered = 0
        self._down_until_s = 0.0

    async def enter(self, until_s: float) -> None:
        """Take one of the host's connections, until `leave`, and wait until a request may begin.

        Args:
            until_s: Deadline, as a time of the event loop.

        Raises:
            Failed: HOST_BUSY or HOST_DOWN.
        """
        if self._slots.locked():
            try:
                async with asyncio.timeout_at(until_s):
                    await self._slots.acquire()
            except TimeoutError:
                raise Failed(Status.HOST_BUSY, _LATE) from None
        else:
            await self._slots.acquire()  # at once
        try:
            await self._spacing(until_s)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Release the connection."""
        self._slots.release()

    def pause(self, pause_s: float) -> None:
        """Begin no request for some seconds."""
        self._next_s = max(self._next_s, asyncio.get_running_loop().time() + pause_s)

    def slow_down(self, interval_s: float) -> None:
        """Set the shortest interval between two requests."""
        self._interval_s = max(self._interval_s, interval_s)

    def note(self, *, answered: bool) -> None:
        """Record whether a request was answered."""
        self._unanswered = 0 if answered else self._unanswered + 1
        if self._unanswered >= self._failures:
            self._down_until_s = asyncio.get_running_loop().time() + DOWN_S

    async def _spacing(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            if self._unanswered >= self._failures and now_s < self._down_until_s:
                raise Failed(Status.HOST_DOWN, f"its host left {self._unanswered} requests without an answer")
            if max(self._next_s, now_s) >= until_s:
                raise Failed(Status.HOST_BUSY, _LATE)
            if self._next_s <= now_s:
                break
            await asyncio.sleep(self._next_s - now_s)
        self._next_s = now_s + self._interval_s


class Gates:
    """The gates of all hosts, by name, and of all addresses: a CDN has many names at one address, and anyone may give
    a thousand names to one host."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._gates: WeakValueDictionary[str, Gate] = WeakValueDictionary()
        self._kept: deque[Gate] = deque(maxlen=HOSTS_KEPT)

    def of(self, host: str) -> Gate:
        return self._gate(host.rstrip("."), self._limits.host_connections, self._limits.host_per_s)

    def of_address(self, address: str) -> Gate:
        return self._gate(f"address {address}", self._limits.address_connections, self._limits.address_per_s)

    def _gate(self, key: str, connections: int, per_s: float) -> Gate:
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(connections, per_s, self._limits.host_failures)
            self._kept.append(gate)
        return gate


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Return the seconds in a Retry-After header, given as a number or as a date; None if it has neither."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max((when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds(), 0.0)


class Cache(Generic[V]):
    """A cache of values or failures by key, bounded in weight and time; each value is made once, even for concurrent
    callers.

    Only one event loop at a time may use it.
    """

    def __init__(self, max_weight: int, kept_s: float, weight: Callable[[V], int] = lambda value: 1) -> None:
        self._max_weight, self._kept_s, self._weight_of = max_weight, kept_s, weight
        self._weight = 0
        self._entries: dict[str, _Entry[V]] = {}
        self._making: dict[str, asyncio.Task[V | Failed]] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[V]]) -> V:
        """Return the value of `key`; if it is absent or too old, make it with `make`. Raises Failed if `make` raised
        it, now or within the last FAILURE_KEPT_S."""
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
        """Cancel all calls of `make` that are running."""
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


@dataclass(frozen=True, slots=True)
class Known:
    """Cached addresses of host names, and what sites say about the use of their images.

    Calls of `fetch_many` in a process share one; they must run one after the other, with the same limits.
    """

    names: Cache[list[ResolveResult]] = field(default_factory=lambda: Cache(200_000, 300.0))
    # Room for about 30,000 sites of an ordinary size. RFC 9309, 2.4: rules are kept for a day at most.
    sites: Cache[Site] = field(default_factory=lambda: Cache(128 << 20, 86_400.0, lambda site: site.weight_bytes))

    async def stop(self) -> None:
        """Cancel look-ups in flight; cached values stay."""
        await asyncio.gather(self.names.stop(), self.sites.stop())


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V | Failed
    until_s: float
    weight: int
