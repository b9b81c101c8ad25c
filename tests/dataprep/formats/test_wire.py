"""Protobuf's wire format and the frames of TFRecord files."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import FormatError
from dataprep.formats.wire import (
    FRAME_HEAD_BYTES,
    FRAME_TAIL_BYTES,
    LEN_1,
    LEN_2,
    Field,
    checksum,
    fields,
    frame_around,
    frame_head,
    frame_length,
    masked,
    message,
    read_varint,
    varint,
)


def reader_of(data):
    return lambda offset, num_bytes: data[offset : offset + num_bytes]


def test_frame_head_has_the_length_and_its_masked_checksum():
    head = frame_head(0x0102)
    assert head[:8] == b"\x02\x01" + bytes(6)
    crc = google_crc32c.value(head[:8])
    (stored,) = struct.unpack("<I", head[8:])
    unmasked = (stored - 0xA282EAD8) % 2**32
    assert ((unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF) == crc
    assert head[8:] == masked(crc)
    assert len(head) == FRAME_HEAD_BYTES


@given(st.binary(max_size=50), st.binary(max_size=50), st.binary(max_size=50))
def test_frame_around_a_value_is_the_frame_of_the_joined_message(start, value, end):
    head, tail = frame_around(start, value, end)
    whole = start + value + end
    assert head + value + tail == frame_head(len(whole)) + whole + checksum(whole)
    assert len(head + value + tail) == FRAME_HEAD_BYTES + len(whole) + FRAME_TAIL_BYTES


@given(st.integers(0, 2**64 - 1), st.integers(0, 12 * 8 - 1))
def test_frame_length_is_read_only_where_its_checksum_is_right(length, bit):
    head = frame_head(length)
    assert frame_length(head) == length
    flipped = bytearray(head)
    flipped[bit // 8] ^= 1 << bit % 8
    assert frame_length(bytes(flipped)) is None


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_number_in_base_128_is_read_back(value, after):
    data = varint(value) + after
    assert read_varint(reader_of(data), 0, len(data)) == (value, len(varint(value)))


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_fields_of_a_message_are_walked_in_order(contents):
    data = b"".join(message(LEN_2 if at % 2 else LEN_1, content) for at, content in enumerate(contents))
    found = list(fields(reader_of(data), 0, len(data)))
    assert [data[field.start : field.stop] for field in found] == contents
    assert [field.number for field in found] == [1 + at % 2 for at in range(len(contents))]
    assert all(field.has_length for field in found)


def test_field_that_passes_the_end_of_its_message_is_refused():
    data = message(LEN_1, b"abc")
    assert list(fields(reader_of(data), 0, len(data))) == [Field(1, 2, 2, 5)]
    with pytest.raises(FormatError, match=r"^at byte 2: .* a field that passes its message's end$"):
        list(fields(reader_of(data), 0, len(data) - 1))
    with pytest.raises(FormatError, match=r"^at byte 1: .* a number that does not end$"):
        list(fields(reader_of(b"\x08" + b"\x80" * 11), 0, 12))
