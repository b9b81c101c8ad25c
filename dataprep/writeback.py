"""A file that is made durable while it is written, so that the disk works while the next images are decoded."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

# Between two syncs: 8 MiB are a tenth of a second of decoding, and keep what is left for the last sync small.
SYNC_BYTES = 8 * 2**20


class WritebackFile:
    """Writes to an existing file and syncs it in a thread of its own, every few megabytes.

    Without this a worker decodes, then waits for the disk, then decodes again: a third of its time with shards of
    32 MiB. Whoever puts the file in place still syncs it, which is quick then.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=1 << 18)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dataprep-writeback")
        self._sync: Future[None] | None = None
        self._unsynced_bytes = 0

    def __enter__(self) -> WritebackFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()
        self._file.close()

    def write(self, data: Any) -> int:
        """Append bytes.

        Raises:
            OSError: The disk took these, or some that were written before, not.
        """
        written = self._file.write(data)
        self._unsynced_bytes += written
        if self._unsynced_bytes >= SYNC_BYTES and (self._sync is None or self._sync.done()):
            self._start_sync()
        return written

    def _start_sync(self) -> None:
        if self._sync is not None:
            self._sync.result()
        self._file.flush()
        self._sync = self._thread.submit(os.fdatasync if hasattr(os, "fdatasync") else os.fsync, self._file.fileno())
        self._unsynced_bytes = 0
