"""Bytes from and to Cloud Storage in pieces: range reads, and the upload of a file that is still being written.

Ranges are read outside the interpreter lock; docs/decisions/0001-range-reads.md says why obstore. The upload is a
resumable one of unknown length, whose chunks are read from the file as it grows: when the last image is in the shard,
all but the last chunk is in the bucket. Only the last request creates the object, so a build that ends earlier leaves
nothing. No failure of such an upload is an error, because `publish` then sends the file in the ordinary way.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dataprep.errors import StorageError
from dataprep.host.heartbeat import beat
from dataprep.storage import errors, gcs_client

if TYPE_CHECKING:
    from google.cloud.storage import Blob
    from obstore import GetOptions
    from obstore.store import ClientConfig, GCSStore

CONNECT_TIMEOUT_S = 10.0
HTTP_NOT_SATISFIABLE = 416
_WORTH_RETRYING = {None, 408, 429, 500, 502, 503, 504}
_STATUS = re.compile(r"status code: (\d{3})")
_WHOLE = re.compile("non-partial response|Content-Length Header missing|Range request not supported")
_runtime_pid: int | None = None
opening = threading.Lock()
"""Lock to open one obstore store at a time: 64 threads that begin together would each open one, with its own connection
and all certificates of the system, which takes half a second."""


def read_range(
    bucket: str, name: str, offset: int, num_bytes: int, deadlines: gcs_client.Deadlines | None, generation: int
) -> tuple[bytes, int | None]:
    """Read bytes of an object or generation from `offset`: fewer than `num_bytes`, which is 1 or more, if the object
    ends before. Return the bytes, and the size of the complete object if the answer has it.

    Raises FileNotFoundError for no such object, generation or bucket, StorageError if the server sends the complete
    object in place of the range, and otherwise BaseError of obstore, GoogleAPIError or GoogleAuthError, after the
    retries.
    """
    if runtime_is_of_parent():
        return _read_with_client(bucket, name, offset, num_bytes, deadlines, generation)
    import obstore
    from obstore.exceptions import GenericError

    with opening:
        store = _store(bucket, gcs_client.emulator_url(), gcs_client.billing_project(), deadlines)
    # Obstore's own retries are off: they leave out 429.
    retry = gcs_client.retry_policy(is_worth_retrying, deadlines=deadlines, status_of=status_in_text, counted=True)

    def read() -> tuple[bytes, int | None]:
        wanted: GetOptions = {"range": (offset, offset + num_bytes)}
        if generation:
            wanted["version"] = str(generation)
        answer = obstore.get(store, name, options=wanted)
        return answer.bytes().to_bytes(), answer.meta["size"]

    try:
        found: tuple[bytes, int | None] = retry(read)()
        return found
    except GenericError as error:
        if status_in_text(error) == HTTP_NOT_SATISFIABLE:
            return b"", None
        if is_whole(error):
            raise StorageError(errors.decompressed(f"gs://{bucket}/{name}")) from error
        raise


def runtime_is_of_parent() -> bool:
    """Return whether obstore was used before this process forked: its threads are missing, so reads would never end."""
    global _runtime_pid
    if _runtime_pid is None:
        _runtime_pid = os.getpid()
    return _runtime_pid != os.getpid()


def is_worth_retrying(error: BaseException) -> bool:
    from obstore.exceptions import GenericError, UnauthenticatedError

    if isinstance(error, UnauthenticatedError):
        # The connection for fetching a token broke.
        return status_in_text(error) is None and "TransportError" in str(error)
    return isinstance(error, GenericError) and status_in_text(error) in _WORTH_RETRYING and not is_whole(error)


def is_whole(error: BaseException) -> bool:
    """Return whether the server sends the complete object in place of the range."""
    return _WHOLE.search(str(error)) is not None


def status_in_text(error: BaseException) -> int | None:
    """Return the HTTP status that an error contains; None if the server did not answer."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _read_with_client(
    bucket: str, name: str, offset: int, num_bytes: int, deadlines: gcs_client.Deadlines | None, generation: int
) -> tuple[bytes, None]:
    from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable

    blob = gcs_client.client().bucket(bucket).blob(name, generation=generation or None)
    last, retry = offset + num_bytes - 1, gcs_client.retry_policy(deadlines=deadlines)
    timeout_s = gcs_client.request_timeout_s(deadlines)
    try:
        data: bytes = blob.download_as_bytes(start=offset, end=last, checksum=None, retry=retry, timeout=timeout_s)
    except RequestRangeNotSatisfiable:
        return b"", None
    except NotFound as error:
        raise FileNotFoundError(str(error)) from error
    return data, None


@functools.lru_cache(maxsize=64)
def _store(bucket: str, emulator: str, project: str, deadlines: gcs_client.Deadlines | None) -> GCSStore:
    from obstore.auth.google import GoogleCredentialProvider
    from obstore.store import GCSStore

    stall_s = gcs_client.request_timeout_s(deadlines)
    options: ClientConfig = {
        "connect_timeout": f"{min(stall_s, CONNECT_TIMEOUT_S) * 1000:.0f}ms",
        "read_timeout": f"{stall_s * 1000:.0f}ms",
        "timeout": f"{gcs_client.RETRY_DEADLINE_S:.0f}s",
        "default_headers": {gcs_client.PAYING_PROJECT: project} if project else {},
    }
    if emulator:
        key = {"gcs_base_url": emulator, "disable_oauth": True}
        key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        return GCSStore(
            bucket,
            config={"service_account_key": json.dumps(key)},
            client_options={**options, "allow_http": True},
            retry_config={"max_retries": 0},
        )
    found, _ = gcs_client.credentials()
    return GCSStore(
        bucket,
        client_options=options,
        retry_config={"max_retries": 0},
        credential_provider=GoogleCredentialProvider(found),
    )


class BeatingStream(io.RawIOBase):
    """Stream that is sent chunk by chunk; each read counts as progress, because the previous chunk has arrived."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True  # a request that failed is sent again

    def read(self, size: int = -1) -> bytes:
        beat()
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


class GrowingFile(BeatingStream):
    """File that another thread appends to: a read waits until all requested bytes exist, or the end is known."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("rb"))
        self._changed = threading.Condition()
        self._num_bytes = 0
        self._ended = self._abandoned = False

    def grown(self, num_bytes: int) -> None:
        """Note that `num_bytes` bytes of the file can be read now."""
        with self._changed:
            self._num_bytes = num_bytes
            self._changed.notify_all()

    def end(self) -> None:
        """Note that the file is complete."""
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

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes; fewer at the end of the file."""
        self.wait_for(self.tell() + size)
        return super().read(size)

    def close(self) -> None:
        self._stream.close()
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
