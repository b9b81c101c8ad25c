"""tf.train.Example messages and the frames in which a TFRecord file holds them, written by hand.

The messages are few and fixed. The wire format is that of https://protobuf.dev/programming-guides/encoding, the framing
that of TensorFlow's record_writer.h.
"""

from __future__ import annotations

import struct

import google_crc32c

LEN_1, LEN_2, LEN_3 = b"\x0a", b"\x12", b"\x1a"
"""Tags of the wire format: fields 1 to 3 with a length. In a Feature: bytes_list, float_list, int64_list."""
LENGTH = struct.Struct("<Q")
CRC = struct.Struct("<I")
FRAME_HEAD_BYTES = LENGTH.size + CRC.size


def varint(value: int) -> bytes:
    """Base 128, least significant first; `value` is not negative."""
    if value < 0x80:
        return value.to_bytes(1, "little")
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def message(tag: bytes, content: bytes) -> bytes:
    """A field with a length: text, bytes, a message, or numbers packed."""
    return tag + varint(len(content)) + content


def map_entry(name: bytes, feature: bytes) -> bytes:
    """One entry of Features.feature, a map: the name and a Feature's content."""
    return message(LEN_1, message(LEN_1, name) + message(LEN_2, feature))


def map_entry_before(name: bytes, value_bytes: int) -> bytes:
    """The bytes of a map entry before its one value of `value_bytes`, which ends it and so need not be copied."""
    opening = LEN_1 + varint(value_bytes)  # BytesList.value
    opening = LEN_1 + varint(len(opening) + value_bytes) + opening  # Feature.bytes_list
    opening = message(LEN_1, name) + LEN_2 + varint(len(opening) + value_bytes) + opening  # key and value
    return LEN_1 + varint(len(opening) + value_bytes) + opening  # Features.feature


def frame_head(message_bytes: int) -> bytes:
    """What stands before a message in a TFRecord file: its length and the length's checksum."""
    length = LENGTH.pack(message_bytes)
    return length + masked(google_crc32c.value(length))


def masked(crc: int) -> bytes:
    """TFRecord stores CRCs rotated and offset, so that a CRC over data that holds CRCs stays a good one."""
    return CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
