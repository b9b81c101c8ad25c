"""The interface of a place for bytes, disk or bucket, and the rules for names in it.

Names are relative, with `/`, and never leave the root.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar, runtime_checkable

from dataprep.errors import DataprepError, FormatError, StorageError, UsageError
from dataprep.messages import quoted

MAX_STATS = 64
"""Maximum number of objects that are requested one by one; for more, listing a thousand with each request is faster."""
NO_VERSION = 0
"""Version of an object whose version is not known."""
_FACTOR, _MASK = 0x9E3779B97F4A7C15, (1 << 63) - 1
FORBIDDEN = "\\\0\r\n"
"""Characters that names must not contain: other systems take a backslash for a separator, and disks or Cloud Storage
refuse NUL and line ends."""
T = TypeVar("T")
U = TypeVar("U")
_REFUSED = re.compile(rf"(?:^|/)\.{{0,2}}(?:/|\Z)|[{re.escape(FORBIDDEN)}]")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object."""

    name: str
    num_bytes: int
    crc32c: str | None
    """Base64, as Cloud Storage writes it; None on disk, which does not store it."""
    generation: int | None = field(default=None, compare=False)
    """Version of the object in its bucket; None on disk, which has no versions."""
    written_ns: int | None = field(default=None, compare=False)
    """Time at which a file on disk was last written, in nanoseconds; None in a bucket."""
    changed_ns: int | None = field(default=None, compare=False)
    """Time at which a file on disk was last written, replaced, renamed or touched, in nanoseconds; None in a bucket."""
    version: int = field(default=NO_VERSION, compare=False)
    """Number that differs between versions of the object: its generation in a bucket, `file_version` on disk."""


class Storage(Protocol):
    """A folder on disk or a prefix of a bucket.

    Every call raises AccessError (permission, credential, no such bucket) or StorageError (full disk, broken
    connection after retries), naming the URL; a missing object is None or FileNotFoundError as stated.
    """

    url: str
    """URL of the root, without a trailing slash."""
    is_local: bool
    reads_in_flight: int
    """Number of range reads to keep in flight: 1 where latency is small, 32 and more over a network."""

    def url_of(self, name: str) -> str:
        """Return the full URL or path of an object, for messages."""

    def stat(self, name: str) -> ObjectInfo | None:
        """Return the object's size and, if the store keeps it, its CRC32C; None if the object does not exist."""

    def list(self, prefix: str = "", first: str = "") -> Iterator[ObjectInfo]:
        """Iterate over all objects below a prefix (complete path components, e.g. `train/`), ordered by name; those
        whose names come before `first` are left out, and cost no request in a bucket."""

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        """Return the complete object.

        Raises FileNotFoundError, and TooLargeError if the object has more than `max_bytes` bytes.
        """

    def stats(self, names: Sequence[str]) -> Sequence[ObjectInfo | None]:
        """Return the result of `stat` for each name; in a bucket many are requested, or listed, at a time."""

    def read_range(
        self, name: str, offset: int, num_bytes: int, version: int = NO_VERSION, file_bytes: int | None = None
    ) -> bytes:
        """Return exactly `num_bytes` bytes; many threads may call this.

        Args:
            version: The version to read; NO_VERSION reads any.
            file_bytes: Size that the object must have, if it is known.

        Raises FileNotFoundError, ChangedError for another version, OtherSizeError for another size, and StorageError if
        the object ends before the end of the range.
        """

    def open(self, name: str) -> BinaryIO:
        """Open a sequential, buffered stream over the object, in bounded memory. Raises FileNotFoundError."""

    def spool_path(self, name: str) -> Path:
        """Create a local path for a file that `publish` will later put in place as `name`.

        On disk it is in `_build/tmp/`, or in the `tmp/` of `staged`, on the same file system; for a bucket it is in
        the machine's temporary folder.
        """

    def sending(self, spool: Path, name: str, expected_bytes: int = 0) -> AbstractContextManager[Callable[[int], None]]:
        """Send a spool file while it is written; the context's function takes the number of bytes written so far.

        To a bucket they are uploaded immediately, so that `publish` has little left to do. Nothing is visible before
        `publish`, or after an exception. If many bytes are expected, the upload begins before the first of them.
        """

    def publish(self, spool: Path, name: str, crc32c: str) -> None:
        """Publish a spool file, atomically and only if the name is free, then remove the spool file.

        This syncs the file; the caller need not. An existing object of the same size and CRC32C counts as success.
        Raises ConflictError, naming both, if another object exists.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write a small object, atomically, durably and only if the name is free.

        True if this call wrote it, False if an object of exactly these bytes existed. Raises ConflictError if another
        object exists.
        """

    def create_last(self, name: str, data: bytes, before: Callable[[], None]) -> bool:
        """Write like `create`, but publish only after `before` has returned.

        The bytes are written under another name in the meantime, so on a disk the file's `written_ns` is older than the
        call of `before`.
        """

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a small object atomically and durably if its content is exactly `expected` (None: if it is absent).

        True if this call wrote it. False if the content differs; it is kept. If several callers replace at once, one
        wins and the others read again. On a disk without locks the last one wins.
        """

    def replace_file(self, spool: Path, name: str, crc32c: str, expected: ObjectInfo) -> bool:
        """Replace exactly the expected object with a spool file, atomically and durably, and remove the spool file.

        True if the file is in place, by this call or an earlier one; False if another object exists, which is kept.
        """

    def remove_stale_spools(self) -> int:
        """Remove spool files of this machine whose writers are dead, and return their number.

        On disk, empty folders of spool files are removed as well.
        """

    def staged(self, root: str, still_ours: Callable[[], None]) -> Storage:
        """Return this storage for a writer that may no longer write once the folder `root` is taken away.

        Files for places outside `root` go through `root/tmp/`. On a disk `root` must exist and is not created: after
        `take_away` nothing more can be published, however long the writer was suspended. A disk links from `root/tmp/`;
        a bucket uploads to it, calls `still_ours`, and lets the server copy.

        Args:
            root: Folder of the writer's own state, with a name that is never used again.
            still_ours: Raises if the writer may no longer write; it is called again to explain a failure.
        """

    def alone(self) -> AbstractContextManager[None]:
        """Lock the place against other callers of `alone`, on a disk and for a short time.

        Buckets have no such lock: there generations are compared instead. Raises StorageError if another caller does
        not finish.
        """

    def delete(self, name: str) -> None:
        """Remove one object; a missing one is fine."""

    def delete_tree(self, prefix: str) -> None:
        """Remove everything below a prefix such as `_build`; missing objects are fine."""

    def delete_exactly(self, info: ObjectInfo) -> bool:
        """Remove this object and return whether it existed. A bucket keeps a later object of the same name."""

    def take_away(self, prefix: str) -> None:
        """Remove a tree like `delete_tree`; on disk rename the folder first, so that all paths into it end at once."""

    def prune(self, folders: Iterable[str]) -> None:
        """Remove the folders that are empty, inner ones first. Buckets have no folders."""


@runtime_checkable
class Browsable(Protocol):
    """A bucket that can list one level of its names, or the first few, without listing all."""

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names, without slashes and in order, of the folders directly below a prefix or the root."""

    def first(self, prefix: str, most: int) -> Sequence[ObjectInfo]:
        """Return the first `most` objects below a prefix, as `list` does."""


