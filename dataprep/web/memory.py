"""Memory budget shared by arriving bodies; a body reserves memory as its bytes arrive."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from types import TracebackType


class Memory:
    """Divides a number of bytes among arriving bodies, so that neither a slow nor a large body stops the others.

    A body reserves memory for the bytes that have arrived, and not for those that may. To prevent a deadlock, the
    younger bodies together leave enough room for the whole of the oldest one. The oldest therefore waits only for
    bodies that are whole, which the caller will take. When it is whole, the next one is the oldest.

    Args:
        num_bytes: Memory for all bodies, both arriving and whole.
        body_bytes: Largest size of one body.
    """

    def __init__(self, num_bytes: int, body_bytes: int) -> None:
        self._free_bytes, self._younger_bytes = num_bytes, num_bytes - body_bytes
        self._ages = count()
        self._arriving: dict[int, Arriving] = {}  # the oldest is first
        self._arriving_bytes = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: age, bytes, future that is waited for

    def arriving(self) -> Arriving:
        """Return a body of which nothing has arrived yet; when its `with` block ends it is whole or abandoned."""
        return Arriving(self, next(self._ages))

    def give(self, num_bytes: int) -> None:
        """Release the memory of a whole body."""
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
        """Grant memory to waiting bodies, the oldest first."""
        while self._waiting:
            age, num_bytes, granted = self._waiting[0]
            if not granted.cancelled():
                if not self._has_room(age, num_bytes):
                    return
                self._grant(age, num_bytes)
                granted.set_result(None)
            heapq.heappop(self._waiting)


class Arriving:
    """Memory of a body while it arrives."""

    def __init__(self, memory: Memory, age: int) -> None:
        self._memory, self._age = memory, age
        self._kept_bytes = 0
        self.num_bytes = 0
        """Number of bytes reserved so far."""

    def __enter__(self) -> Arriving:
        self._memory._arriving[self._age] = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        memory = self._memory
        del memory._arriving[self._age]
        memory._arriving_bytes -= self.num_bytes
        memory.give(self.num_bytes - self._kept_bytes)

    def take_now(self, num_bytes: int) -> bool:
        """Reserve more bytes if no wait is needed; return whether they were reserved."""
        memory = self._memory
        if (memory._waiting and memory._waiting[0][0] < self._age) or not memory._has_room(self._age, num_bytes):
            return False
        memory._grant(self._age, num_bytes)
        return True

    async def take(self, num_bytes: int) -> None:
        """Wait until more bytes can be reserved, and reserve them."""
        if not self.take_now(num_bytes):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._memory._waiting, (self._age, num_bytes, granted))
            await granted

    def keep(self) -> None:
        """Keep the memory reserved after the body's end, until `Memory.give` releases it."""
        self._kept_bytes = self.num_bytes
