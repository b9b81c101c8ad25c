"""Archives are read where they lie: few requests, bounded memory; zips as byte ranges; anything damaged is refused."""

import gzip
import io
import random
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import SourceError, StorageError
from dataprep.sources.archives import (
    BLOCK_BYTES,
    BLOCKS_IN_FLIGHT,
    MAX_GZIP_BYTES,
    ArchiveReader,
    GzipReader,
    zip_members,
)
from dataprep.storage import open_storage
from tests.support.builds import dataprep
from tests.support.own_data import picture, write_files
from tests.support.raw_zip import End, Entry, zip64_extra, zip_file
from tests.support.samples import examples
from tests.support.slow_storage import LATENCIES_S, SlowStorage

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
CONTENT = random.Random(0).randbytes(3 * 2**20)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "a.bin").write_bytes(CONTENT)
    return tmp_path


def storages(root):
    return (open_storage(str(root)), SlowStorage(root))


def test_every_range_is_read_unchanged(root):
    size = len(CONTENT)
    ranges = [(0, 10), (5, 5000), (5000, 1), (2**20 - 7, 14), (size - 3, 3), (17, 100), (size - 5, 9), (size + 9, 1)]
    for storage in storages(root):
        for stream in (True, False):
            with ArchiveReader(storage, "a.bin", stream=stream) as reader:
                assert [reader.read(at, n) for at, n in ranges] == [CONTENT[at : at + n] for at, n in ranges]
                assert [reader.read_apart(at, 9) for at in (9, size - 1, size + 1)] == [
                    CONTENT[9:18],
                    CONTENT[-1:],
                    b"",
                ]
                assert reader.num_bytes == size


def test_an_absent_archive_is_named(root):
    with pytest.raises(SourceError, match=r"b\.bin: not found"), ArchiveReader(open_storage(str(root)), "b.bin"):
        pass


def sparse(root, num_blocks):
    with (root / "large.bin").open("wb") as stream:
        stream.truncate(num_blocks * BLOCK_BYTES - 1000)


def test_a_bucket_is_streamed_once_in_large_blocks(root):
    sparse(root, 40)
    for latency_s in LATENCIES_S:
        storage = SlowStorage(root, latency_s)
        with ArchiveReader(storage, "large.bin") as reader:
            for at in range(0, reader.num_bytes, 200_000):
                reader.read(at, 512)
        assert sorted(offset for _, offset, _ in storage.requests) == [i * BLOCK_BYTES for i in range(40)]
        assert storage.most_in_flight <= BLOCKS_IN_FLIGHT
        assert storage.most_bytes_in_flight <= 128 * 2**20
        if storage.most_in_flight > BLOCKS_IN_FLIGHT // 2:
            break
    assert storage.most_in_flight > BLOCKS_IN_FLIGHT // 2


def test_blocks_that_are_jumped_over_are_not_all_fetched(root):
    sparse(root, 100)
    storage = SlowStorage(root, latency_s=0.02)
    with ArchiveReader(storage, "large.bin") as reader:
        reader.read(0, 512)
        reader.read(90 * BLOCK_BYTES, 512)
    assert len(storage.requests) <= 2 * BLOCKS_IN_FLIGHT


def test_without_streaming_only_windows_are_read(root):
    sparse(root, 40)
    storage = SlowStorage(root)
    with ArchiveReader(storage, "large.bin", stream=False) as reader:
        for at in (0, 512, 1024, 10 * BLOCK_BYTES, 10 * BLOCK_BYTES + 512):
            reader.read(at, 512)
    assert [offset for _, offset, _ in storage.requests] == [0, 10 * BLOCK_BYTES]


@pytest.mark.parametrize(("step", "asked"), [(100_000, [4096] * 3), (2500, [4096, 8192, 16384, 32768, 65536, 65536])])
def test_a_disk_is_read_in_pages_and_in_larger_pieces_where_headers_are_close(root, monkeypatch, step, asked):
    storage = open_storage(str(root))
    found = []
    read_range = storage.read_range
    monkeypatch.setattr(storage, "read_range", lambda *wanted: found.append(wanted[2]) or read_range(*wanted))
    with ArchiveReader(storage, "a.bin") as reader:
        for at in range(0, 200_000 + step, step):
            assert reader.read(at, 512) == CONTENT[at : at + 512]
            assert reader.read(at + 512, 30) == CONTENT[at + 512 : at + 542]
    assert found[: len(asked)] == asked