class Originals(Protocol):
    """The part of a storage that workers need to read originals."""

    @property
    def reads_in_flight(self) -> int:
        """Number of range reads to keep in flight."""

    def url_of(self, name: str) -> str:
        """Return the full URL or path of an object, for messages."""

    def read_range(self, name: str, offset: int, num_bytes: int, version: int = NO_VERSION) -> bytes:
        """Return exactly `num_bytes` bytes of a version; many threads may call this."""

    def reading(self, name: str, version: int = NO_VERSION) -> AbstractContextManager[Callable[[int, int], bytes]]:
        """Open an object to read ranges of one version, given by offset and number of bytes. On a disk a range of a few
        kB then takes a third of the time."""


class ChangedError(StorageError):
    """An object no longer has the requested version."""

    def __init__(self, url: str) -> None:
        self.what = f"{url}: written again, replaced or touched since it was listed"
        super().__init__(f"{self.what}; run the same command again when it is complete")


def file_version(status: os.stat_result) -> int:
    """Return a number that changes when a file is written, replaced, renamed, or its times are set.

    It combines the times of the last write and of the last change of the file's status, which no program can set. The
    inode is left out because some network file systems number files differently on every machine or mount.
    """
    return (status.st_mtime_ns * _FACTOR ^ status.st_ctime_ns) & _MASK or 1


class TooLargeError(FormatError):
    """An object has more bytes than its reader allows."""


class OtherSizeError(FormatError):
    """An object has another size than its index says."""


def read_bounded(
    storage: Storage, name: str, max_bytes: int, *, advice: str, error: type[DataprepError] = FormatError
) -> bytes | None:
    """Read a small object that anyone may have written; None if it does not exist. Raises FormatError, or `error`, if
    it has more than `max_bytes` bytes; `advice` says what the user can do then."""
    try:
        return storage.read(name, max_bytes)
    except FileNotFoundError:
        return None
    except TooLargeError as fault:
        raise error(f"{fault}; {advice}") from None


def listed(storage: Storage, names: Sequence[str]) -> Sequence[ObjectInfo | None]:
    """Return the result of `stat` for each name, from a listing of the deepest folder that holds them all."""
    first, last = min(names).split("/")[:-1], max(names).split("/")[:-1]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    wanted, folder = set(names), "".join(f"{part}/" for part, _ in same)
    found = {info.name: info for info in storage.list(folder) if info.name in wanted}
    return [found.get(name) for name in names]


def read_ahead(read: Callable[[T], U], wanted: Iterable[T], in_flight: int) -> Generator[U]:
    """Yield the result of `read` for each argument, in order; `in_flight` of them are read at a time."""
    if in_flight == 1:
        yield from map(read, wanted)
        return
    with ThreadPoolExecutor(in_flight, thread_name_prefix="dataprep-read") as threads:
        waiting = iter(wanted)
        ahead = deque(threads.submit(read, argument) for argument in islice(waiting, in_flight))
        while ahead:
            found = ahead.popleft().result()
            ahead.extend(threads.submit(read, argument) for argument in islice(waiting, 1))
            yield found


def check_name(name: str) -> str:
    """Return a valid name of an object unchanged. Raises UsageError if it is empty or absolute, or has an empty, `.` or
    `..` component or a forbidden character."""
    if _REFUSED.search(name) is None:
        return name
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(
            f'object name {quoted(name)} must be relative, with parts separated by "/" and none empty, "." or ".."'
        )
    raise UsageError(f"object name {quoted(name)} must hold no backslash, NUL or line end")


def check_prefix(prefix: str) -> str:
    """Return a folder's name without its trailing slash; empty for the root. Raises UsageError as `check_name` does."""
    return check_name(prefix.removesuffix("/")) if prefix else ""
