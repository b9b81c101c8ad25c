"""A file that is digested, written and made durable by threads, while the next images are read and decoded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from dataprep.checksums import HashingWriter

# Bytes given to the writing thread at once: ten images, so that handing over costs nothing beside them.
BATCH_BYTES = 2**20
# Batches under way before whoever writes has to wait: bounds the memory, and outlasts a sync of 8 MiB.
MAX_BATCHES = 16
# Between two syncs: 8 MiB are a tenth of a second of decoding, and keep what is left for the last sync small.
SYNC_BYTES = 8 * 2**20


class WritebackFile:
    """Writes to an existing file; one thread digests and writes, another syncs.

    Without this a worker decodes, then digests, then waits for the disk, then decodes again: a third of its time with
    shards of 32 MiB. Whoever puts the file in place still syncs it, which is quick then. The digests are those of
    everything once the `with` block has ended.

    Args:
        path: The file.
        written: Told how many bytes are in the file, each time that there are more.
    """

    def __init__(self, path: Path, written: Callable[[int], None]) -> None:
        self._written = written
        self._file = path.open("r+b", buffering=0)
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
        finally:
            self._writer.shutdown(cancel_futures=True)
            self._syncer.shutdown()
            self._file.close()

    def write(self, data: bytes) -> int:
        """Append bytes.

        Raises:
            OSError: The disk took some that were written before not.
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
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
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
