"""tf.train.Example messages written by hand, read by the reader of other people's records."""

from __future__ import annotations

import struct

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from dataprep.adopt.example import BYTES, INTEGERS, byte_ranges, features_of, integers
from dataprep.formats.example import (
    FRAME_HEAD_BYTES,
    LEN_1,
    LEN_3,
    frame_head,
    map_entry,
    map_entry_before,
    masked,
    message,
    varint,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(NAMES, st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_features_are_read_back(name, data, number):
    entries = map_entry(name.encode(), message(LEN_1, message(LEN_1, data)))
    entries += map_entry(b"\0number", message(LEN_3, message(LEN_1, varint(number))))
    example = message(LEN_1, entries)

    def read(offset, num_bytes):
        return example[offset : offset + num_bytes]

    found = features_of(read, 0, len(example))
    assert {feature: kept.kind for feature, kept in found.items()} == {name: BYTES, "\0number": INTEGERS}
    assert [example[start:stop] for start, stop in byte_ranges(read, found[name])] == [data]
    assert [value % 2**64 for value in integers(read, found["\0number"])] == [number]


@given(NAMES, st.integers(0, 70_000))
def test_what_stands_before_a_value_is_all_of_the_entry_but_the_value(name, num_bytes):
    data = bytes(num_bytes)
    assert map_entry_before(name.encode(), num_bytes) + data == map_entry(
        name.encode(), message(LEN_1, message(LEN_1, data))
    )


def test_a_frames_head_has_the_length_and_its_masked_checksum():
    head = frame_head(0x0102)
    assert head[:8] == b"\x02\x01" + bytes(6)
    crc = google_crc32c.value(head[:8])
    (stored,) = struct.unpack("<I", head[8:])
    unmasked = (stored - 0xA282EAD8) % 2**32
    assert ((unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF) == crc
    assert head[8:] == masked(crc)
    assert len(head) == FRAME_HEAD_BYTES
