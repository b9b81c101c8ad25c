"""What a place for bytes can do, whether disk or bucket. All names are relative, with `/`, and never leave the root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object."""

    name: str
    num_bytes: int
    crc32c: str | None
    """Base64 as Cloud Storage writes it, or None where the store does not keep it (disk)."""


class Storage(Protocol):
    """A folder on disk or a prefix of a bucket.

    Every call raises AccessError (permission, credential, no such bucket) or StorageError (full disk, broken
    connection after retries), naming the URL; a missing object is None or FileNotFoundError as stated.
    """

    url: str
    """Of the root, without a trailing slash."""
    is_local: bool
    reads_in_flight: int
    """How many ranges a reader should have under way: 1 where latency is small, 32 and more over a network."""

    def url_of(self, name: str) -> str:
        """The full URL or path of an object, for messages."""

    def stat(self, name: str) -> ObjectInfo | None:
        """The object's size and, where kept, CRC32C; None when it does not exist."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects below a prefix (a whole path component, e.g. `train/`), in the order of their names."""

    def read(self, name: str) -> bytes:
        """The whole object. Raises FileNotFoundError."""

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytes:
        """Exactly `num_bytes` bytes; safe to call from many threads. Raises FileNotFoundError, and StorageError when
        the object ends before."""

    def open(self, name: str) -> BinaryIO:
        """A sequential, buffered stream over the object, in bounded memory. Raises FileNotFoundError."""

    def spool_path(self, name: str) -> Path:
        """A fresh local path on which to write what `publish` will put in place as `name`. On disk it lies under
        `_build/tmp/`, on the same file system; for a bucket in the machine's temporary folder."""

    def sending(self, spool: Path, name: str) -> AbstractContextManager[Callable[[int], None]]:
        """While a spool file is written: the function is told how many bytes of it there are. A bucket gets them at
        once, so that `publish` has little left to do; nothing is visible before, and nothing after an exception."""

    def publish(self, spool: Path, name: str, crc32c: str) -> None:
        """Put a spooled file in place, create-only and atomically, then remove the spool file. The caller has not
        fsynced; this does. An object of the same size and CRC32C already there is success.

        Raises ConflictError, naming both, when another object is there.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write a small object, create-only and atomically (disk: fsynced, directory too). True when this call wrote
        it, False when an object of exactly these bytes was there already. Raises ConflictError otherwise."""

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Write a small object where exactly `expected` stands, None for nothing, atomically and durably. True when
        this call wrote it; False when something else stands there, which stays: of several at once one wins, and
        the others read again. Where a disk has no locks, the last of several wins."""

    def replace_file(self, spool: Path, name: str, crc32c: str, expected: ObjectInfo) -> bool:
        """Put a spooled file in place of exactly the object that is expected, atomically and durably, and remove the
        spool file. True when it stands there, by this call or an earlier one; False when something else does, which
        stays."""

    def remove_stale_spools(self) -> int:
        """Remove spool files of this machine whose writers are dead; the number of them. On disk also the folders
        for them, where nothing is left inside."""

    def delete(self, name: str) -> None:
        """Remove one object; a missing one is fine."""

    def delete_tree(self, prefix: str) -> None:
        """Remove everything below a prefix such as `_build`; repeatable, and missing things are fine."""
