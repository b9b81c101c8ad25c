"""Stored objects read in ranges: with a window around the last read, as a seekable file, and as a stream read ahead."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from dataprep.storage.base import NO_VERSION, Storage

_GAP_BYTES = 1 << 20
"""Expected ranges with smaller gaps are read with one request, because a bucket sends the gap faster than an answer."""
_JOINED_BYTES = 1 << 26
"""Maximum size of such a request for several ranges, which is kept in memory."""
# One connection to Cloud Storage gives some 50 MB/s; four fill what one process can use, in 20 MiB of memory.
RANGE_BYTES = 4 << 20
RANGES_AHEAD = 4


class RangeWindow:
    """Reads parts of an object and keeps the bytes of the last request, so that reads within them cost no request.

    Args:
        num_bytes: The object's size.
        window_bytes: Minimum number of bytes of a request; near the object's end a request starts earlier to reach this
            number. With 0 each request reads exactly the requested bytes.
        version: Version of the object to read; any by default.
        most_bytes: Upper bound of the minimum, which doubles while reads follow each other closely, like reads of the
            headers of a tar of small files, and falls back to `window_bytes` after a longer step.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        num_bytes: int,
        window_bytes: int,
        version: int = NO_VERSION,
        most_bytes: int = 0,
    ) -> None:
        self._storage, self._name, self._size, self._version = storage, name, num_bytes, version
        self._least_bytes, self._most_bytes = window_bytes, max(window_bytes, most_bytes)
        self._window, self._window_at, self._window_bytes = b"", 0, window_bytes

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Read the bytes at an offset; fewer than requested only at the object's end."""
        count = max(0, min(num_bytes, self._size - offset))
        at = offset - self._window_at
        if not count:
            return b""
        if not self.holds(offset, count):
            is_near = bool(self._window) and 0 <= at < len(self._window) + self._least_bytes
            self._window_bytes = min(2 * self._window_bytes, self._most_bytes) if is_near else self._least_bytes
            start = min(offset, max(0, self._size - self._window_bytes))
            at = offset - start
            wanted = min(self._size - start, max(at + count, self._window_bytes))
            version = (self._version,) if self._version else ()  # storages of loaders do not have versions
            self._window = self._storage.read_range(self._name, start, wanted, *version)
            self._window_at = start
        return self._window[at : at + count]

    def holds(self, offset: int, num_bytes: int) -> bool:
        """Return whether the last request covers these bytes."""
        return self._window_at <= offset and offset + num_bytes <= self._window_at + len(self._window)


class RangeFile(io.RawIOBase):
    """A stored object as a seekable file for reading; see `RangeWindow` and `expecting` for the requests, of which
    there is one less if the object's size is known. Raises FileNotFoundError if there is no such object."""

    def __init__(self, storage: Storage, name: str, window_bytes: int = 0, *, num_bytes: int | None = None) -> None:
        super().__init__()
        if num_bytes is None:
            info = storage.stat(name)
            if info is None:
                raise FileNotFoundError(storage.url_of(name))
            num_bytes = info.num_bytes
        self._storage, self._name, self._size, self._position = storage, name, num_bytes, 0
        self._window = RangeWindow(storage, name, num_bytes, window_bytes)
        self._expected: list[tuple[int, int, RangeWindow]] = []
        """Start, end and bytes of each expected range, in order; a range is read when a part of it is requested."""

    @contextmanager
    def expecting(self, ranges: Iterable[tuple[int, int]]) -> Iterator[None]:
        """Read ranges, by their starts and ends, that are close together with one request, when the first of them is
        read, and keep their bytes until the end of the block; reads of other bytes are possible as before."""
        self._expected = [
            (start, end, RangeWindow(self._storage, self._name, end, end - start))
            for start, end in _joined(ranges, self._size)
        ]
        try:
            yield
        finally:
            self._expected = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        data = self._window_of(count).read(self._position, count)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def _window_of(self, count: int) -> RangeWindow:
        """Return the window to read the next bytes from."""
        number = bisect_right(self._expected, self._position, key=itemgetter(0)) - 1
        if number < 0 or self._window.holds(self._position, count):
            return self._window
        _, end, window = self._expected[number]
        return window if self._position + count <= end else self._window


def _joined(ranges: Iterable[tuple[int, int]], num_bytes: int) -> list[tuple[int, int]]:
    """Join ranges that are close together, and leave out parts past the object's size."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted((max(0, start), min(end, num_bytes)) for start, end in ranges):
        if start >= end:
            continue
        first, last = joined[-1] if joined else (0, -_GAP_BYTES - 1)
        if start < last or (start - last <= _GAP_BYTES and end - first <= _JOINED_BYTES):
            joined[-1] = first, max(last, end)
        else:
            joined.append((start, end))
    return joined


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
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with bytes of one range, and return their number; 0 at the end."""
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
        if not self.closed:
            self._threads.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _ask(self) -> None:
        while len(self._ahead) < RANGES_AHEAD and self._asked < self._num_bytes:
            count = min(RANGE_BYTES, self._num_bytes - self._asked)
            self._ahead.append(self._threads.submit(self._read_range, self._asked, count))
            self._asked += count
