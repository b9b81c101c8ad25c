"""Reads an archive's bytes on disk or in a bucket, at growing offsets and in bounded memory.

On disk a header costs one small read. Over a network one request for each member would cost the latency each time, so
the archive is streamed once, in large blocks, several of which are in flight ahead of the position.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from dataprep.errors import SourceError
from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.ranges import RangeWindow

BLOCK_BYTES = 4 * 2**20
"""Size of one request over a network; smaller requests spend as much time on round trips as on bytes."""
BLOCKS_IN_FLIGHT = 12
"""Number of requests in flight ahead of the position: hides a latency of 50 ms at 1 GB/s, with 48 to 96 MiB of
memory."""
DISK_WINDOW_BYTES = 4096
"""Size of one read from disk: a page, which holds a header with its extensions."""
NETWORK_WINDOW_BYTES = 65536
GZIP_CHUNK_BYTES = 2**20
MAX_GZIP_BYTES = 64 * 2**20
"""Maximum size of a compressed label archive; the published ones have 2.6 MB."""
MAX_UNPACKED_BYTES = 512 * 2**20
"""Maximum size of a label archive's content, which is streamed; that of the published ones is under 100 MB."""
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_BYTES = range(120, 160)
"""Sizes of Git LFS's pointers, whose digest and number of bytes vary in length only by the latter."""

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes done and the total bytes."""


def refuse_pointer(storage: Storage, name: str, num_bytes: int, offset: int = 0) -> None:
    """Raise SourceError for a Git LFS pointer, which a clone has in place of a file.

    Args:
        storage: Where the file is.
        name: The file, or the archive that holds it.
        num_bytes: Size of the file; only those of the size of a pointer are read.
        offset: Where the file begins in its archive.
    """
    if num_bytes in _POINTER_BYTES and storage.read_range(name, offset, len(_POINTER)) == _POINTER:
        raise SourceError(
            f"{storage.url_of(name)}: a Git LFS pointer in place of a file; run git lfs pull in the clone"
        )


class ArchiveReader:
    """Reads one archive forward; going back works and costs a new request."""

    def __init__(
        self,
        storage: Storage,
        name: str,
        *,
        stream: bool = True,
        progress: Progress | None = None,
        info: ObjectInfo | None = None,
    ) -> None:
        """Open an archive.

        Args:
            storage: The source root.
            name: The archive, relative to the source root.
            stream: Over a network, read the whole archive in large blocks; False if only little of it is needed.
            progress: Called as the position grows.
            info: Result of `stat` for the archive, if the caller has it already.

        Raises:
            SourceError: There is no such file.
        """
        info = info or storage.stat(name)
        if info is None:
            raise SourceError(f"{storage.url_of(name)}: not found; check --source")
        refuse_pointer(storage, name, info.num_bytes)
        self.archive = storage.url_of(name)
        self.num_bytes = info.num_bytes
        self.version = info.version
        self._storage, self._name, self._progress = storage, name, progress
        window_bytes = DISK_WINDOW_BYTES if storage.is_local else NETWORK_WINDOW_BYTES
        self._window = RangeWindow(storage, name, info.num_bytes, window_bytes, info.version)
        self._blocks = _BlocksAhead(storage, name, info) if stream and not storage.is_local else None
        self._next_report = 0

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset; fewer than requested only at the end of the archive."""
        stop = min(offset + num_bytes, self.num_bytes)
        if offset >= stop:
            return b""
        if self._progress is not None and offset >= self._next_report:
            self._next_report = offset + BLOCK_BYTES
            self._progress(self._name, offset, self.num_bytes)
        if self._blocks is not None:
            return self._blocks.read(offset, stop)
        return self._window.read(offset, stop - offset)

    def read_apart(self, offset: int, num_bytes: int) -> bytes:
        """Read bytes by a separate request, so that the stream stays where it is."""
        num_bytes = min(num_bytes, self.num_bytes - offset)
        if num_bytes <= 0:
            return b""
        return self._storage.read_range(self._name, offset, num_bytes, self.version)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._blocks is not None:
            self._blocks.close()
        if self._progress is not None:
            self._progress(self._name, self.num_bytes, self.num_bytes)


