"""Copying one object to a free name: between buckets by the server, else through this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dataprep.errors import ConflictError, StorageError
from dataprep.messages import shell_words
from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.checksums import BLOCK_BYTES, crc32c_hex, crc32c_of, crc32c_of_stream, crc32c_text
from dataprep.storage.errors import GO_ON, described_bytes, disk_errors

if TYPE_CHECKING:
    from dataprep.storage.gcs import GCSStorage


def copy_object(source: Storage, target: Storage, info: ObjectInfo, copied: Callable[[int], None]) -> None:
    """Copy one object under its own name, completely or not at all; an existing copy with the same bytes is success.
    `copied` is called with the number of bytes of every part that was copied; an exception from it ends the copying.

    Raises ConflictError if another object has the name, StorageError if the source differs from the size or CRC32C of
    `info`, or the copy from the source, and FileNotFoundError if the source is gone.
    """
    from dataprep.storage.gcs import GCSStorage

    if isinstance(source, GCSStorage) and isinstance(target, GCSStorage):
        _rewrite(source, target, info, copied)
    else:
        _stream(source, target, info, copied)


def stored_crc32c(storage: Storage, info: ObjectInfo) -> str:
    """Return the CRC32C that the store keeps, or compute it for a file on disk. Raises FileNotFoundError."""
    if info.crc32c is not None:
        return info.crc32c
    with storage.open(info.name) as stream:
        return crc32c_of_stream(stream)


def check_same(target: Storage, info: ObjectInfo, theirs: ObjectInfo) -> None:
    """Raise ConflictError if the object at the target has another size or CRC32C than expected."""
    ours = (info.num_bytes, info.crc32c)
    found = (theirs.num_bytes, stored_crc32c(target, theirs) if theirs.num_bytes == info.num_bytes else theirs.crc32c)
    if found != ours:
        raise ConflictError(
            f"{target.url_of(info.name)}: another object exists there already: {described_bytes(*found)}, expected "
            f"{described_bytes(*ours)}; it was left unchanged: choose another place, or remove it and run the same "
            "command again"
        )


def _rewrite(source: GCSStorage, target: GCSStorage, info: ObjectInfo, copied: Callable[[int], None]) -> None:
    made = target.rewrite_from(source, info.name, copied)
    if made is None:
        theirs = target.stat(info.name)
        if theirs is None:
            raise StorageError(f"{target.url_of(info.name)}: the object keeps appearing and disappearing; {GO_ON}")
        check_same(target, info, theirs)
        return
    if (made.num_bytes, made.crc32c) != (info.num_bytes, info.crc32c):
        target.delete(info.name)
        raise StorageError(_changed(source, info, (made.num_bytes, str(made.crc32c))))


def _stream(source: Storage, target: Storage, info: ObjectInfo, copied: Callable[[int], None]) -> None:
    value, num_bytes = 0, 0
    spool = target.spool_path(info.name)
    with (
        target.sending(spool, info.name) as grown,
        disk_errors(spool),
        source.open(info.name) as reader,
        spool.open("wb") as writer,  # a buffered file writes everything, also if the disk first accepts only a part
    ):
        while block := reader.read(BLOCK_BYTES):
            writer.write(block)
            writer.flush()
            value = crc32c_of(block, value)
            num_bytes += len(block)
            grown(num_bytes)
            copied(len(block))
        crc32c = crc32c_text(value)
        if num_bytes != info.num_bytes or info.crc32c not in (None, crc32c):
            raise StorageError(_changed(source, info, (num_bytes, crc32c)))
    try:
        target.publish(spool, info.name, crc32c)
    except ConflictError:
        if theirs := target.stat(info.name):
            check_same(target, replace(info, crc32c=crc32c), theirs)
        raise


def _changed(source: Storage, info: ObjectInfo, found: tuple[int, str]) -> str:
    return (
        f"{source.url_of(info.name)}: {found[0]:,} bytes with CRC32C {crc32c_hex(found[1])} were copied, "
        f"{info.num_bytes:,} with {crc32c_hex(info.crc32c)} were expected, and the copy was dropped; is it being "
        f"changed? run dataprep verify {shell_words(source.url)}"
    )
