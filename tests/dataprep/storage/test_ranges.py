"""Stored objects read in parts: as a seekable file, and with a window around the last read."""

import io
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import StorageError
from dataprep.storage import open_storage, ranges
from dataprep.storage.ranges import RANGES_AHEAD, RangeFile, RangeStream, RangeWindow
from tests.support.samples import examples


@given(
    num_bytes=st.integers(0, 60),
    window_bytes=st.integers(0, 80),
    reads=st.lists(st.tuples(st.integers(0, 70), st.integers(-1, 70)), max_size=8),
)
def test_range_file_reads_as_a_file(num_bytes, window_bytes, reads):
    data = bytes(range(num_bytes))
    with TemporaryDirectory() as folder:
        (Path(folder) / "a").write_bytes(data)
        file, expected = RangeFile(open_storage(folder), "a", window_bytes), io.BytesIO(data)
        for offset, count in reads:
            assert (file.seek(offset), file.read(count)) == (expected.seek(offset), expected.read(count))
            assert file.tell() == expected.tell()


@pytest.fixture
def requests(storage, monkeypatch):
    found, read_range = [], type(storage).read_range
    monkeypatch.setattr(type(storage), "read_range", lambda *call: (found.append(call[2:4]), read_range(*call))[1])
    return found


def test_reads_within_the_window_are_one_request(storage, requests):
    storage.create("plan", bytes(300_000))
    file = RangeFile(storage, "plan", 2**20)
    for offset, count in [(299_000, 1000), (0, 4), (100_000, 50_000), (150_000, 10)]:
        file.seek(offset)
        assert len(file.read(count)) == count
    assert requests == [(0, 300_000)]


@given(
    num_bytes=st.integers(0, 60),
    expected=st.lists(st.tuples(st.integers(-10, 80), st.integers(-10, 80)), max_size=5),
    reads=st.lists(st.tuples(st.integers(0, 70), st.integers(-1, 70)), max_size=8),
    gap_bytes=st.integers(0, 10),
)
def test_expected_ranges_change_no_byte(num_bytes, expected, reads, gap_bytes):
    data = bytes(range(num_bytes))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_GAP_BYTES", gap_bytes)
        (Path(folder) / "a").write_bytes(data)
        file, plain = RangeFile(open_storage(folder), "a"), io.BytesIO(data)
        with file.expecting(expected):
            for offset, count in reads:
                assert (file.seek(offset), file.read(count)) == (plain.seek(offset), plain.read(count))


def test_close_ranges_that_are_expected_are_one_request(storage, requests):
    storage.create("table", bytes(5_000_000))
    file = RangeFile(storage, "table")

    def read(offset, count):
        file.seek(offset)
        assert len(file.read(count)) == count

    with file.expecting([(4_000_000, 4_000_100), (0, 500_000), (1_000_000, 2_000_000), (4_500_000, 6_000_000)]):
        read(1_000_000, 1_000_000)
        read(0, 500_000)
        read(4_500_000, 500_000)
        read(4_000_000, 100)
        read(3_000_000, 10)
    read(0, 10)
    assert requests == [(0, 2_000_000), (4_000_000, 1_000_000), (3_000_000, 10), (0, 10)]


def test_joined_requests_stay_within_their_limit(monkeypatch):
    monkeypatch.setattr(ranges, "_JOINED_BYTES", 100)
    wanted = [(250, 260), (0, 60), (60, 100), (100, 250)]
    assert ranges._joined(wanted, 1000) == [(0, 100), (100, 250), (250, 260)]


@given(
    num_bytes=st.integers(0, 60),
    window_bytes=st.integers(0, 80),
    reads=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), max_size=8),
)
def test_window_reads_the_bytes_of_the_object(num_bytes, window_bytes, reads):
    data = bytes(range(num_bytes))
    with TemporaryDirectory() as folder:
        (Path(folder) / "a").write_bytes(data)
        window = RangeWindow(open_storage(folder), "a", num_bytes, window_bytes)
        for offset, count in reads:
            assert window.read(offset, count) == data[offset : offset + count]


def test_range_file_of_a_missing_object_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        RangeFile(open_storage(str(tmp_path)), "none")


@examples
@given(st.binary(max_size=3000), st.integers(1, 700), st.lists(st.integers(1, 900), max_size=20))
def test_reads_of_any_size_return_the_bytes_in_order(data: bytes, range_bytes: int, sizes: list[int]):
    asked: list[tuple[int, int]] = []

    def read_range(offset: int, num_bytes: int) -> bytes:
        asked.append((offset, num_bytes))
        return data[offset : offset + num_bytes]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "RANGE_BYTES", range_bytes)
        with io.BufferedReader(RangeStream(read_range, len(data)), 64) as stream:
            read = b"".join(stream.read(size) for size in sizes)
            assert read == data[: sum(sizes)]
            assert read + stream.read() == data
    assert sorted(asked) == [(at, min(range_bytes, len(data) - at)) for at in range(0, len(data), range_bytes)]


def test_only_the_next_few_ranges_are_in_flight(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 10)
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
    monkeypatch.setattr(ranges, "RANGE_BYTES", 10)

    def read_range(offset: int, num_bytes: int) -> bytes:
        if offset >= 20:
            raise StorageError("the link broke")
        return bytes(num_bytes)

    with RangeStream(read_range, 100) as stream:
        assert [stream.readinto(bytearray(10)) for _ in range(2)] == [10, 10]
        with pytest.raises(StorageError, match="the link broke"):
            stream.readinto(bytearray(10))
