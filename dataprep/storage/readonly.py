"""Reads over a network, and read-only storage: the common part of the Hugging Face Hub, S3, Azure Blob Storage and web
servers; and a bucket of originals that requests the archives of a dataset together, and remembers listed objects."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NoReturn, cast

from dataprep.arrays import NDArray, np
from dataprep.errors import StorageError, UsageError
from dataprep.host.heartbeat import beat
from dataprep.storage import base
from dataprep.storage.errors import bad_range, ends_before, missing, other_size, too_large
from dataprep.storage.ranges import RangeStream

STREAM_BUFFER_BYTES = 1 << 20


class RemoteReads(ABC):
    """Reads of a place over a network, all from calls that a subclass has. See `Storage` for the contract of each."""

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
    def read_range(
        self, name: str, offset: int, num_bytes: int, version: int = base.NO_VERSION, file_bytes: int | None = None
    ) -> bytes: ...

    def stats(self, names: Sequence[str]) -> Sequence[base.ObjectInfo | None]:
        """Ask for several objects at the same time; for many in a bucket, list the folder that holds them all."""
        distinct = dict.fromkeys(names)
        if len(distinct) > base.MAX_STATS and isinstance(self, base.Browsable):
            return base.listed(cast(base.Storage, self), names)
        with ThreadPoolExecutor(self.reads_in_flight) as threads:
            found = dict(zip(distinct, threads.map(self.stat, distinct), strict=True))
        return [found[name] for name in names]

    def open(self, name: str) -> BinaryIO:
        """Open a stream that reads 4 MiB of one version at a time, and four of these ahead."""
        info = self._existing(name)
        stream = RangeStream(lambda offset, count: self.read_range(name, offset, count, info.version), info.num_bytes)
        return io.BufferedReader(stream, STREAM_BUFFER_BYTES)

    def _existing(self, name: str) -> base.ObjectInfo:
        info = self.stat(name)
        if info is None:
            raise missing(self.url_of(name))
        return info


class ReadOnlyStorage(RemoteReads):
    """A read-only place: every call that writes raises UsageError. See `Storage` for the contract of each."""

    @abstractmethod
    def _get(self, name: str, offset: int, num_bytes: int) -> tuple[bytes, base.ObjectInfo | None]:
        """Read at least 1 byte with one request, which is repeated if it breaks off. Return the bytes, fewer if the
        object ends before; and the object, if the answer describes it. Raises FileNotFoundError."""

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        info = self._existing(name)
        if max_bytes is not None and info.num_bytes > max_bytes:
            raise base.TooLargeError(too_large(self.url_of(name), info.num_bytes, max_bytes))
        return self.read_range(name, 0, info.num_bytes, info.version)

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
                raise StorageError(ends_before(url, offset, num_bytes, info.num_bytes))
        return data

    def _refuse(self, *_arguments: Any, **_options: Any) -> NoReturn:
        raise UsageError(f"{self.url}: dataprep only reads from there; write to a folder or gs://bucket/prefix")

    spool_path = sending = publish = create = create_last = replace = replace_file = _refuse
    remove_stale_spools = staged = alone = delete = delete_tree = delete_exactly = take_away = prune = _refuse


class Expected:
    """Wrapper of a storage that remembers the metadata of expected objects, and sizes and versions of listed ones. It
    pickles as the wrapped storage."""

    def __init__(self, storage: base.Storage) -> None:
        self._storage = storage
        self._known: dict[str, base.ObjectInfo | None] = {}
        # 24 bytes for each object; the names of a million objects would take 150 MB.
        self._listed = array("q"), array("q"), array("q")
        """Hash of the name, size and version of each listed object."""
        self._order: NDArray[np.int64] | None = None
        """Positions of the listed objects, sorted by their hashes; None after further objects were listed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __reduce__(self) -> Any:
        return self._storage.__reduce__()

    def expect(self, names: Sequence[str]) -> None:
        """Request the metadata of some objects concurrently, for later calls of `stat`."""
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        if new:
            with ThreadPoolExecutor(len(new)) as threads:
                self._known |= dict(zip(new, threads.map(self._storage.stat, new), strict=True))

    def stat(self, name: str) -> base.ObjectInfo | None:
        """Return the object's metadata; with one request if it was not expected."""
        return self._known[name] if name in self._known else self._storage.stat(name)

    def list(self, prefix: str = "", first: str = "") -> Iterator[base.ObjectInfo]:
        """List objects, and remember their sizes and versions."""
        for info in self._storage.list(prefix, first):
            for column, value in zip(self._listed, (hash(info.name), info.num_bytes, info.version), strict=True):
                column.append(value)
            self._order = None
            yield info

    def stats(self, names: Sequence[str]) -> Sequence[base.ObjectInfo | None]:
        """Return the known metadata of each object, and request the others."""
        found = {name: self._known.get(name) or self._as_listed(name) for name in dict.fromkeys(names)}
        unknown = [name for name, info in found.items() if info is None]
        if len(unknown) > base.MAX_STATS:
            found |= dict(zip(unknown, base.listed(cast(base.Storage, self), unknown), strict=True))
        else:
            asked = dict(zip(unknown, self._storage.stats(unknown), strict=True))
            found |= asked
            self._known |= asked
        return [found[name] for name in names]

    def _as_listed(self, name: str) -> base.ObjectInfo | None:
        """Return an object as it was first listed, without its checksum; None if it was not listed."""
        hashes, sizes, versions = self._listed
        if not hashes:
            return None
        if self._order is None:
            self._order = np.argsort(np.array(hashes), kind="stable")
        at = int(np.searchsorted(np.frombuffer(hashes, np.int64), hash(name), sorter=self._order))
        if at == len(self._order) or hashes[position := int(self._order[at])] != hash(name):
            return None
        return base.ObjectInfo(name, sizes[position], None, version=versions[position])
