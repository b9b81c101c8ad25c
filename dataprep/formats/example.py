"""tf.train.Example messages: written feature by feature, and read in pieces, whatever program wrote them.

An Example is a map from names to features, and a feature a list of bytes, of floats or of integers. Finding features
reads only the few bytes of names and lengths, never an image. Messages:
tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from dataprep.errors import FormatError
from dataprep.formats.wire import (
    LEN_1,
    LEN_2,
    LEN_3,
    Field,
    Read,
    fields,
    fields_numbered,
    message,
    read_varint,
    varint,
)

BYTES, FLOATS, INTEGERS = 1, 2, 3
"""Kinds of a feature: the numbers of its field in `Feature`."""
MAX_FEATURES = 4096
"""Maximum number of features of one record; a hostile record could hold millions of empty ones."""
MAX_NAME_BYTES = 1024
_MAX_FLOAT32 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
_UINT64 = 2**64 - 1


class Feature(NamedTuple):
    """One feature: its kind, and the byte range of its list of values."""

    kind: int
    start: int
    stop: int


# Writing


def bytes_feature(value: bytes) -> bytes:
    """Write a Feature of one value of bytes, or of text in UTF-8."""
    return message(LEN_1, message(LEN_1, value))


def float_feature(value: float) -> bytes:
    """Write a Feature of one float32; what is out of its range becomes the largest that it holds."""
    return message(LEN_2, message(LEN_1, struct.pack("<f", max(-_MAX_FLOAT32, min(_MAX_FLOAT32, value)))))


def integer_feature(value: int) -> bytes:
    """Write a Feature of one int64, packed."""
    return message(LEN_3, message(LEN_1, varint(value & _UINT64)))


def bytes_list(values: Iterable[bytes]) -> bytes:
    """Return a Feature of any number of byte strings."""
    return message(LEN_1, b"".join(message(LEN_1, value) for value in values))


def float_list(values: Iterable[float]) -> bytes:
    """Return a Feature of any number of float32, whose bits are not changed."""
    packed = b"".join(struct.pack("<f", value) for value in values)
    return message(LEN_2, message(LEN_1, packed) if packed else b"")


def integer_list(values: Iterable[int]) -> bytes:
    """Return a Feature of any number of int64, packed."""
    packed = b"".join(varint(value & _UINT64) for value in values)
    return message(LEN_3, message(LEN_1, packed) if packed else b"")


def map_entry(name: bytes, feature: bytes) -> bytes:
    """Write an entry of an Example's map: the name and a Feature."""
    return message(LEN_1, message(LEN_1, name) + message(LEN_2, feature))


def example_before(entries: bytes, name: bytes, value_bytes: int, entries_after_bytes: int) -> bytes:
    """Write an Example up to one large value, such as an image, which need not be copied.

    Args:
        entries: The encoded map entries that precede the value's entry.
        name: Name of the value.
        value_bytes: Bytes of the value.
        entries_after_bytes: Bytes of the entries that follow the value's entry.
    """
    before = entries + _map_entry_before(name, value_bytes)
    return LEN_1 + varint(len(before) + value_bytes + entries_after_bytes) + before  # Example.features


def _map_entry_before(name: bytes, value_bytes: int) -> bytes:
    """Write a map entry up to its one value, which ends it."""
    opening = LEN_1 + varint(value_bytes)  # BytesList.value
    opening = LEN_1 + varint(len(opening) + value_bytes) + opening  # Feature.bytes_list
    opening = message(LEN_1, name) + LEN_2 + varint(len(opening) + value_bytes) + opening  # key and value
    return LEN_1 + varint(len(opening) + value_bytes) + opening  # Features.feature


# Reading


def features_of(read: Read, start: int, stop: int) -> dict[str, Feature]:
    """Find the features of an Example at [start, stop), in the order in which they lie there.

    Raises:
        FormatError: The bytes are not such a message; the text begins with the offset.
    """
    found: dict[str, Feature] = {}
    for features in fields_numbered(read, start, stop, 1):
        for entry in fields_numbered(read, features.start, features.stop, 1):
            name, feature = "", Feature(0, entry.stop, entry.stop)
            for field in fields(read, entry.start, entry.stop):
                if field.number == 1 and field.has_length:
                    name = _name(read, field)
                elif field.number == 2 and field.has_length:
                    feature = _feature(read, field)
            found[name] = feature
            if len(found) > MAX_FEATURES:
                raise FormatError(
                    f"at byte {entry.start:,}: over {MAX_FEATURES:,} features; expected an image's record"
                )
    return found


def byte_ranges(read: Read, feature: Feature) -> list[tuple[int, int]]:
    """Return [start, stop) of each value of a feature of BYTES. Raises FormatError."""
    return [(field.start, field.stop) for field in fields_numbered(read, feature.start, feature.stop, 1)]


def is_single(read: Read, feature: Feature) -> bool:
    """Return whether a feature holds exactly one value. Raises FormatError."""
    if feature.kind == INTEGERS:
        return len(integers(read, feature)) == 1
    first = next(fields(read, feature.start, feature.stop), None)
    if first is None or first.stop != feature.stop:
        return False
    return feature.kind == BYTES or first.stop - first.start == struct.calcsize("<f")


def integers(read: Read, feature: Feature) -> list[int]:
    """Read the values of a feature of INTEGERS, packed or not. Raises FormatError."""
    values = []
    for field in fields(read, feature.start, feature.stop):
        position = field.start
        while field.number == 1 and position < field.stop:
            value, position = read_varint(read, position, field.stop)
            values.append(value - (1 << 64) if value >> 63 else value)
    return values


def floats(read: Read, feature: Feature) -> list[float]:
    """Read the values of a feature of FLOATS, packed or not. Raises FormatError."""
    values: list[float] = []
    for field in fields(read, feature.start, feature.stop):
        data = read(field.start, field.stop - field.start)
        if field.number != 1 or len(data) % 4:
            raise FormatError(f"at byte {field.start:,}: {len(data)} bytes of floats, expected 4 for each")
        values += struct.unpack(f"<{len(data) // 4}f", data)
    return values


def _feature(read: Read, holder: Field) -> Feature:
    """Return the list of values that a Feature holds; its kind is 0 if there is none."""
    feature = Feature(0, holder.stop, holder.stop)
    for field in fields(read, holder.start, holder.stop):
        if field.number in (BYTES, FLOATS, INTEGERS) and field.has_length:
            feature = Feature(field.number, field.start, field.stop)
    return feature


def _name(read: Read, field: Field) -> str:
    if field.stop - field.start > MAX_NAME_BYTES:
        raise FormatError(f"at byte {field.start:,}: a feature's name of {field.stop - field.start:,} bytes")
    return read(field.start, field.stop - field.start).decode("utf-8", "replace")