@contextmanager
def open_archive(
    storage: Storage,
    name: str,
    *,
    stream: bool = True,
    progress: Progress | None = None,
    info: ObjectInfo | None = None,
) -> Iterator[ArchiveReader]:
    """Open an ArchiveReader for a with block, and close it at the block's end."""
    reader = ArchiveReader(storage, name, stream=stream, progress=progress, info=info)
    try:
        yield reader
    finally:
        reader.close()


class _BlocksAhead:
    """Blocks of an object from the current position on; BLOCKS_IN_FLIGHT of them are in memory or in flight."""

    def __init__(self, storage: Storage, name: str, info: ObjectInfo) -> None:
        self._storage, self._name, self._num_bytes, self._version = storage, name, info.num_bytes, info.version
        self._held: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._pool = ThreadPoolExecutor(BLOCKS_IN_FLIGHT, thread_name_prefix="archive")
        self._hold(0)  # a zip's directory is read first; these blocks arrive meanwhile

    def read(self, offset: int, stop: int) -> bytes:
        pieces = []
        while offset < stop:
            start = offset - offset % BLOCK_BYTES
            block = self._block(start // BLOCK_BYTES)
            pieces.append(block[offset - start : stop - start])
            offset = start + BLOCK_BYTES
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _block(self, index: int) -> bytes:
        if next(iter(self._held), None) != index:
            self._hold(index)
        return self._held[index].result()

    def _hold(self, index: int) -> None:
        total = -(-self._num_bytes // BLOCK_BYTES)
        wanted = range(index, min(index + BLOCKS_IN_FLIGHT, total))
        for past in [held for held in self._held if held not in wanted]:
            self._held.pop(past).cancel()
        kept = self._held
        self._held = OrderedDict((i, kept.get(i) or self._pool.submit(self._fetch, i)) for i in wanted)

    def _fetch(self, index: int) -> bytes:
        start = index * BLOCK_BYTES
        return self._storage.read_range(self._name, start, min(BLOCK_BYTES, self._num_bytes - start), self._version)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._held.clear()


class GzipReader:
    """The content of a small gzip file, read forward only, in bounded memory and up to MAX_UNPACKED_BYTES."""

    num_bytes = MAX_UNPACKED_BYTES

    def __init__(self, storage: Storage, name: str) -> None:
        """Open a file. Raises SourceError if it does not exist or is too large for a label archive."""
        self.archive = storage.url_of(name)
        info = storage.stat(name)
        if info is None:
            raise SourceError(f"{self.archive}: not found; check --source")
        refuse_pointer(storage, name, info.num_bytes)
        if info.num_bytes > MAX_GZIP_BYTES:
            raise SourceError(
                f"{self.archive}: {info.num_bytes:,} bytes; expected a label archive of at most {MAX_GZIP_BYTES:,}"
            )
        self._compressed = storage.read(name)
        self._taken = 0
        self._inflate = zlib.decompressobj(wbits=31)
        self._buffer, self._buffer_at = b"", 0

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Read content at an offset that is not before the last one; fewer bytes than requested only at the end."""
        while offset + num_bytes > self._buffer_at + len(self._buffer):
            chunk = self._next_chunk()
            if not chunk:
                break
            kept = self._buffer[max(0, offset - self._buffer_at) :]
            self._buffer_at += len(self._buffer) - len(kept)
            self._buffer = kept + chunk
        start = max(0, offset - self._buffer_at)
        return self._buffer[start : start + num_bytes] if offset >= self._buffer_at else b""

    def _next_chunk(self) -> bytes:
        """Unpack the next piece of content; empty at the end of the file."""
        chunk = b""
        while not chunk and not self._inflate.eof:
            held = self._inflate.unconsumed_tail
            if not held:
                held = self._compressed[self._taken : self._taken + 65536]
                self._taken += len(held)
            try:
                chunk = self._inflate.decompress(held, GZIP_CHUNK_BYTES)
            except zlib.error as error:
                raise SourceError(f"{self.archive}: no valid gzip file: {error}; fetch it again") from error
            if not chunk and not held and not self._inflate.eof:
                raise SourceError(
                    f"{self.archive}: truncated after {self._taken:,} bytes, inside its content; fetch it again"
                )
        if self._buffer_at + len(self._buffer) + len(chunk) > MAX_UNPACKED_BYTES:
            raise SourceError(f"{self.archive}: unpacks to over {MAX_UNPACKED_BYTES:,} bytes; expected a label archive")
        return chunk
