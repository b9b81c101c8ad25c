"""Taking turns at a host: so many requests at once, so many a second, the pauses it asks for, none once it is down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from dataprep.web.limits import Limits
from dataprep.web.outcomes import Failed, Status

_LATE = "no turn at its host in time"


class Gate:
    """One host's."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.host_connections)
        self._interval_s = 1 / limits.host_per_s
        self._next_s = 0.0
        self._unanswered = 0

    @asynccontextmanager
    async def turn(self, until_s: float) -> AsyncIterator[None]:
        """Holds one of the host's connections, from the moment when the next request may begin.

        Args:
            until_s: The event loop's time from which on it is too late.

        Raises:
            Failed: HOST_BUSY or HOST_DOWN.
        """
        try:
            async with asyncio.timeout_at(until_s):
                await self._slots.acquire()
        except TimeoutError:
            raise Failed(Status.HOST_BUSY, _LATE) from None
        try:
            await self._spacing(until_s)
            yield
        finally:
            self._slots.release()

    def pause(self, pause_s: float) -> None:
        """Lets no request begin for so long."""
        self._next_s = max(self._next_s, asyncio.get_running_loop().time() + pause_s)

    def slow_down(self, interval_s: float) -> None:
        """Spaces requests by at least this."""
        self._interval_s = max(self._interval_s, interval_s)

    def note(self, *, answered: bool) -> None:
        """How a request fared."""
        self._unanswered = 0 if answered else self._unanswered + 1

    async def _spacing(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._unanswered >= self._limits.host_failures:
                raise Failed(Status.HOST_DOWN, f"its host left {self._unanswered} requests without an answer")
            if max(self._next_s, loop.time()) >= until_s:
                raise Failed(Status.HOST_BUSY, _LATE)
            if (wait_s := self._next_s - loop.time()) <= 0:
                break
            await asyncio.sleep(wait_s)
        self._next_s = loop.time() + self._interval_s


class Gates:
    """All hosts', by name; a CDN's many names are many hosts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._gates: dict[str, Gate] = {}

    def of(self, host: str) -> Gate:
        """The one gate of a host."""
        host = host.rstrip(".")
        if host not in self._gates:
            self._gates[host] = Gate(self._limits)
        return self._gates[host]


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for, from its number or its date; None where it says nothing."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max((when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds(), 0.0)
