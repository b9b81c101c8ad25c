"""tf.train.Example messages: what is written is what the reader of other people's records finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.example import (
    BYTES,
    INTEGERS,
    byte_ranges,
    bytes_feature,
    example_before,
    features_of,
    float_feature,
    floats,
    integer_feature,
    integers,
    map_entry,
)
from dataprep.formats.wire import LEN_1, message

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(NAMES, st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_features_are_read_back(name, data, number):
    entries = map_entry(name.encode(), bytes_feature(data)) + map_entry(b"\0number", integer_feature(number))
    example = message(LEN_1, entries)

    def read(offset, num_bytes):
        return example[offset : offset + num_bytes]

    found = features_of(read, 0, len(example))
    assert {feature: kept.kind for feature, kept in found.items()} == {name: BYTES, "\0number": INTEGERS}
    assert [example[start:stop] for start, stop in byte_ranges(read, found[name])] == [data]
    assert [value % 2**64 for value in integers(read, found["\0number"])] == [number]


@given(st.floats(allow_nan=False))
def test_float_out_of_range_becomes_the_largest_float32(value):
    example = message(LEN_1, map_entry(b"similarity", float_feature(value)))

    def read(offset, num_bytes):
        return example[offset : offset + num_bytes]

    (found,) = floats(read, features_of(read, 0, len(example))["similarity"])
    assert abs(found) < 3.5e38
    assert abs(value) > 3.4e38 or abs(found - value) <= abs(value) * 1e-7 + 1e-45


@given(NAMES, st.integers(0, 70_000), st.binary(max_size=40), st.binary(max_size=40))
def test_example_up_to_a_value_and_the_rest_make_the_whole_example(name, num_bytes, before, after):
    data = bytes(num_bytes)
    entries = before + map_entry(name.encode(), bytes_feature(data)) + after
    start = example_before(before, name.encode(), num_bytes, len(after))
    assert start + data + after == message(LEN_1, entries)
