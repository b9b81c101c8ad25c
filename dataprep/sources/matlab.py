"""Reads struct arrays from a MATLAB 5 file, as far as ImageNet's meta.mat needs them.

Not read by `scipy.io.loadmat`, which allocates what a header claims and unpacks compressed elements without a limit:
the file comes from a stranger's archive. Format: "MAT-File Format", MathWorks, Level 5.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator
from typing import NamedTuple

from dataprep.errors import SourceError

MAX_UNPACKED_BYTES = 16 * 2**20
"""Maximum size of an unpacked element; that of meta.mat has about 2 MB."""
MAX_FIELDS = 64

_HEADER_BYTES = 128
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16"}
_STRUCT_CLASS, _CHAR_CLASS = 2, 4


class _Element(NamedTuple):
    kind: int
    data: memoryview


def read_structs(data: bytes, name: str, fields: Collection[str]) -> list[dict[str, str | float]]:
    """Read the elements of a struct array, in its order, with the requested fields.

    Args:
        data: The whole file.
        name: Name of the variable.
        fields: Names of fields, each a text or a single number in every element.

    Raises:
        SourceError: The file has no such variable or cannot be read; the message is a clause.
    """
    mark = data[_HEADER_BYTES - 2 : _HEADER_BYTES]
    if mark not in (b"IM", b"MI"):
        raise SourceError("it is no MATLAB 5 file")
    order = "<" if mark == b"IM" else ">"
    for element in _elements(memoryview(data)[_HEADER_BYTES:], order):
        if element.kind == _COMPRESSED:
            element = next(_elements(_inflate(element.data), order), _Element(0, element.data))
        if element.kind != _MATRIX:
            continue
        parts = _elements(element.data, order)
        array_class, count = _shape(parts, order)
        if bytes(_take(parts, _INT8)) == name.encode() and array_class == _STRUCT_CLASS:
            return list(_structs(parts, order, count, fields))
    raise SourceError(f"it holds no struct array {name!r}")


def _elements(data: memoryview, order: str) -> Iterator[_Element]:
    at = 0
    while at < len(data):
        if at + 8 > len(data):
            raise SourceError("it is truncated inside an element")
        kind, num_bytes = struct.unpack_from(order + "II", data, at)
        start = at + 8
        if kind >> 16:  # a small element: size and type share four bytes, the data are the other four
            kind, num_bytes, start = kind & 0xFFFF, kind >> 16, at + 4
            padded = 4
        else:
            padded = num_bytes if kind == _COMPRESSED else -(-num_bytes // 8) * 8
        if num_bytes > padded or start + num_bytes > len(data):
            raise SourceError(f"an element of {num_bytes:,} bytes reaches beyond its end")
        yield _Element(kind, data[start : start + num_bytes])
        at = start + padded


def _inflate(data: memoryview) -> memoryview:
    inflate = zlib.decompressobj()
    try:
        unpacked = inflate.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise SourceError(f"a compressed element cannot be read: {error}") from error
    if not inflate.eof:
        raise SourceError(f"a compressed element is truncated or unpacks to over {MAX_UNPACKED_BYTES:,} bytes")
    return memoryview(unpacked)


def _take(parts: Iterator[_Element], kind: int) -> memoryview:
    """Take the data of the next part, which must be of this type."""
    part = next(parts, None)
    if part is None or part.kind != kind:
        raise SourceError("an array without its header")
    return part.data


def _shape(parts: Iterator[_Element], order: str) -> tuple[int, int]:
    """Read the class of an array, and its number of elements."""
    flags, dims = _take(parts, _UINT32), _take(parts, _INT32)
    if len(flags) != 8 or len(dims) not in range(8, 33, 4):
        raise SourceError("an array without its shape")
    count = 1
    for size in struct.unpack(f"{order}{len(dims) // 4}i", dims):
        count *= size
    if count < 0:
        raise SourceError("an array of negative size")
    return struct.unpack_from(order + "I", flags)[0] & 0xFF, count


def _structs(
    parts: Iterator[_Element], order: str, count: int, fields: Collection[str]
) -> Iterator[dict[str, str | float]]:
    length_field = _take(parts, _INT32)
    names_field = bytes(_take(parts, _INT8))
    length = struct.unpack(order + "i", length_field)[0] if len(length_field) == 4 else 0
    if length < 1 or len(names_field) % length or len(names_field) // length > MAX_FIELDS:
        raise SourceError("a struct array without its field names")
    cut = (names_field[at : at + length] for at in range(0, len(names_field), length))
    names = [name.split(b"\0", 1)[0].decode("latin-1") for name in cut]
    if missing := sorted(set(fields) - set(names)):
        raise SourceError(f"its elements have no field {missing[0]!r}")
    for _ in range(count):
        values = {name: _take(parts, _MATRIX) for name in names}
        yield {name: _value(values[name], order) for name in fields}


def _value(matrix: memoryview, order: str) -> str | float:
    """Read a text, or a single number."""
    parts = _elements(matrix, order)
    array_class, count = _shape(parts, order)
    _take(parts, _INT8)
    part = next(parts, _Element(0, matrix[:0]))
    if array_class == _CHAR_CLASS and part.kind in _TEXTS:
        encoding = _TEXTS[part.kind]
        if encoding == "utf-16":
            encoding = "utf-16-le" if order == "<" else "utf-16-be"
        return bytes(part.data).decode(encoding, "replace")
    code = _NUMBERS.get(part.kind)
    if code is None or count != 1 or len(part.data) != struct.calcsize(code):
        raise SourceError("a field that is neither a text nor one number")
    return float(struct.unpack(order + code, part.data)[0])
