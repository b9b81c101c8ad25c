"""Tars as byte ranges: what `tarfile` and GNU tar write is found where they put it, and `tarfile` reads what is
written; anything damaged is refused."""

import io
import random
import re
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import SourceError
from dataprep.formats import tars
from dataprep.formats.tars import Member, plain_files, tar_members
from tests.support.raw_tar import END, gnu_name, header, member, pax, tar
from tests.support.samples import examples


class Bytes:
    """An archive in memory; counts what is read."""

    archive = "a.tar"

    def __init__(self, data):
        self.data, self.num_bytes, self.bytes_read = data, len(data), 0

    def read(self, offset, num_bytes):
        found = self.data[offset : offset + num_bytes]
        self.bytes_read += len(found)
        return found


def members_of(data, start=0, stop=None):
    """Members of a tar, the same and with the same error if plain headers are read many at a time."""
    found, at = [], start
    for files in plain_files(Bytes(data), start, len(data) if stop is None else stop):
        names = [name.decode("utf-8", "surrogateescape") for name in files.names]
        if any(name.endswith("/") for name in names):
            break
        found += map(Member, names, files.offsets.tolist(), files.sizes.tolist())
        at = files.stop
    rest = tar_members(Bytes(data), at, stop)
    try:
        found += rest
    except SourceError as error:
        with pytest.raises(SourceError, match=re.escape(str(error))):
            list(tar_members(Bytes(data), start, stop))
        raise
    assert found == list(tar_members(Bytes(data), start, stop))
    return found


def contents(data, start=0, stop=None):
    members = members_of(data, start, stop)
    return [(m.name, data[m.offset : m.offset + m.num_bytes]) for m in members if not m.is_directory]


file_names = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=150
).filter(lambda name: not name.endswith("/") and name.strip("/"))


