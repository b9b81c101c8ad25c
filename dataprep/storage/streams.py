"""A sequential stream over an object that is read in ranges, with the next few ranges always in flight."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# One connection to Cloud Storage gives some 50 MB/s; four fill what one process can use, in 20 MiB of memory.
RANGE_BYTES = 4 << 20
RANGES_AHEAD = 4


class RangeStream(io.RawIOBase):
    """Reads `num_bytes` bytes from the start through `read_range(offset, num_bytes)`; cannot seek."""

    def __init__(self, read_range: Callable[[int, int], bytes], num_bytes: int) -> None:
        self._read_range = read_range
        self._num_bytes = num_bytes
        self._asked = 0
        self._ahead: deque[Future[bytes]] = deque()
        self._threads = ThreadPoolExecutor(RANGES_AHEAD, thread_name_prefix="range")
        self._block = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill as much of a buffer as one range gives; 0 at the end."""
        if not self._block:
            self._ask()
            if not self._ahead:
                return 0
            self._block = memoryview(self._ahead.popleft().result())
            self._ask()
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def close(self) -> None:
        """Drop the ranges in flight."""
        if not self.closed:
            self._threads.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _ask(self) -> None:
        while len(self._ahead) < RANGES_AHEAD and self._asked < self._num_bytes:
            count = min(RANGE_BYTES, self._num_bytes - self._asked)
            self._ahead.append(self._threads.submit(self._read_range, self._asked, count))
            self._asked += count
