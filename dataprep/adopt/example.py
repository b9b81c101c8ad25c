"""tf.train.Example messages by anyone: where each feature of a record lies, read in pieces.

Only the few bytes that name things are read, never an image. Wire format:
https://protobuf.dev/programming-guides/encoding; messages: tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dataprep.errors import FormatError

FRAME_HEAD_BYTES = 12
"""Of a TFRecord before its message: the length and the length's checksum."""
FRAME_TAIL_BYTES = 4
BYTES, FLOATS, INTEGERS = 1, 2, 3
"""Kinds of a feature: the numbers of its field in `Feature`."""
MAX_FEATURES = 4096
"""Of one record; a hostile one could hold millions of empty ones."""
MAX_NAME_BYTES = 1024

_VARINT, _FIXED64, _LEN, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Read = Callable[[int, int], bytes]
"""`read(offset, num_bytes)`: the bytes there, fewer where the file ends."""


class Feature(NamedTuple):
    """One feature: its kind, and the range of its list of values."""

    kind: int
    start: int
    stop: int


class _Field(NamedTuple):
    number: int
    wire_type: int
    start: int
    stop: int
    """Of the content."""


def features_of(read: Read, start: int, stop: int) -> dict[str, Feature]:
    """The features of an Example message at [start, stop), in the order in which they lie there.

    Raises:
        FormatError: It is no such message; the text begins with the offset.
    """
    found: dict[str, Feature] = {}
    for features in _messages(read, start, stop, 1):
        for entry in _messages(read, features.start, features.stop, 1):
            name, feature = "", Feature(0, entry.stop, entry.stop)
            for field in _fields(read, entry.start, entry.stop):
                if field.number == 1 and field.wire_type == _LEN:
                    name = _name(read, field)
                elif field.number == 2 and field.wire_type == _LEN:
                    feature = _feature(read, field)
            found[name] = feature
            if len(found) > MAX_FEATURES:
                raise FormatError(
                    f"at byte {entry.start:,}: over {MAX_FEATURES:,} features; expected an image's record"
                )
    return found


def byte_ranges(read: Read, feature: Feature) -> list[tuple[int, int]]:
    """[start, stop) of each value of a feature of BYTES. Raises FormatError."""
    return [(field.start, field.stop) for field in _messages(read, feature.start, feature.stop, 1)]


def is_single(read: Read, feature: Feature) -> bool:
    """Whether it holds exactly one value. Raises FormatError."""
    if feature.kind == INTEGERS:
        return len(integers(read, feature)) == 1
    first = next(_fields(read, feature.start, feature.stop), None)
    if first is None or first.stop != feature.stop:
        return False
    return feature.kind == BYTES or first.stop - first.start == struct.calcsize("<f")


def integers(read: Read, feature: Feature) -> list[int]:
    """The values of a feature of INTEGERS, packed or not. Raises FormatError."""
    values = []
    for field in _fields(read, feature.start, feature.stop):
        position = field.start
        while field.number == 1 and position < field.stop:
            value, position = _varint(read, position, field.stop)
            values.append(value - (1 << 64) if value >> 63 else value)
    return values


def floats(read: Read, feature: Feature) -> list[float]:
    """The values of a feature of FLOATS, packed or not. Raises FormatError."""
    values: list[float] = []
    for field in _fields(read, feature.start, feature.stop):
        data = read(field.start, field.stop - field.start)
        if field.number != 1 or len(data) % 4:
            raise FormatError(f"at byte {field.start:,}: {len(data)} bytes of floats, expected 4 for each")
        values += struct.unpack(f"<{len(data) // 4}f", data)
    return values


def _feature(read: Read, message: _Field) -> Feature:
    """The list that a Feature holds; of kind 0 where it holds none."""
    feature = Feature(0, message.stop, message.stop)
    for field in _fields(read, message.start, message.stop):
        if field.number in (BYTES, FLOATS, INTEGERS) and field.wire_type == _LEN:
            feature = Feature(field.number, field.start, field.stop)
    return feature


def _name(read: Read, field: _Field) -> str:
    if field.stop - field.start > MAX_NAME_BYTES:
        raise FormatError(f"at byte {field.start:,}: a feature's name of {field.stop - field.start:,} bytes")
    return read(field.start, field.stop - field.start).decode("utf-8", "replace")


def _messages(read: Read, start: int, stop: int, number: int) -> Iterator[_Field]:
    """The fields of one number, which must have a length."""
    for field in _fields(read, start, stop):
        if field.number == number:
            if field.wire_type != _LEN:
                raise FormatError(f"at byte {field.start:,}: no tf.train.Example, another type of field")
            yield field


def _fields(read: Read, start: int, stop: int) -> Iterator[_Field]:
    position = start
    while position < stop:
        tag, position = _varint(read, position, stop)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _LEN:
            num_bytes, position = _varint(read, position, stop)
            end = position + num_bytes
        elif wire_type == _VARINT:
            end = _varint(read, position, stop)[1]
        elif wire_type in (_FIXED32, _FIXED64):
            end = position + (4 if wire_type == _FIXED32 else 8)
        else:
            raise FormatError(f"at byte {position:,}: no tf.train.Example, a field of type {wire_type}")
        if end > stop or number == 0:
            raise FormatError(f"at byte {position:,}: no tf.train.Example, a field that passes its message's end")
        yield _Field(number, wire_type, position, end)
        position = end


def _varint(read: Read, position: int, stop: int) -> tuple[int, int]:
    """A number in base 128, and the position after it."""
    data = read(position, min(_MAX_VARINT_BYTES, stop - position))
    value = 0
    for count, digit in enumerate(data):
        value |= (digit & 0x7F) << 7 * count
        if digit < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + count + 1
    raise FormatError(f"at byte {position:,}: no tf.train.Example, a number that does not end")
