"""Budget of bytes that arriving bodies share; a body takes its part as its bytes arrive."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from types import TracebackType


class Memory:
    """Shares a number of bytes among bodies that arrive, so that neither a slow nor a large one stops the others.

    A body takes memory for the bytes that have arrived, and not for those that may. So that bodies cannot wait for each
    other for ever, the younger ones together leave room for all of the oldest one. The oldest therefore waits only for
    whole bodies, and those wait for the caller to take them. Once it is whole, the next one is the oldest.

    Args:
        num_bytes: Memory for all bodies, arriving and whole ones.
        body_bytes: Largest size of one body.
    """

    def __init__(self, num_bytes: int, body_bytes: int) -> None:
        self._free_bytes, self._younger_bytes = num_bytes, num_bytes - body_bytes
        self._ages = count()
        self._arriving: dict[int, Arriving] = {}  # the oldest is first
        self._arriving_bytes = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: age, bytes, who waits

    def arriving(self) -> Arriving:
        """Return a body of which nothing has arrived yet; at the end of its context it is whole or given up."""
        return Arriving(self, next(self._ages))

    def give(self, num_bytes: int) -> None:
        """Take back the memory of a whole body."""
        self._free_bytes += num_bytes
        self._serve()

    def _has_room(self, age: int, num_bytes: int) -> bool:
        oldest = next(iter(self._arriving))
        younger_bytes = self._arriving_bytes - self._arriving[oldest].num_bytes
        return num_bytes <= self._free_bytes and (age == oldest or younger_bytes + num_bytes <= self._younger_bytes)

    def _grant(self, age: int, num_bytes: int) -> None:
        self._free_bytes -= num_bytes
        self._arriving_bytes += num_bytes
        self._arriving[age].num_bytes += num_bytes

    def _serve(self) -> None:
        """Serve the bodies that wait, older ones first."""
        while self._waiting:
            age, num_bytes, granted = self._waiting[0]
            if not granted.cancelled():
                if not self._has_room(age, num_bytes):
                    return
                self._grant(age, num_bytes)
                granted.set_result(None)
            heapq.heappop(self._waiting)


class Arriving:
    """A body while it arrives."""

    def __init__(self, memory: Memory, age: int) -> None:
        self._memory, self._age = memory, age
        self._kept_bytes = 0
        self.num_bytes = 0
        """Number of bytes taken so far."""

    def __enter__(self) -> Arriving:
        self._memory._arriving[self._age] = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        memory = self._memory
        del memory._arriving[self._age]
        memory._arriving_bytes -= self.num_bytes
        memory.give(self.num_bytes - self._kept_bytes)

    def take_now(self, num_bytes: int) -> bool:
        """Take more bytes if that needs no waiting; return whether they were taken."""
        memory = self._memory
        if (memory._waiting and memory._waiting[0][0] < self._age) or not memory._has_room(self._age, num_bytes):
            return False
        memory._grant(self._age, num_bytes)
        return True

    async def take(self, num_bytes: int) -> None:
        """Wait until more bytes may be taken, and take them."""
        if not self.take_now(num_bytes):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._memory._waiting, (self._age, num_bytes, granted))
            await granted

    def keep(self) -> None:
        """Let the bytes stay taken after the body's end, until they are given back."""
        self._kept_bytes = self.num_bytes
