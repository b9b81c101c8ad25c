"""Annotation files of COCO in archives and unpacked, on disk and in a bucket, read element by element."""

import io
import itertools
import json
import tracemalloc
import zipfile
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import SourceError
from dataprep.sources import coco_files
from dataprep.sources.coco_files import MAX_ELEMENT_CHARS, PanopticImages, find_json, top_level_items
from dataprep.storage import open_storage
from tests.support.own_data import picture
from tests.support.raw_zip import zip_of

PNG = picture(3, "PNG")


zipped = partial(zip_of, method=zipfile.ZIP_DEFLATED)


def content(found) -> bytes:
    with found.open() as stream:
        return stream.read()


def test_a_file_is_found_in_its_archive_or_unpacked(storage):
    assert find_json(storage, "keypoints", "val2017") is None
    storage.create("annotations/person_keypoints_val2017.json", b"{1}")
    found = find_json(storage, "keypoints", "val2017")
    assert (found.url.rpartition("/")[2], content(found)) == ("person_keypoints_val2017.json", b"{1}")
    assert (found.source.name, found.source.num_bytes) == ("annotations/person_keypoints_val2017.json", 3)
    data = zipped({"annotations/captions_val2017.json": b"{2}" * 999_999})
    storage.create("annotations_trainval2017.zip", data)
    assert content(find_json(storage, "keypoints", "val2017")) == b"{1}"  # not in the archive
    found = find_json(storage, "captions", "val2017")
    assert content(found) == b"{2}" * 999_999
    assert found.url.endswith("annotations_trainval2017.zip/annotations/captions_val2017.json")
    assert (found.source.name, found.source.num_bytes) == ("annotations_trainval2017.zip", len(data))
    assert find_json(storage, "captions", "train2017") is None
    storage.create("image_info_test2017.zip", zipped({"annotations/image_info_test2017.json": b"{3}"}))
    assert content(find_json(storage, "image_info", "test2017")) == b"{3}"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_panoptic_images_of_an_archive_in_an_archive(storage, method):
    inner = zip_of({"panoptic_val2017/7.png": PNG, "panoptic_val2017/": b""}, method)
    outer = zip_of({"annotations/panoptic_val2017.zip": inner}, method)
    storage.create("panoptic_annotations_trainval2017.zip", outer)
    with PanopticImages(storage, "val2017") as images:
        assert images.read("7.png") == PNG
        with pytest.raises(SourceError, match="not found, but the annotations name it"):
            images.read("8.png")


@pytest.mark.parametrize("packed", [True, False])
def test_panoptic_images_that_were_unpacked(storage, packed):
    if packed:
        storage.create("annotations/panoptic_val2017.zip", zipped({"panoptic_val2017/7.png": PNG}))
    else:
        storage.create("annotations/panoptic_val2017/7.png", PNG)
    with PanopticImages(storage, "val2017") as images:
        assert images.read("7.png") == PNG
        with pytest.raises(SourceError, match="not found"):
            images.read("8.png")


@pytest.mark.parametrize("name", ["", ".", "..", "../7.png", "/etc/passwd", "a/7.png", "..\\7.png"])
def test_names_of_panoptic_images_lead_nowhere(tmp_path, name):
    storage = open_storage(str(tmp_path))
    storage.create("annotations/panoptic_val2017/7.png", PNG)
    storage.create("annotations/7.png", PNG)
    with PanopticImages(storage, "val2017") as images, pytest.raises(SourceError, match="expected the name of a file"):
        images.read(name)


def test_other_files_than_panoptic_images_are_refused(tmp_path):
    storage = open_storage(str(tmp_path))
    bomb = b"\x89PNG\r\n\x1a\n" + bytes(coco_files.MAX_PNG_BYTES)
    files = {"panoptic_val2017/jpeg.png": picture(1), "panoptic_val2017/bomb.png": bomb}
    storage.create("annotations/panoptic_val2017.zip", zipped(files))
    with PanopticImages(storage, "val2017") as images:
        with pytest.raises(SourceError, match="not a PNG"):
            images.read("jpeg.png")
        with pytest.raises(SourceError, match="over 1,048,576 bytes"):
            images.read("bomb.png")


def test_an_archive_in_an_archive_is_not_copied_beyond_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(coco_files, "MAX_PACKED_BYTES", 2**22)
    storage = open_storage(str(tmp_path))
    outer = zipped({"annotations/panoptic_val2017.zip": bytes(2**24)})
    storage.create("panoptic_annotations_trainval2017.zip", outer)
    with (
        pytest.raises(SourceError, match=r"larger than 4\.2 MB; unpack it into annotations/"),
        PanopticImages(storage, "val2017"),
    ):
        pass


def test_damaged_archives_are_refused(tmp_path):
    good = zipped({"annotations/captions_val2017.json": b"{}" * 1000})
    for number, (data, words) in enumerate(
        [(b"", "no end of a zip"), (good[:-10], "no end of a zip"), (good[:50] + good[90:], "does not end here")]
    ):
        storage = open_storage(str(tmp_path / str(number)))
        storage.create("annotations_trainval2017.zip", data)
        with pytest.raises(SourceError, match=words):
            find_json(storage, "captions", "val2017")
    unknown = bytearray(good)
    for signature, at in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        unknown[good.index(signature) + at] = 99  # a method of compression that nobody knows
    storage = open_storage(str(tmp_path / "unknown"))
    storage.create("annotations_trainval2017.zip", bytes(unknown))
    with pytest.raises(SourceError, match="download the archive again"):
        content(find_json(storage, "captions", "val2017"))


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


def test_damaged_members_of_an_archive_are_refused():
    data = bytearray(zip_of({"x.json": json.dumps({"a": list(range(10_000))})}, zipfile.ZIP_DEFLATED))
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
