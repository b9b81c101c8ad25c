"""A prefix of a Cloud Storage bucket as a place for objects: create-only uploads, many range reads at once.

`GCSStorage` is the place. `StagedGCS` is for a writer that another may replace while it is suspended:

    upload to root/tmp/<name>-<uuid> -> is the place still ours? -> the server copies it to its name, if that is free

An upload cannot depend on another object, because Cloud Storage has no such precondition, so an upload alone cannot
tell whether its writer may still write. A copy can, because its source must exist. The process that takes over first
changes the object that `still_ours` reads, then deletes everything below `root`. If the upload was finished before, the
source of the copy is gone; if it is finished afterwards, `still_ours` finds that the place belongs to another writer.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

from dataprep.errors import ConflictError, StorageError, UsageError
from dataprep.host.heartbeat import beat
from dataprep.messages import quoted
from dataprep.storage import base, errors, gcs_client, gcs_transfers
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.gcs_client import bucket_errors, is_missing_bucket
from dataprep.storage.gcs_transfers import BeatingStream, Following
from dataprep.storage.readonly import RemoteReads
from dataprep.storage.spool import NAME_CHARACTERS, process_spools, remove_stale_spools

if TYPE_CHECKING:
    from google.api_core.page_iterator import HTTPIterator
    from google.cloud.storage import Blob

# A chunk costs one round trip, and is held in memory while it is sent; larger chunks hardly save time.
UPLOAD_CHUNK_BYTES = 16 << 20
# A name that is taken and then free again means that another build is removing the object.
UPLOAD_TRIES = 3
DELETES_IN_FLIGHT = 32
LISTED_FIELDS = "items(name,size,crc32c,generation),nextPageToken"
DELETE_BATCH = 1000
MAX_NAME_BYTES = 1024
CONTENT_TYPES = {".json": "application/json", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".tar": "application/x-tar"}
HTTP_SESSION_LOST = (404, 410)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_TAIL = "_tail"
"""Beginning of the name of an object that is being appended to another one."""
DISCARDS_IN_FLIGHT = 2
_discarding = ThreadPoolExecutor(DISCARDS_IN_FLIGHT, thread_name_prefix="dataprep-discard")
"""Threads that remove staged objects after they were copied, while their writer continues. If the process is killed,
the remaining ones are below `root`, which is removed at the end."""


class _PastBoundError(Exception):
    """A download has more bytes than its reader allows."""


class _BoundedBytes(io.BytesIO):
    """A buffer that ends a download of more than `max_bytes` bytes; None for no limit."""

    def __init__(self, max_bytes: int | None) -> None:
        super().__init__()
        self.max_bytes = sys.maxsize if max_bytes is None else max_bytes

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.max_bytes:
            raise _PastBoundError
        return super().write(data)


class GCSStorage(RemoteReads):
    """A prefix of a bucket; reads give up after some time, by default after five minutes of retries. See `Storage` for
    the contract of each call. Raises UsageError if the URL does not name a bucket, or has a prefix that objects cannot
    have."""

    reads_in_flight = 64

    def __init__(self, url: str, deadlines: gcs_client.Deadlines | None = None) -> None:
        self._deadlines = deadlines
        self._next_step = errors.GO_ON if deadlines is None else errors.READ_LESS_AT_ONCE
        self._timeout_s = gcs_client.request_timeout_s(deadlines)
        self.bucket, _, prefix = url.partition("://")[2].partition("/")
        if not _BUCKET.fullmatch(self.bucket):
            raise UsageError(
                f"{quoted(url)} does not name a bucket; expected gs://bucket/prefix, a bucket name of 3 to 63 "
                "characters a-z 0-9 . _ -, the first and last a letter or digit (with dots up to 222)"
            )
        self.prefix = base.check_prefix(prefix)
        self.url = f"gs://{self.bucket}/{self.prefix}".rstrip("/")
        self._root = f"{self.prefix}/" if self.prefix else ""
        self._following: dict[Path, Following] = {}

    def __reduce__(self) -> tuple[Callable[..., GCSStorage], tuple[str, gcs_client.Deadlines | None]]:
        return GCSStorage, (self.url, self._deadlines)

    def stat(self, name: str) -> base.ObjectInfo | None:
        """Read the object's metadata with one request."""
        from google.api_core.exceptions import NotFound

        with bucket_errors(self.url_of(name), "storage.objects.get", self._next_step):
            blob = self._blob(name)
            try:
                blob.reload(retry=gcs_client.retry_policy(deadlines=self._deadlines), timeout=self._timeout_s)
            except NotFound as error:
                if is_missing_bucket(error):
                    raise
                return None
        return _info(name, blob)

    def list(self, prefix: str = "", first: str = "") -> Iterator[base.ObjectInfo]:
        """List objects with one request for each thousand. Empty objects that only mark folders are left out."""
        for blob in self._blobs(base.check_prefix(prefix), first):
            if not blob.name.endswith("/"):
                yield _info(blob.name[len(self._root) :], blob)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """List the folders below a prefix with one request for each thousand."""
        with bucket_errors(self.url_of(prefix), "storage.objects.list"):
            found = self._listed_blobs(base.check_prefix(prefix), delimiter="/", fields="prefixes,nextPageToken")
            for page in found.pages:
                list(page)
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found.prefixes)

    def first(self, prefix: str, most: int) -> Sequence[base.ObjectInfo]:
        """List objects with one request for each thousand."""
        blobs = self._blobs(base.check_prefix(prefix), most=most + 1)  # one may only represent the folder
        found = [_info(blob.name[len(self._root) :], blob) for blob in blobs if not blob.name.endswith("/")]
        return found[:most]

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        from google.api_core.exceptions import NotFound

        with bucket_errors(self.url_of(name), "storage.objects.get", self._next_step):
            try:
                retry = gcs_client.retry_policy(deadlines=self._deadlines)
                sink = _BoundedBytes(max_bytes)
                self._blob(name).download_to_file(sink, retry=retry, timeout=self._timeout_s, checksum="crc32c")
            except _PastBoundError:
                info = self.stat(name)
                num_bytes = info.num_bytes if info is not None else sink.tell()
                raise base.TooLargeError(errors.too_large(self.url_of(name), num_bytes, sink.max_bytes)) from None
            except NotFound as error:
                if is_missing_bucket(error):
                    raise
                raise errors.missing(self.url_of(name)) from error
        beat()
        return sink.getvalue()

    def read_range(
        self, name: str, offset: int, num_bytes: int, version: int = base.NO_VERSION, file_bytes: int | None = None
    ) -> bytes:
        """Read a range of a generation with one request, outside the interpreter lock."""
        url = self.url_of(name)
        if offset < 0 or num_bytes < 0:
            raise UsageError(errors.bad_range(url, offset, num_bytes))
        data, size = b"", None
        with bucket_errors(url, "storage.objects.get", self._next_step):
            if num_bytes:
                with contextlib.suppress(FileNotFoundError):
                    full = self._full(name)
                    data, size = gcs_transfers.read_range(
                        self.bucket, full, offset, num_bytes, self._deadlines, version
                    )
        beat()
        if len(data) == num_bytes > 0 and (file_bytes is None or size in (None, file_bytes)):
            return data
        info = self._existing(name)
        if version and info.version != version:
            raise base.ChangedError(url)
        if file_bytes is not None and info.num_bytes != file_bytes:
            raise base.OtherSizeError(errors.other_size(url, info.num_bytes, file_bytes))
        if info.num_bytes < offset + num_bytes:
            raise StorageError(errors.ends_before(url, offset, num_bytes, info.num_bytes))
        if len(data) != num_bytes:
            raise StorageError(f"{url}: got {len(data):,} of {num_bytes:,} bytes; {self._next_step}")
        return data

    def spool_path(self, name: str) -> Path:
        """Create an empty file in a folder of this process, in the machine's temporary folder."""
        self._full(name)
        with errors.disk_errors(tempfile.gettempdir()):
            return process_spools().create(name)

    def remove_stale_spools(self) -> int:
        """Remove spool files of processes that died on this machine, and return their number."""
        with errors.disk_errors(tempfile.gettempdir()):
            return remove_stale_spools()

    @contextlib.contextmanager
    def sending(self, spool: Path, name: str, expected_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Send the file chunk by chunk, in a thread."""
        # A session that is opened while the first images are read costs no time; one for few bytes costs a request.
        min_bytes = 0 if expected_bytes > UPLOAD_CHUNK_BYTES // 2 else UPLOAD_CHUNK_BYTES
        following = Following(spool, min_bytes, functools.partial(self._send_stream, name))
        try:
            yield following.stream.grown
        except BaseException:
            following.stream.abandon()
            raise
        self._following[spool] = following

    def publish(self, spool: Path, name: str, crc32c: str) -> None:
        """Upload the file; Cloud Storage compares the CRC32C before the object exists.

        For a file that was sent while it was written, this call compares it afterwards, and removes an object that
        differs.
        """
        following = self._following.pop(spool, None)
        blob = following.finish() if following is not None else None
        if blob is not None:
            if blob.crc32c == crc32c:
                process_spools().discard(spool)
                return
            with bucket_errors(self.url_of(name), "storage.objects.delete"):
                blob.delete(if_generation_match=blob.generation, retry=gcs_client.retry_policy())
        try:
            with errors.disk_errors(spool), spool.open("rb") as stream:
                self._upload(name, stream, spool.stat().st_size, crc32c)
        except FileNotFoundError:
            raise StorageError(errors.spool_gone(spool)) from None
        except ConflictError:
            process_spools().discard(spool)
            raise
        process_spools().discard(spool)

    def create(self, name: str, data: bytes) -> bool:
        """Write with one request. After a lost response this call may find its own bytes, and then returns False."""
        return self._upload(name, io.BytesIO(data), len(data), crc32c_of_bytes(data))

    def create_last(self, name: str, data: bytes, before: Callable[[], None]) -> bool:
        before()
        return self.create(name, data)

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace with two requests: one reads the generation, the other uploads and replaces exactly that one.

        After a lost response this call may find its own bytes, and then returns False.
        """
        from google.api_core.exceptions import PreconditionFailed

        generation = 0
        if expected is not None:
            info = self.stat(name)
            if info is None or (info.num_bytes, info.crc32c) != (len(expected), crc32c_of_bytes(expected)):
                return False
            generation = info.version
        try:
            with bucket_errors(self.url_of(name), "storage.objects.create"):
                self._send(name, io.BytesIO(data), len(data), crc32c_of_bytes(data), generation)
        except PreconditionFailed:
            return False
        return True

    def replace_file(self, spool: Path, name: str, crc32c: str, expected: base.ObjectInfo) -> bool:
        """Replace like `replace`; after a lost response this call recognises its own bytes and returns True."""
        from google.api_core.exceptions import PreconditionFailed

        try:
            with errors.disk_errors(spool), bucket_errors(self.url_of(name), "storage.objects.create"):
                ours = (spool.stat().st_size, crc32c)
                theirs = self.stat(name)
                if theirs is None:
                    return False
                if (theirs.num_bytes, theirs.crc32c) == (expected.num_bytes, expected.crc32c) != ours:
                    with contextlib.suppress(PreconditionFailed), spool.open("rb") as stream:
                        self._send(name, stream, *ours, theirs.version)
                        return True
            theirs = self.stat(name)
            return theirs is not None and (theirs.num_bytes, theirs.crc32c) == ours
        finally:
            process_spools().discard(spool)

    def put(self, name: str, data: bytes) -> None:
        """Write an object with one request; an existing one is replaced."""
        with bucket_errors(self.url_of(name), "storage.objects.create"):
            self._send(name, io.BytesIO(data), len(data), crc32c_of_bytes(data), generation=None)

    def append(self, info: base.ObjectInfo, data: bytes) -> base.ObjectInfo | None:
        """Append to exactly this object with three requests: an upload, which the server joins to it and which is then
        removed. Return the longer object; None if it has changed, also by this call itself if its response was lost."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        tail = f"{_TAIL}-{uuid4().hex}"
        try:
            with (
                contextlib.suppress(PreconditionFailed),
                bucket_errors(self.url_of(info.name), "storage.objects.create"),
            ):
                self._send(tail, io.BytesIO(data), len(data), crc32c_of_bytes(data))
                blob = self._blob(info.name)
                blob.content_type = _content_type(info.name)
                sources, retry = [self._blob(info.name), self._blob(tail)], gcs_client.retry_policy()
                with contextlib.suppress(NotFound):
                    blob.compose(sources, if_generation_match=info.generation, retry=retry)
                    return _info(info.name, blob)
        finally:
            self._discard(tail)
        return None

    def _discard(self, name: str) -> None:
        with contextlib.suppress(StorageError):
            self.delete(name)

    def rewrite_from(
        self, source: GCSStorage, name: str, copied: Callable[[int], None], original_name: str | None = None
    ) -> base.ObjectInfo | None:
        """Let Cloud Storage copy an object of another bucket to a free name; no byte of it comes to this machine.

        Args:
            copied: Called with the number of bytes of every part; for a large object each call copies as much as it can
                in some 30 s.
            original_name: Name of the object in its source; the same name by default.

        Returns:
            The copy; None if the name is taken.
        """
        from google.api_core.exceptions import PreconditionFailed

        blob, original = self._blob(name), source._blob(original_name or name)
        # Any metadata that is sent replaces all metadata of the original.
        blob.content_type = _content_type(name)
        token, done = None, 0
        try:
            with bucket_errors(self.url_of(name), "storage.objects.create"):
                while True:
                    retry = gcs_client.retry_policy()
                    token, so_far, _ = blob.rewrite(original, token=token, if_generation_match=0, retry=retry)
                    copied(so_far - done)
                    done = so_far
                    if token is None:
                        break
        except PreconditionFailed:
            return None
        return base.ObjectInfo(name, blob.size, blob.crc32c)

    def delete(self, name: str) -> None:
        with bucket_errors(self.url_of(name), "storage.objects.delete"):
            self._delete(self._blob(name))

    def delete_exactly(self, info: base.ObjectInfo) -> bool:
        from google.api_core.exceptions import NotFound, PreconditionFailed

        with bucket_errors(self.url_of(info.name), "storage.objects.delete"):
            try:
                self._blob(info.name).delete(if_generation_match=info.generation, retry=gcs_client.retry_policy())
            except (NotFound, PreconditionFailed):
                return False
        return True

    def take_away(self, prefix: str) -> None:
        """Remove the objects; a removed object cannot be copied any more."""
        self.delete_tree(prefix)

    def prune(self, folders: Iterable[str]) -> None:
        """Do nothing: a bucket has no folders."""

    def staged(self, root: str, still_ours: Callable[[], None]) -> GCSStorage:
        """Return a storage that publishes through `root/tmp/`; the module's docstring explains how."""
        return StagedGCS(self.url, root, still_ours, self._deadlines)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Do nothing: in a bucket generations are compared instead."""
        yield

    def delete_tree(self, prefix: str) -> None:
        """Remove many objects at a time."""
        blobs = self._blobs(base.check_name(base.check_prefix(prefix)))
        with ThreadPoolExecutor(DELETES_IN_FLIGHT) as threads:
            while page := list(itertools.islice(blobs, DELETE_BATCH)):
                with bucket_errors(self.url_of(prefix), "storage.objects.delete"):
                    deque(threads.map(self._delete, page), maxlen=0)

    def _upload(self, name: str, stream: BinaryIO, num_bytes: int, crc32c: str) -> bool:
        """Upload a stream; False if an equal object exists already. Raises ConflictError if another has the name."""
        from google.api_core.exceptions import PreconditionFailed

        send = gcs_client.retry_policy(_session_is_lost)(self._send)
        for _ in range(UPLOAD_TRIES):
            try:
                with bucket_errors(self.url_of(name), "storage.objects.create"):
                    send(name, stream, num_bytes, crc32c)
                return True
            except PreconditionFailed:
                theirs = self.stat(name)
            if theirs is not None and (theirs.num_bytes, theirs.crc32c) != (num_bytes, crc32c):
                ours = (num_bytes, crc32c)
                raise ConflictError(errors.conflict(self.url_of(name), ours, (theirs.num_bytes, str(theirs.crc32c))))
            if theirs is not None:
                return False
        raise StorageError(errors.unsettled(self.url_of(name)))

    def _send(self, name: str, stream: BinaryIO, num_bytes: int, crc32c: str, generation: int | None = 0) -> None:
        stream.seek(0)
        self._send_stream(name, BeatingStream(stream), num_bytes, crc32c, generation)

    def _send_stream(
        self,
        name: str,
        stream: io.RawIOBase,
        num_bytes: int | None = None,
        crc32c: str | None = None,
        generation: int | None = 0,
    ) -> Blob:
        blob = self._blob(name)
        blob.chunk_size = UPLOAD_CHUNK_BYTES
        # Part of the object's metadata in every kind of upload. The library's `checksum` would compute it again and, if
        # the server disagrees, delete whatever object has this name.
        if crc32c is not None:
            blob.crc32c = crc32c
        blob.upload_from_file(
            stream,
            size=num_bytes,
            content_type=_content_type(name),
            if_generation_match=generation,
            checksum=None,
            retry=gcs_client.retry_policy(),
        )
        return blob

    def _blob(self, name: str) -> Blob:
        return gcs_client.client().bucket(self.bucket).blob(self._full(name))

    def _blobs(self, prefix: str, first: str = "", most: int | None = None) -> Iterator[Blob]:
        start = self._full(first) if first else None
        with bucket_errors(self.url_of(prefix), "storage.objects.list"):
            yield from self._listed_blobs(prefix, start_offset=start, max_results=most, fields=LISTED_FIELDS)

    def _listed_blobs(self, prefix: str, **options: Any) -> HTTPIterator:
        full = f"{self._full(prefix)}/" if prefix else self._root
        retry = gcs_client.retry_policy(deadlines=self._deadlines)
        return gcs_client.client().list_blobs(self.bucket, prefix=full, retry=retry, timeout=self._timeout_s, **options)

    def _delete(self, blob: Blob) -> None:
        from google.api_core.exceptions import NotFound

        with contextlib.suppress(NotFound):
            blob.delete(retry=gcs_client.retry_policy())

    def _full(self, name: str) -> str:
        """Return the object's name in its bucket."""
        full = self._root + base.check_name(name)
        try:
            num_bytes = len(full.encode())
        except UnicodeEncodeError:
            raise UsageError(f"object name {quoted(name)} must be UTF-8 text, got other bytes") from None
        if num_bytes > MAX_NAME_BYTES:
            raise UsageError(
                f"object name {quoted(full)} must have at most {MAX_NAME_BYTES:,} bytes, got {num_bytes:,}"
            )
        return full


def _info(name: str, blob: Blob) -> base.ObjectInfo:
    generation = blob.generation
    return base.ObjectInfo(name, blob.size, blob.crc32c, generation, version=generation)


def _content_type(name: str) -> str:
    return CONTENT_TYPES.get(PurePosixPath(name).suffix, "application/octet-stream")


def _session_is_lost(error: Exception) -> bool:
    """Return whether a resumable upload must start again from its first byte."""
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        return error.code in HTTP_SESSION_LOST and not is_missing_bucket(error)
    # The library gives up if the server kept only a part of a chunk.
    return "unexpected state" in str(error)


class StagedGCS(GCSStorage):
    """Storage of `Storage.staged`; objects below `root` itself are uploaded directly."""

    def __init__(
        self, url: str, root: str, still_ours: Callable[[], None], deadlines: gcs_client.Deadlines | None
    ) -> None:
        super().__init__(url, deadlines)
        self._staging, self._still_ours = base.check_name(root), still_ours

    @contextlib.contextmanager
    def sending(self, spool: Path, name: str, expected_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Upload the file under a name in the staging folder; `publish` copies it to its own name."""
        target = name if self._is_staging(name) else self._stage(spool.name)
        with super().sending(spool, target, expected_bytes) as sent:
            yield sent

    def publish(self, spool: Path, name: str, crc32c: str) -> None:
        """Publish with three requests: upload, check whether the place is still ours, copy. A fourth, which is free,
        removes the upload afterwards."""
        if self._is_staging(name):
            super().publish(spool, name, crc32c)
            return
        try:
            num_bytes = spool.stat().st_size
        except FileNotFoundError:
            raise StorageError(errors.spool_gone(spool)) from None
        stage = self._stage(spool.name)
        super().publish(spool, stage, crc32c)
        self._copy(stage, name, (num_bytes, crc32c))

    def create(self, name: str, data: bytes) -> bool:
        """Write the object in the same steps as `publish`."""
        if self._is_staging(name):
            return super().create(name, data)
        stage = self._new_stage(name)
        super().create(stage, data)
        return self._copy(stage, name, (len(data), crc32c_of_bytes(data)))

    def create_last(self, name: str, data: bytes, before: Callable[[], None]) -> bool:
        """Upload and check while `before` runs, then copy. If the place was lost in the meantime, the upload is gone or
        will soon be, as for a writer that is suspended before it copies."""
        if self._is_staging(name):
            return super().create_last(name, data, before)
        stage = self._new_stage(name)
        with ThreadPoolExecutor(1) as threads:
            uploaded = threads.submit(self._upload_ours, stage, data)
            before()
            uploaded.result()
        return self._copy(stage, name, (len(data), crc32c_of_bytes(data)), is_checked=True)

    def _upload_ours(self, stage: str, data: bytes) -> None:
        super().create(stage, data)
        try:
            self._still_ours()
        except BaseException:
            self._discard(stage)
            raise

    def _copy(self, stage: str, name: str, ours: tuple[int, str], *, is_checked: bool = False) -> bool:
        try:
            if not is_checked:
                self._still_ours()
            try:
                made = self.rewrite_from(self, name, lambda num_bytes: None, original_name=stage)
            except (StorageError, FileNotFoundError):
                self._still_ours()
                raise
        except BaseException:
            self._discard(stage)
            raise
        if made is not None:
            _discarding.submit(self._discard, stage)
            return True
        self._discard(stage)
        theirs = self.stat(name)
        if theirs is None:
            raise StorageError(errors.unsettled(self.url_of(name)))
        if (theirs.num_bytes, theirs.crc32c) != ours:
            self._still_ours()
            raise ConflictError(errors.conflict(self.url_of(name), ours, (theirs.num_bytes, str(theirs.crc32c))))
        return False

    def _is_staging(self, name: str) -> bool:
        return name.startswith(f"{self._staging}/")

    def _new_stage(self, name: str) -> str:
        return self._stage(f"{PurePosixPath(name).name[-NAME_CHARACTERS:]}-{uuid4().hex}")

    def _stage(self, file: str) -> str:
        return f"{self._staging}/tmp/{file}"
