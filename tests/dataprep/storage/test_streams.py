"""A stream over ranges gives every byte once and in order, with the next few ranges always in flight."""

from __future__ import annotations

import io
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import StorageError
from dataprep.storage import streams
from dataprep.storage.streams import RANGES_AHEAD, RangeStream
from tests.support.samples import examples


@examples
@given(st.binary(max_size=3000), st.integers(1, 700), st.lists(st.integers(1, 900), max_size=20))
def test_reads_of_any_size_return_the_bytes_in_order(data: bytes, range_bytes: int, sizes: list[int]):
    asked: list[tuple[int, int]] = []

    def read_range(offset: int, num_bytes: int) -> bytes:
        asked.append((offset, num_bytes))
        return data[offset : offset + num_bytes]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "RANGE_BYTES", range_bytes)
        with io.BufferedReader(RangeStream(read_range, len(data)), 64) as stream:
            read = b"".join(stream.read(size) for size in sizes)
            assert read == data[: sum(sizes)]
            assert read + stream.read() == data
    assert sorted(asked) == [(at, min(range_bytes, len(data) - at)) for at in range(0, len(data), range_bytes)]


def test_only_the_next_few_ranges_are_in_flight(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "RANGE_BYTES", 10)
    asked, release = [], threading.Event()

    def read_range(offset: int, num_bytes: int) -> bytes:
        asked.append(offset)
        assert offset == 0 or release.wait(60)
        return bytes(num_bytes)

    stream = RangeStream(read_range, 1000)
    assert stream.readinto(bytearray(4)) == 4
    release.set()
    stream.close()
    assert len(asked) <= RANGES_AHEAD + 1


def test_an_error_of_a_range_is_raised_when_its_bytes_are_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "RANGE_BYTES", 10)

    def read_range(offset: int, num_bytes: int) -> bytes:
        if offset >= 20:
            raise StorageError("the link broke")
        return bytes(num_bytes)

    with RangeStream(read_range, 100) as stream:
        assert [stream.readinto(bytearray(10)) for _ in range(2)] == [10, 10]
        with pytest.raises(StorageError, match="the link broke"):
            stream.readinto(bytearray(10))


def test_a_stream_is_readable_and_does_not_seek():
    with RangeStream(lambda offset, num_bytes: bytes(num_bytes), 5) as stream:
        assert stream.readable()
        assert not stream.seekable()
        assert not stream.writable()
