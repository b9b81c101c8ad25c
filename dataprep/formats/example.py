"""tf.train.Example messages and the frames in which a TFRecord file holds them: written and read by hand.

An Example is a map from names to features, and a feature a list of bytes, of floats or of integers. Finding features
reads only the few bytes of names and lengths, never an image, whatever program wrote them. Neither protobuf nor
TensorFlow is imported. Messages: tensorflow/core/example/{example,feature}.proto; wire format:
https://protobuf.dev/programming-guides/encoding; framing: TensorFlow's record_writer.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
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
BYTES, FLOATS, INTEGERS = 1, 2, 3
"""Kinds of a feature: the numbers of its field in `Feature`."""
MAX_FEATURES = 4096
"""Maximum number of features of one record; a hostile record could hold millions of empty ones."""
MAX_NAME_BYTES = 1024
_MAX_FLOAT32 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
_UINT64 = 2**64 - 1


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
    """Read the length of a message from the head of its frame, or None if its checksum does not match."""
    length, crc = head[: LENGTH.size], head[LENGTH.size :]
    return int(LENGTH.unpack(length)[0]) if crc == checksum(length) else None


def frame_around(start: bytes, value: bytes, end: bytes) -> tuple[bytes, bytes]:
    """Frame the message `start + value + end` as one TFRecord without joining its parts; return the record's bytes
    before `value`, and those after it."""
    crc = google_crc32c.extend(google_crc32c.extend(google_crc32c.value(start), value), end)
    return frame_head(len(start) + len(value) + len(end)) + start, end + masked(crc)


def masked(crc: int) -> bytes:
    """Write a CRC as TFRecord does, rotated and offset, so that a CRC over data that contains CRCs stays useful."""
    return CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def checksum(data: bytes) -> bytes:
    """Return the masked CRC32C of bytes, as a TFRecord file has it."""
    return masked(google_crc32c.value(data))


def fields(read: Read, start: int, stop: int) -> Iterator[Field]:
    """Walk the fields of the message at [start, stop), in order. Raises FormatError if the bytes are not a message; the
    text begins with the offset."""
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
            raise FormatError(f"at byte {position:,}: not a tf.train.Example, a field of type {wire_type}")
        if end > stop or number == 0:
            raise FormatError(f"at byte {position:,}: not a tf.train.Example, a field that passes its message's end")
        yield Field(number, wire_type, position, end)
        position = end


def first_fields(read: Read, start: int, stop: int) -> Iterator[Field]:
    """Walk the fields of number 1, each of which must be length-delimited. Raises FormatError."""
    for field in fields(read, start, stop):
        if field.number == 1:
            if not field.has_length:
                raise FormatError(f"at byte {field.start:,}: not a tf.train.Example, another type of field")
            yield field


def read_varint(read: Read, position: int, stop: int) -> tuple[int, int]:
    """Read a number in base 128; return it and the position after it. Raises FormatError."""
    data = read(position, min(_MAX_VARINT_BYTES, stop - position))
    value = 0
    for count, digit in enumerate(data):
        value |= (digit & 0x7F) << 7 * count
        if digit < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + count + 1
    raise FormatError(f"at byte {position:,}: not a tf.train.Example, a number that does not end")


class Feature(NamedTuple):
    """One feature: its kind, and the byte range of its list of values."""

    kind: int
    start: int
    stop: int


def bytes_feature(value: bytes) -> bytes:
    """Write a Feature of one value of bytes, or of text in UTF-8."""
    return message(LEN_1, message(LEN_1, value))


def float_feature(value: float) -> bytes:
    """Write a Feature of one float32; a value out of range becomes the largest float32."""
    return float_list([max(-_MAX_FLOAT32, min(_MAX_FLOAT32, value))])


def bytes_list(values: Iterable[bytes]) -> bytes:
    """Write a Feature of any number of byte strings."""
    return message(LEN_1, b"".join(message(LEN_1, value) for value in values))


def float_list(values: Iterable[float]) -> bytes:
    """Write a Feature of any number of float32, whose bits are not changed."""
    packed = b"".join(struct.pack("<f", value) for value in values)
    return message(LEN_2, message(LEN_1, packed) if packed else b"")


def integer_list(values: Iterable[int]) -> bytes:
    """Write a Feature of any number of int64, packed."""
    packed = b"".join(varint(value & _UINT64) for value in values)
    return message(LEN_3, message(LEN_1, packed) if packed else b"")


def map_entry(name: bytes, feature: bytes) -> bytes:
    """Write an entry of an Example's map: the name and a Feature."""
    return message(LEN_1, message(LEN_1, name) + message(LEN_2, feature))


def example_before(entries: bytes, name: bytes, value_bytes: int, entries_after_bytes: int) -> bytes:
    """Write an Example up to one large value, such as an image, which need not be copied: after the encoded `entries`
    of its map, and before others with so many bytes."""
    opening = LEN_1 + varint(value_bytes)  # BytesList.value
    opening = LEN_1 + varint(len(opening) + value_bytes) + opening  # Feature.bytes_list
    opening = message(LEN_1, name) + LEN_2 + varint(len(opening) + value_bytes) + opening  # key and value
    before = entries + LEN_1 + varint(len(opening) + value_bytes) + opening  # Features.feature
    return LEN_1 + varint(len(before) + value_bytes + entries_after_bytes) + before  # Example.features


def features_of(read: Read, start: int, stop: int) -> dict[str, Feature]:
    """Find the features of an Example at [start, stop), in their order. Raises FormatError if the bytes are not such a
    message; the text begins with the offset."""
    found: dict[str, Feature] = {}
    for features in first_fields(read, start, stop):
        for entry in first_fields(read, features.start, features.stop):
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
    return [(field.start, field.stop) for field in first_fields(read, feature.start, feature.stop)]


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
