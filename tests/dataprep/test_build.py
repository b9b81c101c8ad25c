import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataprep.build
from dataprep.build import begin_shard, build_shard, read_refs
from dataprep.driver import BuildRequest, run_build
from dataprep.errors import SourceError, StorageError
from dataprep.plan import BuildOptions
from dataprep.records import SampleRef
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage
from dataprep.workspace import RangeFile, finished_shards, read_receipt, read_shard_plan
from tests.support.builds import digests

SIZES = [0, 1, 70_000, 5, 300_000, 2, 2, 90_000] * 20


@pytest.fixture
def source(storage_url):
    """Objects of several sizes, and references to a range of each."""
    storage = open_storage(storage_url)
    data = bytes(range(256)) * 2000
    storage.create("originals.tar", data)
    refs = tuple(SampleRef(str(i), "originals.tar", i, size) for i, size in enumerate(SIZES))
    return storage, refs, data


def test_originals_come_in_order_and_whole(source, monkeypatch):
    storage, refs, data = source
    monkeypatch.setattr(dataprep.build, "READ_AHEAD_BYTES", 200_000)  # less than the largest: still read
    found = list(read_refs(storage, refs))
    assert [ref for ref, _ in found] == list(refs)
    assert all(image == data[ref.offset : ref.offset + ref.num_bytes] for ref, image in found)


def test_no_more_is_read_ahead_than_allowed(source, monkeypatch):
    storage, refs, _ = source
    if storage.is_local:
        monkeypatch.setattr(type(storage), "reads_in_flight", 8)
    monkeypatch.setattr(dataprep.build, "READ_AHEAD_BYTES", 400_000)
    held, most, lock = [0], [0], threading.Lock()
    read = dataprep.build._read

    def counting(storage, ref):
        with lock:
            held[0] += ref.num_bytes
            most[0] = max(most[0], held[0])
        return read(storage, ref)

    monkeypatch.setattr(dataprep.build, "_read", counting)
    for ref, _ in read_refs(storage, refs):
        with lock:
            held[0] -= ref.num_bytes
    assert 300_000 <= most[0] <= 400_000 + max(SIZES)


def test_a_source_that_is_gone_or_ends_early_is_named(source):
    storage, _, data = source
    with pytest.raises(SourceError, match=r"gone\.zip is gone; it held k when the build was planned"):
        list(read_refs(storage, (SampleRef("k", "gone.zip", 0, 1),)))
    with pytest.raises(Exception, match=r"originals\.tar"):
        list(read_refs(storage, (SampleRef("k", "originals.tar", len(data) - 1, 2),)))


class _Quiet:
    def __getattr__(self, name):
        return lambda *arguments: None


@pytest.fixture
def request_of_three(originals, tmp_path):
    """Three shards on disk."""
    options = BuildOptions(dataset="imagenet", format="webdataset", splits=("train",), num_shards=3, allow_partial=True)
    return BuildRequest(
        options=options,
        source_url=str(originals["imagenet"]),
        output_url=str(tmp_path / "out"),
        max_reject_ratio=1.0,
    )


@pytest.mark.parametrize("ahead_bytes", [1, 64 * 2**20])
def test_the_next_shard_is_checked_but_not_written_while_the_last_is_put_in_place(
    request_of_three, monkeypatch, tmp_path, ahead_bytes
):
    monkeypatch.setattr(dataprep.build, "CHECKED_AHEAD_BYTES", ahead_bytes)
    checked, go_on = [], threading.Event()
    check_image, publish = dataprep.build.check_image, LocalStorage.publish

    def checking(key, *rest):
        checked.append(key)
        return check_image(key, *rest)

    def publishing(storage, spool, name, crc32c):
        assert "00000-of" not in name or go_on.wait(30)
        publish(storage, spool, name, crc32c)

    def engine(job, indexes):
        monkeypatch.setattr(dataprep.build, "check_image", checking)
        monkeypatch.setattr(LocalStorage, "publish", publishing)
        first = begin_shard(job, 0)
        keys = [ref.key for ref in read_shard_plan(job.output_url, job.plan_hash, 1).refs]
        with ThreadPoolExecutor(1) as thread:
            second = thread.submit(begin_shard, job, 1)
            wanted = checked + (keys if ahead_bytes > 1 else keys[:1])
            deadline = time.monotonic() + 30
            while len(checked) < len(wanted) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)  # to find more than is wanted
            assert checked == wanted
            assert not first.done()
            assert [path.name[:26] for path in (tmp_path / "out/_build/tmp").iterdir()] == [
                "imagenet-train-00000-of-00"
            ]
            assert finished_shards(open_storage(job.output_url)) == set()
            go_on.set()
            yield first.result()
            yield second.result().result()
        yield build_shard(job, 2)

    manifest = run_build(request_of_three, engine, _Quiet()).manifest
    assert sum(shard["samples"] for shard in manifest.splits[0].shards) == manifest.splits[0].samples


