"""A folder on disk that answers like a bucket: every request waits, and is counted."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from dataprep.storage.local import LocalStorage

LATENCIES_S = (0.05, 0.5, 5.0)
"""One after another, until a busy machine too has begun a second read before the first ends."""


class SlowStorage(LocalStorage):
    """Reads wait `latency_s` each, side by side; what was asked for is recorded."""

    is_local = False

    def __init__(self, root: Path, latency_s: float = 0.0) -> None:
        super().__init__(root)
        self.latency_s = latency_s
        self.requests: list[tuple[str, int, int]] = []
        """Name, offset and bytes of every read."""
        self.most_in_flight = 0
        self.most_bytes_in_flight = 0
        self._in_flight = 0
        self._bytes_in_flight = 0
        self._counts = threading.Lock()

    def read_range(
        self, name: str, offset: int, num_bytes: int, version: int = 0, file_bytes: int | None = None
    ) -> bytes:
        with self._counts:
            self.requests.append((name, offset, num_bytes))
            self._in_flight += 1
            self._bytes_in_flight += num_bytes
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            self.most_bytes_in_flight = max(self.most_bytes_in_flight, self._bytes_in_flight)
        try:
            time.sleep(self.latency_s)
            return super().read_range(name, offset, num_bytes, version, file_bytes)
        finally:
            with self._counts:
                self._in_flight -= 1
                self._bytes_in_flight -= num_bytes
