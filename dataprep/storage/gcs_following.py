"""Sending a spool file to a bucket while it is still being written.

The upload is a resumable one of unknown length, whose chunks are read from the file as it grows: when the last image is
in the shard, all but the last chunk is in the bucket. Only the last request creates the object, so a build that ends
earlier leaves nothing. No failure here is an error, because `publish` then sends the file in the ordinary way.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dataprep.host.heartbeat import beat

if TYPE_CHECKING:
    from google.cloud.storage import Blob


class BeatingStream(io.RawIOBase):
    """Stream that is sent chunk by chunk; each read counts as progress, because the previous chunk has arrived."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True, because a request that failed is sent again."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read from the wrapped stream."""
        beat()
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Seek in the wrapped stream."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """Return the position in the wrapped stream."""
        return self._stream.tell()


class GrowingFile(io.RawIOBase):
    """File that another thread appends to: a read waits until all requested bytes exist, or the end is known."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._changed = threading.Condition()
        self._num_bytes = 0
        self._ended = self._abandoned = False

    def grown(self, num_bytes: int) -> None:
        """Note that `num_bytes` bytes of the file can be read now."""
        with self._changed:
            self._num_bytes = num_bytes
            self._changed.notify_all()

    def end(self) -> None:
        """Note that the file has its final size."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Make every read raise an error from now on."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def wait_for(self, num_bytes: int) -> bool:
        """Wait until the file has `num_bytes` bytes (True) or is known to stay shorter.

        Raises OSError if the file was abandoned.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or self._ended or self._num_bytes >= num_bytes)
            if self._abandoned:
                raise OSError("the file will not be finished")
            return self._num_bytes >= num_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True, because a request that failed is sent again."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes; fewer at the end of the file."""
        self.wait_for(self._file.tell() + size)
        beat()
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Seek in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position in the file."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class Following:
    """The upload of one file that is being written.

    Args:
        path: The spool file, still empty.
        min_bytes: Size below which no upload is begun, because one request sends the file later.
        send: Uploads a stream of unknown length to a free name, and returns the object.
    """

    def __init__(self, path: Path, min_bytes: int, send: Callable[[GrowingFile], Blob]) -> None:
        self.stream = GrowingFile(path)
        self._min_bytes, self._send = min_bytes, send
        self._sent: Future[Blob | None] = Future()
        threading.Thread(target=self._run, name="dataprep-upload", daemon=True).start()

    def finish(self) -> Blob | None:
        """Wait until everything is sent; return the object, or None if it was not created this way."""
        self.stream.end()
        return self._sent.result()

    def _run(self) -> None:
        sent = None
        try:
            with self.stream:
                if self.stream.wait_for(self._min_bytes):
                    sent = self._send(self.stream)
        except Exception:  # noqa: BLE001  publishing the file meets the fault again, and reports it
            sent = None
        self._sent.set_result(sent)
