"""Archives are read where they lie: few requests, bounded memory, and damaged gzip files are refused."""

import gzip
import random
import zlib

import pytest

from dataprep.errors import SourceError, StorageError
from dataprep.sources.archives import BLOCK_BYTES, BLOCKS_IN_FLIGHT, MAX_GZIP_BYTES, ArchiveReader, GzipReader
from dataprep.storage import open_storage
from tests.support.builds import dataprep
from tests.support.own_data import picture, write_files
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
    ranges = [(0, 10), (5, 5000), (5000, 1), (2**20 - 7, 14), (len(CONTENT) - 3, 3), (17, 100)]
    for storage in storages(root):
        for stream in (True, False):
            with ArchiveReader(storage, "a.bin", stream=stream) as reader:
                assert [reader.read(at, n) for at, n in ranges] == [CONTENT[at : at + n] for at, n in ranges]
                assert reader.read_apart(9, 9) == CONTENT[9:18]
                assert reader.num_bytes == len(CONTENT)


def test_reading_past_the_end_returns_the_remaining_bytes(root):
    for storage in storages(root):
        with ArchiveReader(storage, "a.bin") as reader:
            assert reader.read(len(CONTENT) - 5, 100) == CONTENT[-5:]
            assert reader.read(len(CONTENT), 1) == reader.read(len(CONTENT) + 9, 1) == b""
            assert reader.read_apart(len(CONTENT) - 1, 5) == CONTENT[-1:]
            assert reader.read_apart(len(CONTENT) + 1, 5) == b""


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