def test_an_error_of_the_storage_is_raised(root):
    storage = SlowStorage(root)
    info = storage.stat("a.bin")
    (root / "a.bin").write_bytes(b"shorter now")
    with ArchiveReader(storage, "a.bin", info=info) as reader:
        with pytest.raises(StorageError):
            reader.read(2**20, 512)


def test_progress_grows_to_the_end(root):
    sparse(root, 5)
    calls = []
    with ArchiveReader(SlowStorage(root), "large.bin", progress=lambda *call: calls.append(call)) as reader:
        for at in range(0, reader.num_bytes, 1_000_000):
            reader.read(at, 512)
    done = [at for _, at, _ in calls]
    assert done == sorted(done)
    assert calls[-1] == ("large.bin", reader.num_bytes, reader.num_bytes)
    assert 5 <= len(calls) <= 8


def gzip_reader(root, data):
    (root / "a.gz").write_bytes(data)
    return GzipReader(open_storage(str(root)), "a.gz")


def test_gzip_content_is_read_forward(root):
    reader = gzip_reader(root, gzip.compress(CONTENT))
    assert reader.read(0, 100) == CONTENT[:100]
    assert reader.read(50, 100) == CONTENT[50:150]
    assert reader.read(2**20, 2**20) == CONTENT[2**20 : 2**21]
    assert reader.read(len(CONTENT) - 5, 100) == CONTENT[-5:]
    assert reader.read(len(CONTENT) + 5, 100) == b""


@pytest.mark.parametrize("at", [0, 5, 10, 1000, -9, -1])
def test_cut_gzip_files_are_refused(root, at):
    with pytest.raises(SourceError, match="truncated inside"):
        gzip_reader(root, gzip.compress(CONTENT)[:at]).read(0, len(CONTENT) + 1)


def test_damaged_gzip_files_are_refused(root):
    data = bytearray(gzip.compress(CONTENT))
    data[-6] ^= 1  # of the CRC
    with pytest.raises(SourceError, match="not a valid gzip file"):
        gzip_reader(root, bytes(data)).read(0, len(CONTENT) + 1)
    with pytest.raises(SourceError, match="not a valid gzip file"):
        gzip_reader(root, zlib.compress(CONTENT)).read(0, 1)


def test_a_large_gzip_file_is_not_opened(root):
    (root / "a.gz").touch()
    with (root / "a.gz").open("r+b") as stream:
        stream.truncate(MAX_GZIP_BYTES + 1)
    with pytest.raises(SourceError, match="expected a label archive of at most 67,108,864"):
        GzipReader(open_storage(str(root)), "a.gz")


@pytest.mark.parametrize(
    ("kind", "files", "named"),
    [
        ("table", {"x.parquet": POINTER}, "x.parquet"),
        ("table", {"x.csv": POINTER}, "x.csv"),
        ("table", {"x.csv": "image,n\na.jpg,1\n", "a.jpg": POINTER}, "a.jpg"),
        ("folder", {"a/1.jpg": picture(1), "b/2.jpg": POINTER}, "b/2.jpg"),
        ("folder", {"a/1.jpg": picture(1), "metadata.csv": POINTER}, "metadata.csv"),
        ("folder", {"x.zip": POINTER}, "x.zip"),
        ("adopt", {"x.tar": POINTER}, "x.tar"),
        ("adopt", {"train.tfrecord": POINTER}, "train.tfrecord"),
        ("adopt", {"train-00000-of-00001": POINTER}, "train-00000-of-00001"),
        ("adopt", {"a/1.jpg": picture(1), "b/2.jpg": POINTER}, "b/2.jpg"),
        ("laion", {"x.parquet": POINTER}, "x.parquet"),
    ],
)
def test_a_git_lfs_pointer_is_named_with_the_way_to_the_file(tmp_path, kind, files, named):
    source = write_files(tmp_path / "clone", files)
    if kind == "adopt":
        run = dataprep("adopt", source, "--index", tmp_path / "index")
    else:
        options = ["--contact", "mailto:a@example.org"] if kind == "laion" else []
        run = dataprep("build", kind, "--source", source, "--output", tmp_path / "out", "--format=webdataset", *options)
    assert run.returncode == 2
    assert f"/{named}: a Git LFS pointer in place of a file; run git lfs pull in the clone" in run.stderr


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
