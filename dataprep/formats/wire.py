"""The wire format of protobuf, and the frames in which a TFRecord file holds messages: written and read by hand.

The messages are few and fixed, and neither protobuf nor TensorFlow is imported. The wire format is that of
https://protobuf.dev/programming-guides/encoding, the framing that of TensorFlow's record_writer.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import google_crc32c

from dataprep.errors import FormatError

LEN_1, LEN_2, LEN_3 = b"\x0a", b"\x12", b"\x1a"
"""Tags of the length-delimited fields 1 to 3."""
LENGTH = struct.Struct("<Q")
CRC = struct.Struct("<I")
FRAME_HEAD_BYTES = LENGTH.size + CRC.size
"""Bytes of a TFRecord before its message: the length and the length's checksum."""
FRAME_TAIL_BYTES = CRC.size
"""Bytes of a TFRecord after its message: the message's checksum."""

_VARINT, _FIXED64, _LEN, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Read = Callable[[int, int], bytes]
"""`read(offset, num_bytes)`: the bytes there, fewer where the file ends."""


class Field(NamedTuple):
    """One field of a message: its number, and the byte range of its content."""

    number: int
    wire_type: int
    start: int
    stop: int

    @property
    def has_length(self) -> bool:
        """Whether the field is text, bytes, a message, or packed numbers."""
        return self.wire_type == _LEN


# Writing


def varint(value: int) -> bytes:
    """Write a number in base 128, least significant digit first; `value` is not negative."""
    if value < 0x80:
        return value.to_bytes(1, "little")
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def message(tag: bytes, content: bytes) -> bytes:
    """Write a length-delimited field: text, bytes, a message, or packed numbers."""
    return tag + varint(len(content)) + content


def frame_head(message_bytes: int) -> bytes:
    """Write the head of a message in a TFRecord file: its length and the length's checksum."""
    length = LENGTH.pack(message_bytes)
    return length + checksum(length)


def frame_length(head: bytes) -> int | None:
    """Read the length of a message from the head of its frame, or None where its checksum is another."""
    length, crc = head[: LENGTH.size], head[LENGTH.size :]
    return int(LENGTH.unpack(length)[0]) if crc == checksum(length) else None


def frame_around(start: bytes, value: bytes, end: bytes) -> tuple[bytes, bytes]:
    """Frame the message `start + value + end` as one TFRecord without joining its parts.

    Returns:
        The record's bytes before `value`, and those after it.
    """
    crc = google_crc32c.extend(google_crc32c.extend(google_crc32c.value(start), value), end)
    return frame_head(len(start) + len(value) + len(end)) + start, end + masked(crc)


def masked(crc: int) -> bytes:
    """Write a CRC as TFRecord does, rotated and offset, so that a CRC over data that contains CRCs stays useful."""
    return CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def checksum(data: bytes) -> bytes:
    """Return the masked CRC32C of bytes, as a TFRecord file has it."""
    return masked(google_crc32c.value(data))


# Reading


def fields(read: Read, start: int, stop: int) -> Iterator[Field]:
    """Walk the fields of the message at [start, stop), in order.

    Raises:
        FormatError: The bytes are not a message; the text begins with the offset.
    """
    position = start
    while position < stop:
        tag, position = read_varint(read, position, stop)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _LEN:
            num_bytes, position = read_varint(read, position, stop)
            end = position + num_bytes
        elif wire_type == _VARINT:
            end = read_varint(read, position, stop)[1]
        elif wire_type in (_FIXED32, _FIXED64):
            end = position + (4 if wire_type == _FIXED32 else 8)
        else:
            raise FormatError(f"at byte {position:,}: no tf.train.Example, a field of type {wire_type}")
        if end > stop or number == 0:
            raise FormatError(f"at byte {position:,}: no tf.train.Example, a field that passes its message's end")
        yield Field(number, wire_type, position, end)
        position = end


def fields_numbered(read: Read, start: int, stop: int, number: int) -> Iterator[Field]:
    """Walk the fields of one number, each of which must be length-delimited. Raises FormatError."""
    for field in fields(read, start, stop):
        if field.number == number:
            if not field.has_length:
                raise FormatError(f"at byte {field.start:,}: no tf.train.Example, another type of field")
            yield field


def read_varint(read: Read, position: int, stop: int) -> tuple[int, int]:
    """Read a number in base 128; return it and the position after it. Raises FormatError."""
    data = read(position, min(_MAX_VARINT_BYTES, stop - position))
    value = 0
    for count, digit in enumerate(data):
        value |= (digit & 0x7F) << 7 * count
        if digit < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + count + 1
    raise FormatError(f"at byte {position:,}: no tf.train.Example, a number that does not end")
