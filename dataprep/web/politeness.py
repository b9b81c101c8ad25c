"""Polite access to hosts: limited requests in flight and per second, pauses on demand, no requests to a host that is
down."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from weakref import WeakValueDictionary

from dataprep.web.limits import Limits
from dataprep.web.outcomes import Failed, Status

DOWN_S = 60.0
"""Time for which a host that does not answer gets no requests: enough for the rest of its rows in an ordinary shard."""
HOSTS_KEPT = 20_000
"""Number of hosts whose gates are kept: more than a shard has, in 15 MB. Beyond this number only gates with waiting
rows stay."""
_LATE = "no turn at its host in time"


class Gate:
    """The gate of one host, through which every request to it passes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.host_connections)
        self._interval_s = 1 / limits.host_per_s
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
        if self._unanswered >= self._limits.host_failures:
            self._down_until_s = asyncio.get_running_loop().time() + DOWN_S

    async def _spacing(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            if self._unanswered >= self._limits.host_failures and now_s < self._down_until_s:
                raise Failed(Status.HOST_DOWN, f"its host left {self._unanswered} requests without an answer")
            if max(self._next_s, now_s) >= until_s:
                raise Failed(Status.HOST_BUSY, _LATE)
            if self._next_s <= now_s:
                break
            await asyncio.sleep(self._next_s - now_s)
        self._next_s = now_s + self._interval_s


class Gates:
    """The gates of all hosts, by name; each of the many names of a CDN is a host of its own."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._gates: WeakValueDictionary[str, Gate] = WeakValueDictionary()
        self._kept: deque[Gate] = deque(maxlen=HOSTS_KEPT)

    def of(self, host: str) -> Gate:
        """Return the gate of a host."""
        host = host.rstrip(".")
        gate = self._gates.get(host)
        if gate is None:
            gate = self._gates[host] = Gate(self._limits)
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
