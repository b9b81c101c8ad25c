"""Where records lie in a file of ArrayRecord: what a reader needs that has ranges of bytes, and no local path.

A file is one of Riegeli: chunks with a header of 40 bytes, one after the other, through which a header of a block of 24
bytes is put at every 64 KiB. For files with one record a chunk, without compression.
Source:  https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md
"""

from __future__ import annotations

import struct
from typing import NamedTuple

BLOCK_BYTES = 64 * 2**10
BLOCK_HEADER_BYTES = 24
CHUNK_HEADER = struct.Struct("<QQQBB6xQ")
"""Hash, bytes of data, hash of data, type of the chunk, number of records (its lowest byte), bytes when decoded."""
RECORDS = ord("r")
VARINT_BITS = 7


class Record(NamedTuple):
    """Where one record lies."""

    first: int
    stop: int
    """Offsets in the file, with the headers of blocks between them."""
    parts: tuple[tuple[int, int], ...]
    """The record's own bytes: first and stop of each part, relative to `first`."""


def records_of(file: bytes) -> list[Record]:
    """Return where the records lie, in their order; the index of the file, which comes after them, is left out."""
    found, at, wanted = [], 0, True
    while wanted and at < len(file):
        header, begin = _read(file, at, CHUNK_HEADER.size)
        _, num_bytes, _, kind, num_records, decoded_bytes = CHUNK_HEADER.unpack(header)
        _, at = _read(file, begin, num_bytes)
        # The index follows the last record: a chunk of several values.
        wanted = kind != RECORDS or num_records == 1
        if kind == RECORDS and wanted:
            _, first = _read(file, begin, num_bytes - decoded_bytes)
            found.append(_record(first, decoded_bytes))
    return found


def joined(data: bytes, record: Record) -> bytes:
    """Return a record, out of the bytes of the file from `record.first` to `record.stop`."""
    return b"".join(data[first:stop] for first, stop in record.parts)


def _record(first: int, num_bytes: int) -> Record:
    parts, at = [], first
    while num_bytes:
        at += BLOCK_HEADER_BYTES if at % BLOCK_BYTES == 0 else 0
        length = min(num_bytes, BLOCK_BYTES - at % BLOCK_BYTES)
        parts.append((at, at + length))
        at, num_bytes = at + length, num_bytes - length
    start = parts[0][0]
    return Record(start, at, tuple((begin - start, stop - start) for begin, stop in parts))


def _read(file: bytes, at: int, num_bytes: int) -> tuple[bytes, int]:
    """Return bytes of chunks from an offset on, and the offset after them."""
    if not num_bytes:
        return b"", at
    record = _record(at, num_bytes)
    return joined(file[record.first : record.stop], record), record.stop
