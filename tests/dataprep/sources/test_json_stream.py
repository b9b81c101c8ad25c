"""Large JSON objects, read element by element: the same values as `json.load`, in bounded memory."""

import io
import itertools
import json
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import SourceError
from dataprep.sources import coco_files
from dataprep.sources.coco_files import MAX_ELEMENT_CHARS, top_level_items

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
documents = st.dictionaries(st.text(max_size=4), st.lists(values, max_size=5) | values, max_size=6)


def items(data: bytes) -> list[tuple[str, object]]:
    return list(top_level_items(io.BytesIO(data), "x.json"))


class Parts(io.BytesIO):
    """A stream that gives few bytes a read, however many are requested."""

    def __init__(self, data: bytes, count: int) -> None:
        super().__init__(data)
        self._count = count

    def read(self, size: int | None = -1) -> bytes:
        return super().read(self._count)


@given(documents, st.booleans(), st.integers(1, 7), st.sampled_from([None, 1]))
def test_elements_are_those_of_json_load(document, ascii_only, count, indent):
    data = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        data.decode()
    except UnicodeDecodeError:
        return  # half a surrogate pair is no UTF-8
    expected = [(name, element) for name, value in document.items() if isinstance(value, list) for element in value]
    assert list(top_level_items(Parts(data, count), "x.json")) == expected


def test_numbers_are_not_cut_at_the_end_of_what_is_read():
    """A number has no end of its own: 12 may be the beginning of 123."""
    data = b'{"a": [12345, 1.5e3], "b": 77, "c": [1]}'
    for count in range(1, len(data)):
        found = list(top_level_items(Parts(data, count), "x.json"))
        assert found == [("a", 12345), ("a", 1500.0), ("c", 1)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the end of the file, expected '{'"),
        (b"[1]", "'\\[', expected '{'"),
        (b'{"a": [1, 2', "the end of the file, expected ','"),
        (b'{"a": [1 2]}', "'2', expected ','"),
        (b'{"a": [1], "a": [2]}', "'a' as a name"),
        (b'{"a": 1} x', "more text after the end"),
        (b'{"a": [NaN]}', "NaN is not a number"),
        (b'{"a": [-Infinity]}', "-Infinity is not a number"),
        (b'{"a": [{"x": 1]}', "expected a value of JSON"),
        (b'{"a": ["x]}', "Unterminated string"),
        (b'{"a": [' + b"9" * 5000 + b"]}", "digits"),
        (b'{"a": ' + b"[" * 100_000, "recursion"),
        (b'{"a": ["\xff"]}', "not UTF-8"),
        (b'{"a": [1,]}', "Expecting value"),
        (b"\xef\xbb\xbf{}", "expected '{'"),
        (b"{1: 2}", "1 as a name"),
        (b"{%s}" % b",".join(b'"%d":0' % number for number in range(101)), "at most 100 names"),
    ],
)
def test_what_is_not_such_an_object_is_refused(data, words):
    with pytest.raises(SourceError, match=words) as caught:
        items(data)
    assert str(caught.value).startswith("x.json: at character ")
    assert "\n" not in str(caught.value)


def test_an_element_is_not_read_beyond_its_limit():
    """A text that has no end is given up before it fills the memory."""
    endless = io.BufferedReader(_Endless(b'{"a": ["', b"x"))
    with pytest.raises(SourceError, match=f"at most {MAX_ELEMENT_CHARS:,} characters"):
        list(top_level_items(endless, "x.json"))


def test_a_file_is_not_read_beyond_its_limit(monkeypatch):
    monkeypatch.setattr(coco_files, "MAX_BYTES", 2**23)
    with pytest.raises(SourceError, match="over 8,388,608 bytes"):
        list(top_level_items(io.BufferedReader(_Endless(b'{"a": [', b" ")), "x.json"))


def test_memory_does_not_grow_with_the_file():
    element = json.dumps({"caption": "x" * 1000}).encode()
    data = b'{"annotations": [' + b",".join([element] * 20_000) + b"]}"
    tracemalloc.start()
    try:
        assert sum(1 for _ in top_level_items(io.BytesIO(data), "x.json")) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(data) > 2**24
    assert peak < 2**23


def test_damaged_members_of_an_archive_are_refused(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.json", json.dumps({"a": list(range(10_000))}))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("x.json") as stream:
        with pytest.raises(SourceError, match="download the file again"):
            list(top_level_items(stream, "x.json"))


class _Endless(io.RawIOBase):
    """Some bytes, and then the same one for ever."""

    def __init__(self, first: bytes, then: bytes) -> None:
        self._bytes = itertools.chain(first, itertools.repeat(then[0]))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        count = min(len(buffer), 2**20)
        buffer[:count] = bytes(itertools.islice(self._bytes, count))
        return count
