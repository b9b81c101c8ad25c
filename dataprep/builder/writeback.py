"""Writes a file in threads that digest, write and sync, while the next images are read and decoded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from dataprep.host.heartbeat import beat
from dataprep.storage.checksums import HashingWriter

# Bytes passed to the writing thread at once: ten images, so that the passing itself costs nothing in comparison.
BATCH_BYTES = 2**20
# Batches in flight before `write` waits: bounds the memory, and bridges a sync of 8 MiB.
MAX_BATCHES = 16
# Bytes between two syncs: a tenth of a second of decoding, so that little is left for the last sync.
SYNC_BYTES = 8 * 2**20


class WritebackFile:
    """Writes to an existing file; one thread digests and writes, another syncs.

    Without these threads a worker decodes, digests, waits for the disk, and decodes again; with shards of 32 MiB,
    digests and disk take a third of its time. The code that publishes the file syncs it again, which is then quick. The
    system reports a write error once to each open descriptor, but not to those opened later. So the result of every
    sync is checked here, and a storage syncs through the descriptor with which it created the file. The digests are
    complete when the `with` block has ended.

    Args:
        path: The file.
        written: Called with the number of bytes in the file each time it has grown.
    """

    def __init__(self, path: Path, written: Callable[[int], None]) -> None:
        self._written = written
        self._file = path.open("r+b")  # buffered: writes everything, even if the disk first accepts only a part
        self._digests = HashingWriter(None)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dataprep-write")
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="dataprep-sync")
        self._pieces: list[bytes] = []
        self._piece_bytes = self._unsynced_bytes = 0
        self._batches: deque[Future[None]] = deque()
        self._sync: Future[None] | None = None

    def __enter__(self) -> WritebackFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._hand_over()
                while self._batches:
                    self._batches.popleft().result()
                if self._sync is not None:
                    self._sync.result()
        finally:
            self._writer.shutdown(cancel_futures=True)
            self._syncer.shutdown()
            self._file.close()

    def write(self, data: bytes) -> int:
        """Append bytes.

        Raises:
            OSError: Some earlier bytes did not reach the disk.
        """
        self._pieces.append(data)
        self._piece_bytes += len(data)
        if self._piece_bytes >= BATCH_BYTES:
            self._hand_over()
        return len(data)

    @property
    def num_bytes(self) -> int:
        return self._digests.num_bytes

    @property
    def sha256(self) -> str:
        return self._digests.sha256

    @property
    def crc32c(self) -> str:
        return self._digests.crc32c

    def _hand_over(self) -> None:
        pieces, self._pieces, self._piece_bytes = self._pieces, [], 0
        while self._batches and (self._batches[0].done() or len(self._batches) >= MAX_BATCHES):
            self._batches.popleft().result()
        self._batches.append(self._writer.submit(self._put, pieces))

    def _put(self, pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        self._digests.write(data)
        self._unsynced_bytes += len(data)
        self._file.write(data)
        self._file.flush()
        beat()
        self._written(self._digests.num_bytes)
        if self._unsynced_bytes >= SYNC_BYTES and (self._sync is None or self._sync.done()):
            self._start_sync()

    def _start_sync(self) -> None:
        if self._sync is not None:
            self._sync.result()
        self._sync = self._syncer.submit(_datasync, self._file.fileno())
        self._unsynced_bytes = 0


def _datasync(descriptor: int) -> Any:
    return os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)
