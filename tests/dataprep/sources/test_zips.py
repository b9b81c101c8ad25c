"""Zips as byte ranges: what `zipfile` stores is found where it put it; anything damaged is refused."""

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import SourceError
from dataprep.sources.archives import zip_members
from tests.support.raw_zip import End, Entry, zip64_extra, zip_file
from tests.support.samples import examples


class Bytes:
    """An archive in memory; remembers where it was read."""

    archive = "a.zip"

    def __init__(self, data):
        self.data, self.num_bytes, self.offsets = data, len(data), []

    def read(self, offset, num_bytes):
        self.offsets.append(offset)
        return self.data[offset : offset + num_bytes]

    def read_apart(self, offset, num_bytes):
        assert offset >= 0
        return self.data[offset : offset + num_bytes]


def contents(data):
    return [(m.name, data[m.offset : m.offset + m.num_bytes]) for m in zip_members(Bytes(data))]


file_names = st.text(st.characters(exclude_characters="\0/\\", exclude_categories=["Cs"]), min_size=1, max_size=60)


@examples
@given(st.lists(st.tuples(file_names, st.binary(max_size=500)), max_size=6), st.binary(max_size=40), st.booleans())
def test_members_stored_by_zipfile_are_found(files, comment, in_stream):
    out = Stream() if in_stream else io.BytesIO()  # in a stream sizes follow the data
    with zipfile.ZipFile(out, "w") as archive:
        archive.comment = comment
        for i, (name, data) in enumerate(files):
            info = zipfile.ZipInfo(f"{i}{name}")
            info.extra = b"\x99\x99\x02\x00ab"
            archive.writestr(info, data)
    found = contents(out.getvalue())
    assert [data for _, data in found] == [data for _, data in files]
    if b"PK\5\6" not in comment:
        assert len(found) == len(files)


class Stream(io.BytesIO):
    def seekable(self):
        return False

    def tell(self):
        raise OSError


def test_zip64_archives_written_by_zipfile_are_read(monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for i in range(4):
            archive.writestr(f"train2017/{i}.jpg", bytes([i]) * 150)
    assert b"PK\6\6" in out.getvalue()
    assert contents(out.getvalue()) == [(f"train2017/{i}.jpg", bytes([i]) * 150) for i in range(4)]


def test_the_local_header_says_where_data_begin():
    entries = [
        Entry(name=b"1.jpg", data=b"one", local_extra=b"\x99\x99\x04\x00abcd"),
        Entry(name=b"2.jpg", data=b"two", extra=b"\x99\x99\x02\x00ab", after=b"between"),
        Entry(name=b"3.jpg", data=b"three", flags=8, local_packed_bytes=0, after=b"PK\7\x08" + bytes(12)),
        Entry(name=b"4.jpg", data=b"four", header_offset=None),
    ]
    assert [data for _, data in contents(zip_file(entries, End(comment=b"PK\5\6")))] == [
        b"one",
        b"two",
        b"three",
        b"four",
    ]


def test_order_is_that_of_the_directory_and_reading_goes_forward():
    entries = [Entry(name=b"%d.jpg" % i, data=b"%d" % i) for i in range(3)]
    offsets = [0, len(zip_file(entries[:1])) - 22 - 46 - 5]
    offsets.append(2 * offsets[1])
    body = zip_file(entries)
    swapped = [Entry(name=b"%d.jpg" % i, data=b"%d" % i, header_offset=offsets[i]) for i in (2, 0, 1)]
    directory = zip_file(swapped)
    data = body[: 3 * offsets[1]] + directory[3 * offsets[1] :]
    reader = Bytes(data)
    assert [m.name for m in zip_members(reader)] == ["2.jpg", "0.jpg", "1.jpg"]
    assert reader.offsets == sorted(reader.offsets)


def test_compressed_members_are_marked_and_directories_known():
    entries = [
        Entry(name=b"train2017/"),
        Entry(name=b"1.jpg", data=b"deflated", method=8, num_bytes=99),
        Entry(name=b"2.jpg", data=b"secret", flags=1),
        Entry(name=b"3.jpg", data=b"stored"),
    ]
    members = zip_members(Bytes(zip_file(entries)))
    assert [m.is_directory for m in members] == [True, False, False, False]
    assert [m.unreadable for m in members] == [
        "",
        "it is compressed (method 8), expected stored: make it again without compression, with zip -0 -r, or unpack it "
        "and give the folder",
        "it is encrypted: unpack it and give the folder",
        "",
    ]


def test_sizes_of_64_bits_are_read():
    wide = Entry(
        name=b"1.jpg",
        data=b"wide",
        num_bytes=0xFFFFFFFF,
        packed_bytes=0xFFFFFFFF,
        header_offset=0xFFFFFFFF,
        extra=b"\x99\x99\x01\x00a" + zip64_extra(4, 4, 0),
        local_packed_bytes=0xFFFFFFFF,
    )
    assert contents(zip_file([wide], End(zip64=True))) == [("1.jpg", b"wide")]


def test_the_error_names_archive_member_and_offset():
    entries = [Entry(name=b"1.jpg", data=b"x" * 50), Entry(name=b"2.jpg", data=b"y", header_offset=9)]
    with pytest.raises(SourceError) as caught:
        contents(zip_file(entries))
    assert str(caught.value) == (
        "a.zip: member '1.jpg' at byte 0: 50 bytes from 35 run into what begins at 9: overlapping or truncated"
    )


@pytest.mark.parametrize("at", range(0, 320, 7))
def test_a_cut_archive_is_never_taken_for_a_whole_one(at):
    data = zip_file([Entry(name=b"%d.jpg" % i, data=b"x" * 30) for i in range(3)])
    assert len(data) > 320
    with pytest.raises(SourceError, match=r"^a\.zip: at byte [0-9,]+: no end of a zip archive here"):
        contents(data[:at])


@examples
@given(st.binary(max_size=300))
def test_noise_is_refused(data):
    with pytest.raises(SourceError):
        contents(data + b"PK")


@examples
@given(st.integers(0, 320), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_moves_no_range_out(at, flip):
    data = bytearray(zip_file([Entry(name=b"%d.jpg" % i, data=b"x" * 30) for i in range(3)]))
    data[at] ^= flip
    try:
        members = zip_members(Bytes(bytes(data)))
    except SourceError:
        return
    ends = [member.offset + member.num_bytes for member in members]
    assert ends == sorted(ends)
    assert all(end <= len(data) for end in ends)