@examples
@given(
    st.lists(st.tuples(file_names, st.binary(max_size=2000)), max_size=6),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_what_tarfile_writes_is_found(files, tar_format):
    if tar_format == tarfile.USTAR_FORMAT:
        files = [(f"{i}.jpg", data) for i, (_, data) in enumerate(files)]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5
            archive.addfile(info, io.BytesIO(data))
    assert contents(out.getvalue()) == files


@pytest.mark.parametrize("tar_format", ["gnu", "oldgnu", "pax", "ustar", "v7"])
def test_what_gnu_tar_writes_is_found(tmp_path, tar_format):
    assert shutil.which("tar")
    files = {f"n01440764_{i}.JPEG": random.Random(i).randbytes(i * 300) for i in range(5)}
    if tar_format in ("gnu", "oldgnu", "pax"):
        files["long" * 50 + ".JPEG"] = b"long"
    folder = tmp_path / "n01440764"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    subprocess.run(["tar", f"--format={tar_format}", "-cf", tmp_path / "a.tar", "-C", folder, "."], check=True)
    found = contents((tmp_path / "a.tar").read_bytes())
    assert {name.removeprefix("./"): data for name, data in found} == files


def test_members_of_a_tar_inside_a_tar_are_found():
    inner = tar(member(b"1.JPEG", b"one"), member(b"2.JPEG", b"two" * 500))
    outer = tar(member(b"first.tar", b"x" * 700), member(b"second.tar", inner))
    _, second = tar_members(Bytes(outer))
    assert second.name == "second.tar"
    assert contents(outer, second.offset, second.offset + second.num_bytes) == [
        ("1.JPEG", b"one"),
        ("2.JPEG", b"two" * 500),
    ]


@pytest.mark.parametrize("read", [tar_members, lambda reader: plain_files(reader, 0, reader.num_bytes)])
def test_only_headers_are_read(read):
    data = tar(*(member(b"%d.JPEG" % i, bytes(100_000)) for i in range(10)))
    reader = Bytes(data)
    assert len(list(read(reader))) in (1, 10)
    assert 10 * 512 <= reader.bytes_read < 12 * 512 + 10_240


def test_plain_headers_in_a_row_are_read_at_once(monkeypatch):
    monkeypatch.setattr(tars, "_FILES_AT_ONCE", 3)
    data = tar(*(member(b"%d" % i, b"x" * i) for i in range(7)), member(b"link", kind=b"2"), member(b"8", b"y"))
    found = [files.names for files in plain_files(Bytes(data), 0, len(data))]
    assert found == [(b"0", b"1", b"2"), (b"3", b"4", b"5"), (b"6",)]


def test_names_and_sizes_of_every_tar_dialect_are_read():
    wide = b"\x80" + (5).to_bytes(11, "big")
    data = tar(
        member(b"plain", b"1"),
        member(b"in-prefix", b"2", prefix=b"a/b"),
        member(b"gnu", b"3", magic=b"ustar  \0", prefix=b"not a prefix"),
        member(b"v7", b"4", kind=b"\0", magic=bytes(8)),
        member(b"contiguous", b"5", kind=b"7"),
        gnu_name(b"long" * 60) + member(b"cut", b"6"),
        gnu_name(b"target").replace(b"L", b"K", 0) + member(b"cut", b"7"),
        pax((b"path", "é.JPEG".encode()), (b"mtime", b"1.5"), (b"size", b"1")) + member(b"x", b"8"),
        member(b"wide", b"12345", size_field=wide),
        member(b"raw\xff", b"9"),
        member(b"d/", kind=b"0"),
        member(b"e", kind=b"5"),
    )
    assert contents(data) == [
        ("plain", b"1"),
        ("a/b/in-prefix", b"2"),
        ("gnu", b"3"),
        ("v7", b"4"),
        ("contiguous", b"5"),
        ("long" * 60, b"6"),
        ("target", b"7"),
        ("é.JPEG", b"8"),
        ("wide", b"12345"),
        ("raw\udcff", b"9"),
    ]


def test_a_link_name_of_gnu_is_not_taken_for_the_members():
    long_target = member(b"././@LongLink", b"/etc/passwd\0", b"K")
    assert contents(tar(long_target + member(b"good", b"1"))) == [("good", b"1")]


def test_signed_checksums_of_old_programs_are_accepted():
    block = header(b"\xff\xfe.JPEG")
    signed = sum(block) - sum(block[148:156]) + 8 * 32 - 256 * 2
    old = header(b"\xff\xfe.JPEG", checksum=b"%06o\0 " % signed)
    assert [m.name for m in tar_members(Bytes(tar(old)))] == ["\udcff\udcfe.JPEG"]


@pytest.mark.parametrize("at", [*range(0, 4000, 111), 512, 1024, 1536, 2048, 2560, 3072])
def test_a_cut_archive_is_never_taken_for_a_whole_one(at):
    data = member(b"1.JPEG", b"x" * 700) + member(b"2.JPEG", b"y" * 600) + END
    cut = data[: min(at, len(data) - 1)]
    with pytest.raises(SourceError, match=r"^a\.tar: .*at byte [0-9,]+: .*(truncated|end marker|follow)"):
        contents(cut)


def test_the_error_names_archive_inner_archive_member_and_offset():
    data = tar(member(b"1.JPEG", b"x"), header(b"evil.JPEG", kind=b"2", link=b"/etc/passwd"))
    with pytest.raises(SourceError) as caught:
        list(tar_members(Bytes(data), within="n01440764.tar"))
    assert str(caught.value) == (
        "a.tar: 'n01440764.tar': member 'evil.JPEG' at byte 1,024: it is a symbolic link, expected plain files: "
        "unpack it and give the folder"
    )


@examples
@given(st.binary(max_size=3000))
def test_noise_is_refused_or_holds_nothing(data):
    try:
        found = contents(data + END)
    except SourceError:
        return
    assert found == []


@examples
@given(st.integers(0, 3071), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_no_range_past_the_end(at, flip):
    data = bytearray(tar(member(b"1.JPEG", b"x" * 700), pax((b"path", b"p.JPEG")) + member(b"2.JPEG", b"y" * 600)))
    data[at] ^= flip
    try:
        members = members_of(bytes(data))
    except SourceError:
        return
    assert all(m.offset + m.num_bytes <= len(data) for m in members)
    assert len(members) == 2


# What is written

KEYS = st.text("abcXYZ019_-/", min_size=1, max_size=200).filter(lambda key: not key.startswith("/"))


@given(KEYS, st.binary(max_size=1200))
def test_tarfile_reads_a_member(key, data):
    content = tars.member(key.encode(), b".json", data)
    assert len(content) % tars.BLOCK_BYTES == 0
    with tarfile.open(fileobj=io.BytesIO(content + bytes(2 * tars.BLOCK_BYTES))) as tar:
        (found,) = tar
        assert (found.name, found.size, found.mtime, found.mode) == (f"{key}.json", len(data), 0, 0o644)
        assert tar.extractfile(found).read() == data


@pytest.mark.parametrize(
    ("key", "blocks"), [("k" * 96, 1), ("f" * 100 + "/" + "k" * 90, 1), ("k" * 97, 3), ("f" * 156 + "/" + "k" * 90, 3)]
)
def test_a_name_takes_one_block_or_three(key, blocks):
    assert len(tars.header(key.encode(), b".jpg", 5)) == blocks * tars.BLOCK_BYTES


FIELDS = st.dictionaries(st.sampled_from([b".cls", b".json", b".txt"]), st.binary(max_size=1200))


@given(KEYS, st.binary(max_size=1200), FIELDS)
def test_tarfile_reads_a_sample_whose_image_is_put_between(key, image, fields):
    before, after = tars.members_around(key.encode(), b".jpg", len(image), fields)
    with tarfile.open(fileobj=io.BytesIO(before + image + after + bytes(2 * tars.BLOCK_BYTES))) as tar:
        found = [(member.name, tar.extractfile(member).read()) for member in tar]
    expected = {b".jpg": image, **fields}
    assert found == [(key + suffix.decode(), data) for suffix, data in expected.items()]