def test_a_shard_that_cannot_be_put_in_place_does_not_stop_the_next(request_of_three, monkeypatch, tmp_path):
    publish, failed = LocalStorage.publish, []

    def failing_once(storage, spool, name, crc32c):
        if "00000-of" in name and not failed:
            failed.append(name)
            raise StorageError("disk is tired")
        publish(storage, spool, name, crc32c)

    def engine(job, indexes):
        monkeypatch.setattr(LocalStorage, "publish", failing_once)
        first, second = begin_shard(job, 0), begin_shard(job, 1)
        with pytest.raises(StorageError, match="disk is tired"):
            first.result()
        yield second.result()
        assert finished_shards(open_storage(job.output_url)) == {1}
        assert list((tmp_path / "out/_build/tmp").iterdir()) == []
        yield from (build_shard(job, index) for index in (0, 2))

    assert run_build(request_of_three, engine, _Quiet()).manifest.splits[0].samples > 0


def test_a_shard_is_built_once_and_its_receipt_says_what_it_is(originals, tmp_path):
    """Between the first shard and the last: the receipts, and what a second attempt at a shard does."""
    seen = {}

    def engine(job, indexes):
        storage = open_storage(job.output_url)
        for index in indexes:
            receipt = build_shard(job, index)
            assert finished_shards(storage) == set(range(index + 1))
            stored, rows = read_receipt(storage, index)
            assert stored == receipt
            kept = [ref.key for ref in read_shard_plan(job.output_url, job.plan_hash, index).refs]
            rejected = {event.key for event in receipt.events if event.kind == "rejected"}
            assert rows.column("key").to_pylist() == [key for key in kept if key not in rejected]
            before = digests(job.output_url)
            assert build_shard(job, index) == receipt
            assert digests(job.output_url) == before
            (tmp_path / "out" / "_build" / "receipts" / f"{index:05d}.parquet").unlink()
            assert build_shard(job, index) == receipt  # as after a crash between the shard and its receipt
            assert digests(job.output_url) == before
            seen[index] = receipt
            yield receipt

    request = BuildRequest(
        options=BuildOptions(
            dataset="imagenet", format="webdataset", splits=("train", "val"), num_shards=3, allow_partial=True
        ),
        source_url=str(originals["imagenet"]),
        output_url=str(tmp_path / "out"),
        max_reject_ratio=1.0,
    )
    result = run_build(request, engine, _Quiet())
    assert len(seen) == 6
    shards = [shard for split in result.manifest.splits for shard in split.shards]
    assert [shard["sha256"] for shard in shards] == [seen[index].sha256 for index in range(6)]
    assert not (tmp_path / "out" / "_build").exists()


@given(
    num_bytes=st.integers(0, 60),
    window_bytes=st.integers(0, 80),
    reads=st.lists(st.tuples(st.integers(0, 70), st.integers(-1, 70)), max_size=8),
)
def test_a_file_of_ranges_reads_as_a_file(num_bytes, window_bytes, reads):
    data = bytes(range(num_bytes))
    with TemporaryDirectory() as folder:
        (Path(folder) / "a").write_bytes(data)
        file, expected = RangeFile(open_storage(folder), "a", window_bytes), io.BytesIO(data)
        for offset, count in reads:
            assert (file.seek(offset), file.read(count)) == (expected.seek(offset), expected.read(count))
            assert file.tell() == expected.tell()


def test_the_plan_of_many_shards_is_one_request(storage_url, monkeypatch):
    storage = open_storage(storage_url)
    storage.create("plan", bytes(300_000))
    requests = []
    read_range = type(storage).read_range
    monkeypatch.setattr(type(storage), "read_range", lambda *call: (requests.append(call[2:]), read_range(*call))[1])
    file = RangeFile(storage, "plan", 2**20)
    for offset, count in [(299_000, 1000), (0, 4), (100_000, 50_000), (150_000, 10)]:
        file.seek(offset)
        assert len(file.read(count)) == count
    assert requests == [(0, 300_000)]
