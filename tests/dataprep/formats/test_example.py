"""tf.train.Example messages: what is written is what the reader of other people's records finds."""

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import FormatError
from dataprep.formats.example import (
    BYTES,
    FRAME_HEAD_BYTES,
    FRAME_TAIL_BYTES,
    INTEGERS,
    LEN_1,
    LEN_2,
    Field,
    byte_ranges,
    bytes_feature,
    checksum,
    example_before,
    features_of,
    fields,
    float_feature,
    floats,
    frame_around,
    frame_head,
    frame_length,
    integer_list,
    integers,
    map_entry,
    masked,
    message,
    read_varint,
    varint,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(NAMES, st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_features_are_read_back(name, data, number):
    entries = map_entry(name.encode(), bytes_feature(data)) + map_entry(b"\0number", integer_list([number]))
    example = message(LEN_1, entries)
    read = reader_of(example)
    found = features_of(read, 0, len(example))
    assert {feature: kept.kind for feature, kept in found.items()} == {name: BYTES, "\0number": INTEGERS}
    assert [example[start:stop] for start, stop in byte_ranges(read, found[name])] == [data]
    assert [value % 2**64 for value in integers(read, found["\0number"])] == [number]


@given(st.floats(allow_nan=False))
def test_float_out_of_range_becomes_the_largest_float32(value):
    example = message(LEN_1, map_entry(b"similarity", float_feature(value)))
    read = reader_of(example)
    (found,) = floats(read, features_of(read, 0, len(example))["similarity"])
    assert abs(found) < 3.5e38
    assert abs(value) > 3.4e38 or abs(found - value) <= abs(value) * 1e-7 + 1e-45


@given(NAMES, st.integers(0, 70_000), st.binary(max_size=40), st.binary(max_size=40))
def test_example_up_to_a_value_and_the_rest_make_the_whole_example(name, num_bytes, before, after):
    data = bytes(num_bytes)
    entries = before + map_entry(name.encode(), bytes_feature(data)) + after
    start = example_before(before, name.encode(), num_bytes, len(after))
    assert start + data + after == message(LEN_1, entries)


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
