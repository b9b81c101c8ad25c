"""MATLAB 5 files element by element, also those that no program would write."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
STRUCT_CLASS, CHAR_CLASS, DOUBLE_CLASS = 2, 4, 6
FIELDS = ("ILSVRC2012_ID", "WNID", "num_children")


def element(kind: int, data: bytes, num_bytes: int | None = None) -> bytes:
    """A data element of the long form; `num_bytes` replaces what would be right."""
    size = len(data) if num_bytes is None else num_bytes
    return struct.pack("<II", kind, size) + data + bytes(-len(data) % 8)


def compressed(data: bytes) -> bytes:
    """A compressed element: the only one that is not padded."""
    packed = zlib.compress(data)
    return struct.pack("<II", 15, len(packed)) + packed


def matrix(array_class: int, dims: Sequence[int], name: bytes, *parts: bytes) -> bytes:
    """An array of any class."""
    flags = element(6, struct.pack("<II", array_class, 0))
    shape = element(5, struct.pack(f"<{len(dims)}i", *dims))
    return element(14, flags + shape + element(1, name) + b"".join(parts))


def number(value: float) -> bytes:
    """A double of one element."""
    return matrix(DOUBLE_CLASS, (1, 1), b"", element(9, struct.pack("<d", value)))


def text(value: str) -> bytes:
    """A row of characters, stored as MATLAB does."""
    return matrix(CHAR_CLASS, (1, len(value)), b"", element(4, value.encode("utf-16-le")))


def field_names(names: Sequence[str] = FIELDS, length: int = 32) -> bytes:
    """The two parts of a struct array that name its fields."""
    packed = b"".join(name.encode().ljust(length, b"\0") for name in names)
    return element(5, struct.pack("<i", length)) + element(1, packed)


def synsets(rows: Sequence[tuple[float, str, float]], dims: Sequence[int] | None = None) -> bytes:
    """The struct array of meta.mat: ID, WNID and number of children of each."""
    values = b"".join(number(i) + text(wnid) + number(children) for i, wnid, children in rows)
    return matrix(STRUCT_CLASS, dims or (len(rows), 1), b"synsets", field_names(), values)


def mat(*elements: bytes) -> bytes:
    """A whole file."""
    return HEADER + b"".join(elements)
