"""Zip files byte by byte, also those that no program would write."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

UNIX = 3
REGULAR = 0o100644


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One member; a field that is None has its right value."""

    name: bytes
    data: bytes = b""
    """As stored in the file, i.e. already compressed where `method` says so."""
    method: int = 0
    flags: int = 0
    mode: int = REGULAR
    num_bytes: int | None = None
    """Unpacked size in the directory."""
    packed_bytes: int | None = None
    """Packed size in the directory."""
    header_offset: int | None = None
    disk: int = 0
    extra: bytes = b""
    """Extra field of the entry in the directory."""
    local_name: bytes | None = None
    local_extra: bytes = b""
    local_method: int | None = None
    local_packed_bytes: int | None = None
    local_signature: bytes = b"PK\3\4"
    after: bytes = b""
    """Between the data and the next header."""
    signature: bytes = b"PK\1\2"


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of the archive; a field that is None has its right value."""

    entries: int | None = None
    directory_bytes: int | None = None
    directory_offset: int | None = None
    disk: int = 0
    comment: bytes = b""
    comment_bytes: int | None = None
    zip64: bool = False
    locator_offset: int | None = None
    with_locator: bool = True


def zip_of(files: Mapping[str, bytes | str], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of files by name, as `zipfile` writes it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def zip_file(entries: Sequence[Entry], end: End | None = None, *, prepended: bytes = b"") -> bytes:
    """A whole archive."""
    end = end or End()
    body, directory = b"", b""
    for entry in entries:
        offset = len(body)
        body += local(entry)
        directory += _directory_entry(entry, offset if entry.header_offset is None else entry.header_offset)
    return prepended + body + directory + _end(end, len(entries), len(body), len(directory))


def local(entry: Entry) -> bytes:
    """The local header with the data."""
    name = entry.name if entry.local_name is None else entry.local_name
    packed = len(entry.data) if entry.local_packed_bytes is None else entry.local_packed_bytes
    method = entry.method if entry.local_method is None else entry.local_method
    num_bytes = len(entry.data) if entry.num_bytes is None else entry.num_bytes
    fixed = struct.pack(
        "<4s5H3L2H",
        entry.local_signature,
        20,
        entry.flags,
        method,
        0,
        33,
        zlib.crc32(entry.data),
        packed,
        min(num_bytes, 0xFFFFFFFF),
        len(name),
        len(entry.local_extra),
    )
    return fixed + name + entry.local_extra + entry.data + entry.after


def zip64_extra(*values: int) -> bytes:
    """The extra field that holds what does not fit into 32 bits."""
    return struct.pack("<HH", 1, 8 * len(values)) + struct.pack(f"<{len(values)}Q", *values)


def _directory_entry(entry: Entry, offset: int) -> bytes:
    packed = len(entry.data) if entry.packed_bytes is None else entry.packed_bytes
    num_bytes = len(entry.data) if entry.num_bytes is None else entry.num_bytes
    fixed = struct.pack(
        "<4s4B4HL2L5H2L",
        entry.signature,
        20,
        UNIX,
        20,
        0,
        entry.flags,
        entry.method,
        0,
        33,
        zlib.crc32(entry.data),
        packed,
        num_bytes,
        len(entry.name),
        len(entry.extra),
        0,
        entry.disk,
        0,
        entry.mode << 16,
        offset,
    )
    return fixed + entry.name + entry.extra


def _end(end: End, entries: int, offset: int, num_bytes: int) -> bytes:
    entries = entries if end.entries is None else end.entries
    at = offset + num_bytes
    offset = offset if end.directory_offset is None else end.directory_offset
    num_bytes = num_bytes if end.directory_bytes is None else end.directory_bytes
    comment_bytes = len(end.comment) if end.comment_bytes is None else end.comment_bytes
    if not end.zip64:
        fields = (b"PK\5\6", end.disk, 0, entries, entries, num_bytes, offset, comment_bytes)
        return struct.pack("<4s4H2LH", *fields) + end.comment
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, end.disk, 0, entries, entries, num_bytes, offset)
    locator_offset = at if end.locator_offset is None else end.locator_offset
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, locator_offset, 1) if end.with_locator else b""
    fields = (b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, comment_bytes)
    return record + locator + struct.pack("<4s4H2LH", *fields) + end.comment
