"""Read-only storage: the common part of the Hugging Face Hub, S3, Azure Blob Storage and web servers."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NoReturn

from dataprep.errors import StorageError, UsageError
from dataprep.host.heartbeat import beat
from dataprep.storage import base
from dataprep.storage.errors import bad_range, ends_before, missing, other_size, too_large
from dataprep.storage.ranges import RangeStream

STREAM_BUFFER_BYTES = 1 << 20


class ReadOnlyStorage(ABC):
    """A read-only place: every call that writes raises UsageError. See `Storage` for the contract of each."""

    url: str
    is_local = False
    reads_in_flight = 32

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    @abstractmethod
    def stat(self, name: str) -> base.ObjectInfo | None: ...

    @abstractmethod
    def list(self, prefix: str = "", first: str = "") -> Iterator[base.ObjectInfo]: ...

    @abstractmethod
    def _get(self, name: str, offset: int, num_bytes: int) -> tuple[bytes, base.ObjectInfo | None]:
        """Read bytes with one request, which is repeated if it breaks off.

        Args:
            name: A valid name.
            num_bytes: At least 1.

        Returns:
            The bytes, fewer if the object ends before; and the object, if the answer describes it.

        Raises FileNotFoundError.
        """

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        info = self._existing(name)
        if max_bytes is not None and info.num_bytes > max_bytes:
            raise base.TooLargeError(too_large(self.url_of(name), info.num_bytes, max_bytes))
        return self.read_range(name, 0, info.num_bytes, info.version)

    def stats(self, names: Sequence[str]) -> Sequence[base.ObjectInfo | None]:
        distinct = dict.fromkeys(names)
        with ThreadPoolExecutor(self.reads_in_flight) as threads:
            found = dict(zip(distinct, threads.map(self.stat, distinct), strict=True))
        return [found[name] for name in names]

    def read_range(
        self, name: str, offset: int, num_bytes: int, version: int = base.NO_VERSION, file_bytes: int | None = None
    ) -> bytes:
        url = self.url_of(base.check_name(name))
        if offset < 0 or num_bytes < 0:
            raise UsageError(bad_range(url, offset, num_bytes))
        if num_bytes == 0:
            return b""
        data, info = self._get(name, offset, num_bytes)
        beat()
        if info is None and (len(data) != num_bytes or file_bytes is not None):
            info = self._existing(name)
        if info is not None:
            if version and info.version != version:
                raise base.ChangedError(url)
            if file_bytes is not None and info.num_bytes != file_bytes:
                raise base.OtherSizeError(other_size(url, info.num_bytes, file_bytes))
        if len(data) != num_bytes:
            raise StorageError(ends_before(url, offset, num_bytes, info.num_bytes if info else len(data)))
        return data

    def open(self, name: str) -> BinaryIO:
        info = self._existing(name)
        stream = RangeStream(lambda offset, count: self.read_range(name, offset, count, info.version), info.num_bytes)
        return io.BufferedReader(stream, STREAM_BUFFER_BYTES)

    def _existing(self, name: str) -> base.ObjectInfo:
        info = self.stat(name)
        if info is None:
            raise missing(self.url_of(name))
        return info

    def _refuse(self, *_arguments: Any, **_options: Any) -> NoReturn:
        raise UsageError(f"{self.url}: dataprep only reads from there; write to a folder or gs://bucket/prefix")

    spool_path = sending = publish = create = create_last = replace = replace_file = _refuse
    remove_stale_spools = staged = alone = delete = delete_tree = delete_exactly = take_away = prune = _refuse
