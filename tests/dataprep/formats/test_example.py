"""tf.train.Example messages: what is written is what the reader of other people's records finds."""

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import FormatError
from dataprep.formats import example

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(NAMES, st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_features_are_read_back(name, data, number):
    entries = example.map_entry(name.encode(), example.bytes_feature(data)) + example.map_entry(
        b"\0number", example.integer_list([number])
    )
    whole = example.message(example.LEN_1, entries)
    read = reader_of(whole)
    found = example.features_of(read, 0, len(whole))
    assert {feature: kept.kind for feature, kept in found.items()} == {
        name: example.BYTES,
        "\0number": example.INTEGERS,
    }
    assert [whole[start:stop] for start, stop in example.byte_ranges(read, found[name])] == [data]
    assert [value % 2**64 for value in example.integers(read, found["\0number"])] == [number]


@given(st.floats(allow_nan=False))
def test_float_out_of_range_becomes_the_largest_float32(value):
    whole = example.message(example.LEN_1, example.map_entry(b"similarity", example.float_feature(value)))
    read = reader_of(whole)
    (found,) = example.floats(read, example.features_of(read, 0, len(whole))["similarity"])
    assert abs(found) < 3.5e38
    assert abs(value) > 3.4e38 or abs(found - value) <= abs(value) * 1e-7 + 1e-45


@given(NAMES, st.integers(0, 70_000), st.binary(max_size=40), st.binary(max_size=40))
def test_example_up_to_a_value_and_the_rest_make_the_whole_example(name, num_bytes, before, after):
    data = bytes(num_bytes)
    entries = before + example.map_entry(name.encode(), example.bytes_feature(data)) + after
    start = example.example_before(before, name.encode(), num_bytes, len(after))
    assert start + data + after == example.message(example.LEN_1, entries)


def reader_of(data):
    return lambda offset, num_bytes: data[offset : offset + num_bytes]


def test_frame_head_has_the_length_and_its_masked_checksum():
    head = example.frame_head(0x0102)
    assert head[:8] == b"\x02\x01" + bytes(6)
    crc = google_crc32c.value(head[:8])
    (stored,) = struct.unpack("<I", head[8:])
    unmasked = (stored - 0xA282EAD8) % 2**32
    assert ((unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF) == crc
    assert head[8:] == example.masked(crc)
    assert len(head) == example.FRAME_HEAD_BYTES


@given(st.binary(max_size=50), st.binary(max_size=50), st.binary(max_size=50))
def test_frame_around_a_value_is_the_frame_of_the_joined_message(start, value, end):
    head, tail = example.frame_around(start, value, end)
    whole = start + value + end
    assert head + value + tail == example.frame_head(len(whole)) + whole + example.checksum(whole)
    assert len(head + value + tail) == example.FRAME_HEAD_BYTES + len(whole) + example.FRAME_TAIL_BYTES


@given(st.integers(0, 2**64 - 1), st.integers(0, 12 * 8 - 1))
def test_frame_length_is_read_only_where_its_checksum_is_right(length, bit):
    head = example.frame_head(length)
    assert example.frame_length(head) == length
    flipped = bytearray(head)
    flipped[bit // 8] ^= 1 << bit % 8
    assert example.frame_length(bytes(flipped)) is None


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_number_in_base_128_is_read_back(value, after):
    data = example.varint(value) + after
    assert example.read_varint(reader_of(data), 0, len(data)) == (value, len(example.varint(value)))


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_fields_of_a_message_are_walked_in_order(contents):
    data = b"".join(
        example.message(example.LEN_2 if at % 2 else example.LEN_1, content) for at, content in enumerate(contents)
    )
    found = list(example.fields(reader_of(data), 0, len(data)))
    assert [data[field.start : field.stop] for field in found] == contents
    assert [field.number for field in found] == [1 + at % 2 for at in range(len(contents))]
    assert all(field.has_length for field in found)


def test_field_that_passes_the_end_of_its_message_is_refused():
    data = example.message(example.LEN_1, b"abc")
    assert list(example.fields(reader_of(data), 0, len(data))) == [example.Field(1, 2, 2, 5)]
    with pytest.raises(FormatError, match=r"^at byte 2: .* a field that passes its message's end$"):
        list(example.fields(reader_of(data), 0, len(data) - 1))
    with pytest.raises(FormatError, match=r"^at byte 1: .* a number that does not end$"):
        list(example.fields(reader_of(b"\x08" + b"\x80" * 11), 0, 12))
