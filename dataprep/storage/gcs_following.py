"""Sending a spooled file to a bucket while it is still being written.

A resumable upload of unknown length whose chunks are read from the file as they come: when the last image is in the
shard, all but the last chunk is in the bucket. The object comes to be with the last request only, so a build that ends
before leaves nothing, and nothing here is ever an error: whoever publishes sends the file in the ordinary way then.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.cloud.storage import Blob


class GrowingFile(io.RawIOBase):
    """A file that another thread appends to: a read waits until all that it asks for is there, or the end is known."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._changed = threading.Condition()
        self._num_bytes = 0
        self._ended = self._abandoned = False

    def grown(self, num_bytes: int) -> None:
        """So many bytes can be read now."""
        with self._changed:
            self._num_bytes = num_bytes
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Whoever reads gets an error."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def wait_for(self, num_bytes: int) -> bool:
        """Whether the file has so many bytes, or will not have them. Raises OSError when it was abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or self._ended or self._num_bytes >= num_bytes)
            if self._abandoned:
                raise OSError("the file will not be finished")
            return self._num_bytes >= num_bytes

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always: a request that failed is sent again."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes; fewer at the end of the file."""
        self.wait_for(self._file.tell() + size)
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """As a file's."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As a file's."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class Following:
    """One file on its way.

    Args:
        path: The spool file, still empty.
        min_bytes: Below this it is not begun: one request does it then.
        send: Uploads a stream of unknown length, create-only, and returns the object.
    """

    def __init__(self, path: Path, min_bytes: int, send: Callable[[GrowingFile], Blob]) -> None:
        self.stream = GrowingFile(path)
        self._min_bytes, self._send = min_bytes, send
        self._sent: Future[Blob | None] = Future()
        threading.Thread(target=self._run, name="dataprep-upload", daemon=True).start()

    def finish(self) -> Blob | None:
        """Wait until all is sent. The object, or None where it was not made this way."""
        self.stream.end()
        return self._sent.result()

    def _run(self) -> None:
        sent = None
        try:
            with self.stream:
                if self.stream.wait_for(self._min_bytes):
                    sent = self._send(self.stream)
        except Exception:  # noqa: BLE001  what is the matter is found, and said, when the file is published
            sent = None
        self._sent.set_result(sent)
