import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dataprep.builder.shard
from dataprep.builder.driver import run_build
from dataprep.builder.output import open_build
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.builder.receipts import read_receipt
from dataprep.builder.recipe import begin_shard, build_shard
from dataprep.builder.references import shard_plan
from dataprep.errors import StorageError
from dataprep.storage import open_storage
from dataprep.storage.gcs import StagedGCS
from dataprep.storage.local import LocalStorage
from tests.support.builds import digests
from tests.support.crashes import receipts_of
from tests.support.waiting import LONGEST_S, wait_for


class _Quiet:
    def __getattr__(self, name):
        return lambda *arguments: None


def spools(job):
    """Files that are being written on disk."""
    return list(Path(job.output_url, job.root, "tmp").iterdir())


@pytest.fixture
def request_of_three(originals, tmp_path):
    """Three shards on disk."""
    options = BuildOptions(dataset="imagenet", format="webdataset", splits=("train",), num_shards=3, allow_partial=True)
    return BuildRequest(
        options=options, source_url=str(originals["imagenet"]), output_url=str(tmp_path / "out"), max_reject_ratio=1.0
    )


def hold_shards(monkeypatch, kind, held):
    """Let a kind of storage publish some shards only once their events are set; `held` has these by the index."""
    publish = kind.publish

    def publishing(storage, spool, name, crc32c):
        for index, go_on in held.items():
            assert f"{index:05d}-of" not in name or go_on.wait(LONGEST_S)
        publish(storage, spool, name, crc32c)

    monkeypatch.setattr(kind, "publish", publishing)


@pytest.mark.parametrize("ahead_bytes", [1, 64 * 2**20])
def test_the_next_shard_is_checked_but_not_written_while_the_last_is_published(
    request_of_three, monkeypatch, tmp_path, ahead_bytes
):
    monkeypatch.setattr(dataprep.builder.shard, "CHECKED_AHEAD_BYTES", ahead_bytes)
    checked, go_on = [], threading.Event()
    check_image = dataprep.builder.shard.check_image

    def checking(key, *rest):
        checked.append(key)
        return check_image(key, *rest)

    def engine(job, indexes):
        monkeypatch.setattr(dataprep.builder.shard, "check_image", checking)
        hold_shards(monkeypatch, LocalStorage, {0: go_on})
        first = begin_shard(job, 0)
        keys = [ref.key for ref in shard_plan(open_build(job.output_url, job.root), 1).refs]
        with ThreadPoolExecutor(1) as thread:
            second = thread.submit(begin_shard, job, 1)
            wanted = checked + (keys if ahead_bytes > 1 else keys[:1])
            wait_for(lambda: len(checked) >= len(wanted))
            time.sleep(0.1)  # to find more than is wanted
            assert checked == wanted
            assert not first.done()
            assert [path.name[:26] for path in spools(job)] == ["imagenet-train-00000-of-00"]
            assert receipts_of(job.output_url) == set()
            go_on.set()
            yield first.result()
            yield second.result().result()
        yield build_shard(job, 2)

    manifest = run_build(request_of_three, engine, _Quiet()).manifest
    assert sum(shard["samples"] for shard in manifest.splits[0].shards) == manifest.splits[0].samples


@pytest.fixture
def request_in_a_bucket(originals, bucket_url):
    """Three shards in a bucket."""
    options = BuildOptions(dataset="imagenet", format="webdataset", splits=("train",), num_shards=3, allow_partial=True)
    return BuildRequest(
        options=options, source_url=str(originals["imagenet"]), output_url=bucket_url, max_reject_ratio=1.0
    )


def test_in_a_bucket_two_shards_are_published_while_the_next_is_written(request_in_a_bucket, monkeypatch):
    """Nothing of the third is in the bucket before the receipt of one of them."""
    written, go_on, write = threading.Event(), threading.Event(), dataprep.builder.shard._write

    def writing(build, shard, samples, rows):
        found = write(build, shard, samples, rows)
        if shard.index == 2:
            written.set()
        return found

    def engine(job, indexes):
        monkeypatch.setattr(dataprep.builder.shard, "_write", writing)
        hold_shards(monkeypatch, StagedGCS, {0: go_on, 1: go_on})
        first, second = begin_shard(job, 0), begin_shard(job, 1)
        with ThreadPoolExecutor(1) as thread:
            third = thread.submit(begin_shard, job, 2)
            assert written.wait(LONGEST_S)
            time.sleep(0.1)  # to find what must not happen
            assert not (first.done() or second.done() or third.done())
            storage = open_storage(job.output_url)
            assert [info.name for info in storage.list() if ".tar" in info.name or "receipts" in info.name] == []
            go_on.set()
            yield first.result()
            yield second.result()
            yield third.result().result()

    assert run_build(request_in_a_bucket, engine, _Quiet()).shards_built == 3


def test_in_a_bucket_no_more_is_written_ahead_than_allowed(request_in_a_bucket, monkeypatch):
    """The second shard is published beside the first; both together leave no room for images of the third."""
    checked, held = [], {0: threading.Event(), 1: threading.Event()}
    check_image = dataprep.builder.shard.check_image

    def checking(key, *rest):
        checked.append(key)
        return check_image(key, *rest)

    def engine(job, indexes):
        hold_shards(monkeypatch, StagedGCS, held)
        first, second = begin_shard(job, 0), begin_shard(job, 1)
        monkeypatch.setattr(dataprep.builder.shard, "CHECKED_AHEAD_BYTES", 1)
        monkeypatch.setattr(dataprep.builder.shard, "check_image", checking)
        with ThreadPoolExecutor(1) as thread:
            third = thread.submit(begin_shard, job, 2)
            wait_for(lambda: len(checked) >= 1)
            time.sleep(0.5)  # to find more than is allowed
            assert len(checked) == 1
            held[1].set()
            yield second.result()
            wait_for(lambda: len(checked) >= 2)
            time.sleep(0.5)
            assert len(checked) == 2
            held[0].set()
            yield first.result()
            yield third.result().result()

    assert run_build(request_in_a_bucket, engine, _Quiet()).shards_built == 3


def test_a_shard_that_cannot_be_published_does_not_stop_the_next(request_of_three, monkeypatch, tmp_path):
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
        assert receipts_of(job.output_url) == {1}
        assert spools(job) == []
        yield from (build_shard(job, index) for index in (0, 2))

    assert run_build(request_of_three, engine, _Quiet()).manifest.splits[0].samples > 0


def test_a_shard_is_built_once_and_described_by_its_receipt(originals, tmp_path):
    """Between the first shard and the last: the receipts, and what a second attempt at a shard does."""
    seen = {}

    def engine(job, indexes):
        storage = open_storage(job.output_url)
        for index in indexes:
            receipt = build_shard(job, index)
            assert receipts_of(job.output_url) == set(range(index + 1))
            stored, rows = read_receipt(storage, index, job.root)
            assert stored == receipt
            kept = [ref.key for ref in shard_plan(open_build(job.output_url, job.root), index).refs]
            rejected = {event.key for event in receipt.events if event.kind == "rejected"}
            assert rows.column("key").to_pylist() == [key for key in kept if key not in rejected]
            before = digests(job.output_url)
            assert build_shard(job, index) == receipt
            assert digests(job.output_url) == before
            (tmp_path / "out" / job.root / "receipts" / f"{index:05d}.parquet").unlink()
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
