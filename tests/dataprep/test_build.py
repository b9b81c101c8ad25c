import threading

import pytest

import dataprep.build
from dataprep.build import build_shard, read_refs
from dataprep.driver import BuildRequest, run_build
from dataprep.errors import SourceError
from dataprep.plan import BuildOptions
from dataprep.records import SampleRef
from dataprep.storage import open_storage
from dataprep.workspace import finished_shards, read_receipt, read_shard_plan
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
