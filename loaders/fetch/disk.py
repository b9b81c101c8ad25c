"""Samples from a local disk: one read each, when a decoding thread waits for it.

Nothing is read ahead and nothing is held, because the system's page cache serves.
"""

from __future__ import annotations

import time

from loaders.fetch.fetcher import Fetcher, Record, Ticket
from loaders.fetch.index import ShardIndex
from loaders.order import Pick


class DiskFetcher(Fetcher):
    """Reads each sample in the thread that waits for it."""

    def close(self) -> None:
        """Do nothing: no thread runs."""

    def request(self, pick: Pick) -> Ticket:
        piece = pick.piece
        if piece.stop - piece.first == 1:  # copying its one entry would take longer than looking it up
            return _DiskTicket(self, self._index.shard(piece.shard), pick.sample, piece.shard)
        return _DiskTicket(self, self._entries_of(pick), pick.sample - piece.first, piece.shard)

    def read(self, shard: int, entries: ShardIndex, entry: int) -> bytes | Record:
        """Read one sample."""
        started_s = time.monotonic()
        offset, num_bytes = self._range(entries, entry, entry + 1)
        file, file_bytes = self._index.file_of(shard, entries, entry), self._index.file_bytes(shard, entries, entry)
        data = self._read_range(file, offset, num_bytes, file_bytes)
        self._add(requests=1, bytes_read=num_bytes, wait_s=time.monotonic() - started_s)
        return self._cut(entries, entry, data, offset)


class _DiskTicket:
    def __init__(self, fetcher: DiskFetcher, entries: ShardIndex, entry: int, shard: int) -> None:
        self._fetcher, self._shard = fetcher, shard
        self.entries, self.entry = entries, entry

    def wait(self) -> bytes | Record:
        return self._fetcher.read(self._shard, self.entries, self.entry)

    def done(self) -> None:
        """Do nothing: no bytes are held."""
