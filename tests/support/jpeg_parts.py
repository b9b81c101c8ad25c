"""JPEG files with segments left out or replaced (ITU-T T.81, annex B)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

QUANTISATION_TABLES, HUFFMAN_TABLES, RESTART_INTERVAL, ADOBE, SCAN = 0xDB, 0xC4, 0xDD, 0xEE, 0xDA


def segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield marker and bytes of each segment; the last is the first scan with all that follows it."""
    at = 2
    while (marker := data[at + 1]) != SCAN:
        stop = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        yield marker, data[at:stop]
        at = stop
    yield SCAN, data[at:]


def without(data: bytes, *markers: int) -> bytes:
    """The file without the segments of these markers. Motion-JPEG frames have no HUFFMAN_TABLES."""
    return data[:2] + b"".join(part for marker, part in segments(data) if marker not in markers)


def with_huffman_tables(data: bytes, *tables: tuple[int, bytes, bytes]) -> bytes:
    """The file with these tables in place of its own: class and number, 16 counts of codes by length, symbols."""
    content = b"".join(bytes([number]) + counts + symbols for number, counts, symbols in tables)
    segment = b"\xff\xc4" + struct.pack(">H", 2 + len(content)) + content
    found = ((segment + part if marker == SCAN else part) for marker, part in segments(without(data, HUFFMAN_TABLES)))
    return data[:2] + b"".join(found)


def with_empty_huffman_tables(data: bytes) -> bytes:
    """The file with tables that have no code at all, as many as a baseline file may use."""
    return with_huffman_tables(data, *((number, bytes(16), b"") for number in (0x00, 0x01, 0x10, 0x11)))


def many_scans(scans: int, side: int) -> bytes:
    """A progressive image of a few bytes a scan, each of which is a pass over all its pixels."""

    def segment(marker: int, content: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content

    one_code = bytes([1] + [0] * 15)
    header = segment(0xDB, b"\0" + bytes([1] * 64))
    header += segment(0xC2, struct.pack(">BHHB", 8, side, side, 3) + bytes([1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]))
    header += segment(0xC4, b"\x00" + one_code + b"\0") + segment(0xC4, b"\x10" + one_code + b"\xe0")
    first = segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 0, 0])) + bytes(20)
    more = (segment(0xDA, bytes([1, 1 + number % 3, 0, 1, 63, 0])) + bytes(12) for number in range(scans - 1))
    return b"\xff\xd8" + header + first + b"".join(more) + b"\xff\xd9"
