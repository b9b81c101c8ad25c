"""A budget of bytes that many tasks share."""

from __future__ import annotations

import asyncio
from collections import deque


class Memory:
    """Whoever comes first is served first; what is taken before a body is read never waits for a second part."""

    def __init__(self, num_bytes: int) -> None:
        self._free_bytes = num_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, num_bytes: int) -> bool:
        """Takes so many bytes if they are free and nobody waits; whether it did."""
        if self._waiting or num_bytes > self._free_bytes:
            return False
        self._free_bytes -= num_bytes
        return True

    async def take(self, num_bytes: int) -> None:
        """Waits until so many bytes are free, and takes them."""
        if self.take_now(num_bytes):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(num_bytes)
            raise
        finally:
            self._serve()

    def give(self, num_bytes: int) -> None:
        """Gives them back."""
        self._free_bytes += num_bytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            num_bytes, granted = self._waiting[0]
            if not granted.cancelled():
                if num_bytes > self._free_bytes:
                    return
                self._free_bytes -= num_bytes
                granted.set_result(None)
            self._waiting.popleft()
