"""Stored objects read in parts: with a window around the last read, and as a seekable file for libraries."""

from __future__ import annotations

import io

from dataprep.storage.base import Storage


class RangeWindow:
    """Reads parts of an object; the bytes of the last request are kept, so that reads within them cost no request.

    Args:
        storage: Where the object is.
        name: The object.
        num_bytes: The object's size.
        window_bytes: Minimum number of bytes of a request; near the object's end a request starts earlier to have as
            many. With 0 each request reads exactly the wanted bytes.
    """

    def __init__(self, storage: Storage, name: str, num_bytes: int, window_bytes: int) -> None:
        self._storage, self._name, self._size, self._window_bytes = storage, name, num_bytes, window_bytes
        self._window, self._window_at = b"", 0

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Read the bytes at an offset; fewer than requested only where the object ends."""
        count = max(0, min(num_bytes, self._size - offset))
        at = offset - self._window_at
        if count and not 0 <= at <= at + count <= len(self._window):
            start = min(offset, max(0, self._size - self._window_bytes))
            at = offset - start
            wanted = min(self._size - start, max(at + count, self._window_bytes))
            self._window, self._window_at = self._storage.read_range(self._name, start, wanted), start
        return self._window[at : at + count] if count else b""


class RangeFile(io.RawIOBase):
    """A stored object as a seekable file for reading; see `RangeWindow` for the requests.

    Raises:
        FileNotFoundError: There is no such object.
    """

    def __init__(self, storage: Storage, name: str, window_bytes: int = 0) -> None:
        super().__init__()
        info = storage.stat(name)
        if info is None:
            raise FileNotFoundError(storage.url_of(name))
        self._size, self._position = info.num_bytes, 0
        self._window = RangeWindow(storage, name, info.num_bytes, window_bytes)

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
        data = self._window.read(self._position, left if size is None or size < 0 else size)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()
