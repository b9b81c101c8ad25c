"""Bytes of picked samples from disks, slow storages and an emulated bucket that fails, stalls and dies."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dataprep.checksums import crc32c_of
from dataprep.errors import DataprepError, FormatError, StorageError, UsageError
from dataprep.manifest import read_manifest
from dataprep.storage import Storage, open_storage
from loaders.cache import DiskCache
from loaders.fetch import Fetcher, FetchSettings, Record, check_budget, open_fetcher
from loaders.fetch_bucket import FREE_HEDGES
from loaders.order import Order, Pick, stored_picks
from loaders.rows import SplitRows
from tests.conftest import BUCKET
from tests.support.faults import linked_copy
from tests.support.gcs_emulator import GCSEmulator
from tests.support.slow_storage import SlowStorage

FORMATS = ("webdataset", "tfrecord", "imagefolder")
ORDER = {"seed": 3, "global_batch": 10, "samples_per_block": 4, "num_streams": 6, "window": 2}


@dataclass
class Opened:
    storage: Storage
    rows: SplitRows
    fetcher: Fetcher
    counts: tuple[int, ...]

    def order(self, **changes: int) -> Order:
        return Order(shard_samples=self.counts, **(ORDER | changes))

    def crc32c(self, pick: Pick) -> int:
        return int(self.rows.rows(pick.piece.shard).image_crc32c[pick.sample])


@pytest.fixture
def fetching():
    """Opens fetchers, and closes them after the test."""
    fetchers = []

    def opened(storage: Storage | str | Path, **settings) -> Opened:
        storage = open_storage(str(storage)) if isinstance(storage, str | Path) else storage
        manifest = read_manifest(storage)
        rows = SplitRows(storage, manifest, manifest.splits[0])
        fetchers.append(open_fetcher(storage, rows, FetchSettings(**settings)))
        counts = tuple(shard["samples"] for shard in manifest.splits[0].shards)
        return Opened(storage, rows, fetchers[-1], counts)

    yield opened
    for fetcher in fetchers:
        fetcher.close()


def fetch(opened: Opened, picks: Iterable[Pick], *, threads: int = 4, work_s: float = 0.0) -> int:
    """As a loader does; every image must be the one that the index tells of. The number of images."""

    def use(pick: Pick, ticket) -> None:
        try:
            image = ticket.wait()
            assert crc32c_of(bytes(image)) == opened.crc32c(pick)
            assert ticket.rows.key(ticket.row) == opened.rows.rows(pick.piece.shard).key(pick.sample)
            time.sleep(work_s)
        finally:
            ticket.done()

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(use, pick, opened.fetcher.request(pick)) for pick in picks]
        for future in futures:
            future.result()
    return len(futures)


# What is delivered


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("world_size", [1, 2, 5])  # 5 divides no 6 streams: ranks share pieces
def test_every_image_is_the_right_one(dataset, fetching, fmt, world_size):
    for rank in range(world_size):
        for storage in (SlowStorage(dataset(fmt)), open_storage(str(dataset(fmt)))):
            opened = fetching(storage)
            picks = opened.order().picks(0, rank=rank, world_size=world_size)
            count = 2 * sum(opened.counts) // world_size  # two passes
            assert fetch(opened, itertools.islice(picks, count)) == count


@pytest.mark.parametrize("fmt", FORMATS)
def test_from_a_bucket(bucket_dataset, fetching, fmt):
    opened = fetching(bucket_dataset(fmt))
    assert fetch(opened, itertools.islice(opened.order().picks(0), 150)) == 150


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
@pytest.mark.parametrize("storage_kind", [SlowStorage, lambda path: open_storage(str(path))])
def test_whole_records(dataset, fetching, fmt, storage_kind):
    opened = fetching(storage_kind(dataset(fmt)), whole_records=True)
    table = pq.ParquetFile(dataset(fmt) / "index/train.parquet")
    for pick in itertools.islice(opened.order().picks(0), 60):
        ticket = opened.fetcher.request(pick)
        found = ticket.wait()
        ticket.done()
        assert isinstance(found, Record)
        row = {name: int(values[pick.sample]) for name, values in _numbers(table, pick.piece.shard).items()}
        with open(dataset(fmt) / opened.rows.file(pick.piece.shard, pick.sample), "rb") as file:
            file.seek(row["record_offset"])
            assert bytes(found.record) == file.read(row["record_bytes"])
        assert crc32c_of(bytes(found.image)) == opened.crc32c(pick)


def _numbers(table, group):
    return table.read_row_group(group, columns=["record_offset", "record_bytes"]).to_pydict()


# One request a piece


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_a_piece_is_one_request_in_the_order_of_need(dataset, fetching, fmt):
    storage = SlowStorage(dataset(fmt))
    opened = fetching(storage, threads=1)
    for shard in range(len(opened.counts)):
        opened.rows.rows(shard)  # the index is read before
    storage.requests.clear()
    picks = list(itertools.islice(opened.order().picks(0), sum(opened.counts)))
    fetch(opened, picks)
    pieces = list(dict.fromkeys(pick.piece for pick in picks))
    rows = [opened.rows.rows(piece.shard) for piece in pieces]
    starts = [
        (opened.rows.file(piece.shard, 0), int(r.image_offset[piece.first]))
        for piece, r in zip(pieces, rows, strict=True)
    ]
    ends = [
        int(r.image_offset[piece.stop - 1] + r.image_bytes[piece.stop - 1])
        for piece, r in zip(pieces, rows, strict=True)
    ]
    assert [(name, offset) for name, offset, _ in storage.requests] == starts
    assert [offset + num_bytes for _, offset, num_bytes in storage.requests] == ends
    stats = opened.fetcher.stats()
    assert stats["requests"] == len(pieces)
    assert stats["bytes_read"] == sum(num_bytes for _, _, num_bytes in storage.requests)


def test_all_is_given_back(dataset, fetching):
    for fmt in FORMATS:
        opened = fetching(SlowStorage(dataset(fmt)))
        count = fetch(opened, stored_picks(opened.counts, samples_per_block=7))
        assert count == sum(opened.counts)
        assert opened.fetcher.stats()["held_bytes"] == 0
        assert opened.fetcher.stats()["most_held_bytes"] > 0


def test_a_piece_that_is_asked_for_again_while_it_is_held_is_another_one(dataset, fetching):
    opened = fetching(SlowStorage(dataset("webdataset")))
    picks = [*stored_picks(opened.counts[:1], samples_per_block=5)]
    tickets = [(pick, opened.fetcher.request(pick)) for pick in picks * 2]  # two evaluations, one into the other
    for pick, ticket in tickets:
        assert crc32c_of(bytes(ticket.wait())) == opened.crc32c(pick)
        ticket.done()
        ticket.done()
    assert opened.fetcher.stats()["held_bytes"] == 0


def test_shards_needed_are_those_of_new_pieces(dataset, fetching):
    opened = fetching(SlowStorage(dataset("webdataset")))
    picks = list(itertools.islice(opened.order().picks(0), 40))
    assert opened.fetcher.shards_needed(picks) == {pick.piece.shard for pick in picks}
    opened.fetcher.request(picks[0]).done()
    later = next(pick for pick in picks[1:] if pick.piece == picks[0].piece)
    assert opened.fetcher.shards_needed([later]) == set()


def test_on_disk_nothing_is_read_ahead(dataset, fetching):
    opened = fetching(dataset("webdataset"))
    picks = list(itertools.islice(opened.order().picks(0), 10))
    tickets = [opened.fetcher.request(pick) for pick in picks]
    assert opened.fetcher.stats()["requests"] == 0
    for ticket in tickets:
        ticket.wait()
    assert opened.fetcher.stats()["requests"] == 10
    assert opened.fetcher.stats()["most_held_bytes"] == 0


# The budget


def test_the_budget_is_never_exceeded(dataset, fetching):
    storage = SlowStorage(dataset("tfrecord"), latency_s=0.01)
    probe = fetching(storage)
    order = probe.order(num_streams=4)
    largest = max(
        int(r.image_offset[stop - 1] + r.image_bytes[stop - 1] - r.image_offset[first])
        for shard, samples in enumerate(probe.counts)
        for r in [probe.rows.rows(shard)]
        for first in range(0, samples, 4)
        for stop in [min(first + 4, samples)]
    )
    budget = 11 * largest  # 8 are held at once
    opened = fetching(storage, prefetch_bytes=budget)
    for shard in range(len(opened.counts)):
        opened.rows.rows(shard)
    storage.most_bytes_in_flight = 0
    fetch(opened, itertools.islice(order.picks(0), 400), work_s=0.001)
    stats = opened.fetcher.stats()
    assert budget / 2 < stats["most_held_bytes"] <= budget
    assert storage.most_bytes_in_flight <= budget
    assert stats["blocked_s"] > 0


@pytest.mark.parametrize("chunk", [1, 8])
def test_a_tiny_budget_is_slow_and_no_deadlock(dataset, fetching, chunk):
    """Also where a few tickets are asked for before any of them is waited for, as a loader does."""
    opened = fetching(SlowStorage(dataset("webdataset"), latency_s=0.001), prefetch_bytes=1)
    picks = list(itertools.islice(opened.order().picks(0), 16))
    for first in range(0, len(picks), chunk):
        tickets = [(pick, opened.fetcher.request(pick)) for pick in picks[first : first + chunk]]
        for pick, ticket in tickets:
            assert crc32c_of(bytes(ticket.wait())) == opened.crc32c(pick)
            ticket.done()


def test_what_cannot_fit_is_refused_with_the_arithmetic():
    order = Order(shard_samples=(10**6,), seed=0, global_batch=12, samples_per_block=20, num_streams=12)
    check_budget(order, 1, 100_000, 50 << 20)
    check_budget(order, 4, 100_000, 15 << 20)
    check_budget(order, 5, 100_000, 50 << 20)  # every rank takes from every stream
    with pytest.raises(UsageError) as caught:
        check_budget(order, 4, 100_000, 12_000_000)
    assert str(caught.value) == (
        "prefetch_bytes 12,000,000 must be 12,387,097 or more: 12 streams / 4 ranks * window 2 * blocks of 2,000,000 "
        "bytes (20 images) are held at once, and 3% is for reads asked for twice; raise it, or lower block_bytes, "
        "num_streams or window"
    )
    with pytest.raises(UsageError, match="must be 49,548,388 or more: 12 streams \\* window 2"):
        check_budget(order, 5, 100_000, 45_000_000)
    small = Order(shard_samples=(30,), seed=0, global_batch=12, samples_per_block=20)
    check_budget(small, 1, 100_000, 10 << 20)  # there is not that much to hold


@pytest.mark.parametrize("name", ["prefetch_bytes", "threads", "hedge_after_s", "deadline_s"])
def test_settings_out_of_range(name):
    with pytest.raises(UsageError, match=f"{name} must be above 0, got 0"):
        FetchSettings(**{name: 0})


# Slow reads


class SometimesSlow(SlowStorage):
    """The first read of every n-th range stalls."""

    def __init__(self, root: Path, every: int, stall_s: float) -> None:
        super().__init__(root)
        self.every, self.stall_s = every, stall_s
        self.seen: dict[tuple, int] = {}

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytes:
        number = self.seen.setdefault((name, offset, num_bytes), len(self.seen))
        first = (name, offset, num_bytes) not in self.requests
        data = super().read_range(name, offset, num_bytes)
        if first and not name.startswith("index") and name.startswith("train") and number % self.every == 0:
            time.sleep(self.stall_s)
        return data


@pytest.mark.parametrize("hedge_after_s", [0.1, None])
def test_a_slow_read_is_asked_for_again(dataset, fetching, hedge_after_s):
    storage = SometimesSlow(dataset("imagefolder"), every=40, stall_s=3)
    opened = fetching(storage, hedge_after_s=hedge_after_s, threads=16)
    started_s = time.monotonic()
    fetch(opened, itertools.islice(opened.order().picks(0), sum(opened.counts)))
    assert time.monotonic() - started_s < 2.5
    stats = opened.fetcher.stats()
    assert 1 <= stats["hedges_won"] <= stats["hedges"] <= FREE_HEDGES + 0.05 * stats["requests"] + 1


def test_hedges_are_few_where_all_is_slow(dataset, fetching):
    opened = fetching(SlowStorage(dataset("imagefolder"), latency_s=0.1), hedge_after_s=0.03, threads=16)
    count = fetch(opened, itertools.islice(opened.order().picks(0), 200))
    assert 0 < opened.fetcher.stats()["hedges"] <= FREE_HEDGES + 0.05 * (count + 20) + 1
    time.sleep(0.3)  # for those that lost
    assert opened.fetcher.stats()["held_bytes"] == 0


# Failures


def test_faults_are_outlived(gcs, bucket_url, dataset, fetching):
    build_copy(dataset("tfrecord"), bucket_url)
    opened = fetching(bucket_url)
    gcs.set_faults(0.2, seed=1, kinds=["429", "503", "reset_before", "reset_body"])
    assert fetch(opened, itertools.islice(opened.order().picks(0), 200)) == 200


def test_a_server_that_refuses_is_asked_for_longer_than_one_that_is_gone(gcs, bucket_url, dataset, fetching):
    build_copy(dataset("tfrecord"), bucket_url)
    opened = fetching(bucket_url, deadline_s=0.5)
    pick, other = itertools.islice(opened.order().picks(0), 2)
    for shard in range(len(opened.counts)):
        opened.rows.rows(shard)
    gcs.set_faults(1, kinds=["503"])
    ticket = opened.fetcher.request(pick)
    time.sleep(1.5)
    gcs.set_faults(0)
    assert crc32c_of(bytes(ticket.wait())) == opened.crc32c(pick)
    gcs.set_faults(1, kinds=["reset_before"])
    started_s = time.monotonic()
    with pytest.raises(StorageError, match=rf"^{bucket_url}/imagenet-train\.tfrecord-"):
        opened.fetcher.request(other).wait()
    assert time.monotonic() - started_s < 1


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("slow", [True, False])
def test_a_missing_object_is_told_at_once(dataset, fetching, tmp_path, fmt, slow):
    linked_copy(dataset(fmt), tmp_path / "d")
    opened = fetching(SlowStorage(tmp_path / "d") if slow else tmp_path / "d")
    pick = next(opened.order().picks(0))
    path = tmp_path / "d" / opened.rows.file(pick.piece.shard, pick.sample)
    path.unlink()
    ticket = opened.fetcher.request(pick)
    with pytest.raises(StorageError, match='missing, the index lists it; run "dataprep verify"') as caught:
        ticket.wait()
    ticket.done()
    assert str(caught.value).startswith(str(path))
    assert opened.fetcher.stats()["held_bytes"] == 0


def build_copy(source: Path, url: str) -> None:
    """Put a dataset's files into a bucket as they are."""
    storage = open_storage(url)
    files = [path for path in source.rglob("*") if path.is_file()]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda path: storage.create(path.relative_to(source).as_posix(), path.read_bytes()), files))


def test_a_missing_object_of_a_bucket_is_told_at_once(gcs, bucket_url, dataset, fetching):
    build_copy(dataset("webdataset"), bucket_url)
    opened = fetching(bucket_url)
    pick = next(opened.order().picks(0))
    file = opened.rows.file(pick.piece.shard, pick.sample)
    opened.storage.delete(file)
    started_s = time.monotonic()
    with pytest.raises(StorageError, match=f"^{bucket_url}/{file}: missing"):
        opened.fetcher.request(pick).wait()
    assert time.monotonic() - started_s < 1


def test_a_truncated_object_is_told(gcs, bucket_url, dataset, fetching):
    build_copy(dataset("webdataset"), bucket_url)
    opened = fetching(bucket_url)
    pick = next(opened.order().picks(0))
    file = opened.rows.file(pick.piece.shard, pick.sample)
    opened.storage.delete(file)
    opened.storage.create(file, b"short")
    with pytest.raises(StorageError, match=rf"{file}: bytes .* were asked for, it ends at 5"):
        opened.fetcher.request(pick).wait()


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_a_server_that_is_gone_is_an_error_within_five_seconds(dataset, fetching, monkeypatch, how):
    with GCSEmulator() as emulator:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
        emulator.create_bucket(BUCKET)
        build_copy(dataset("webdataset"), f"gs://{BUCKET}/gone")
        opened = fetching(f"gs://{BUCKET}/gone")
        other = fetching(f"gs://{BUCKET}/gone")
        picks = list(itertools.islice(opened.order().picks(0), 40))
        fetch(opened, picks[:2])
        for shard in range(len(opened.counts)):
            opened.rows.rows(shard)
        pid = emulator.pid
        os.kill(pid, signal.SIGSTOP) if how == "frozen" else emulator.stop()
        try:
            with ThreadPoolExecutor(1) as pool:
                index_error = pool.submit(failure, other.rows.rows, 0)
                started_s = time.monotonic()
                tickets = [opened.fetcher.request(pick) for pick in picks[20:]]
                errors = [error for error in map(failure, [ticket.wait for ticket in tickets]) if error]
                seconds = time.monotonic() - started_s
                assert "index/train.parquet" in str(index_error.result())
            assert 1 < seconds < 7  # 5, and what a busy machine adds
            assert time.monotonic() - started_s < 7
            assert errors and all(type(error) is StorageError for error in errors)
            assert all(str(error).startswith(f"gs://{BUCKET}/gone/train/") for error in errors)
        finally:
            if how == "frozen":
                os.kill(pid, signal.SIGCONT)


def failure(call, *arguments):
    """The error that a call ends with, or None."""
    try:
        call(*arguments)
    except DataprepError as error:
        return error
    return None


# Closing


class Stuck(SlowStorage):
    """Reads of shards wait until they are let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.free = threading.Event()

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytes:
        if name.startswith("train/"):
            self.free.wait()
        return super().read_range(name, offset, num_bytes)


def test_close_ends_everything_also_while_reads_hang(dataset, fetching):
    storage = Stuck(dataset("webdataset"))
    opened = fetching(storage, prefetch_bytes=100_000, threads=4)
    tickets = []
    errors = []

    def plan():
        for pick in opened.order().picks(0):
            try:
                tickets.append(opened.fetcher.request(pick))
            except StorageError as error:
                errors.append(error)
                return
            waiters.append(threading.Thread(target=lambda ticket=tickets[-1]: errors.append(failure(ticket.wait))))
            waiters[-1].start()

    waiters: list[threading.Thread] = []
    planner = threading.Thread(target=plan)
    planner.start()
    time.sleep(0.6)
    assert planner.is_alive()  # the budget is full, and somebody waits for every ticket
    started_s = time.monotonic()
    opened.fetcher.close()
    for thread in (planner, *waiters):
        thread.join(1)
        assert not thread.is_alive()
    assert time.monotonic() - started_s < 2
    assert len(errors) == len(tickets) + 1 > 1
    assert all("not read, the loader was closed" in str(error) for error in errors)
    storage.free.set()
    opened.fetcher.close()


def test_close_leaves_no_thread(dataset, fetching):
    opened = fetching(SlowStorage(dataset("webdataset")))
    fetch(opened, itertools.islice(opened.order().picks(0), 50))
    assert any(thread.name.startswith("loader-read") for thread in threading.enumerate())
    opened.fetcher.close()
    assert not any(thread.name.startswith("loader-") for thread in threading.enumerate())


# The cache


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_second_time_comes_from_the_cache(dataset, fetching, tmp_path, fmt):
    storage = SlowStorage(dataset(fmt))
    picks = list(itertools.islice(fetching(storage).order().picks(0), sum(fetching(storage).counts)))
    cold = fetching(storage, cache=DiskCache(tmp_path, 1 << 30))
    fetch(cold, picks)
    assert cold.fetcher.stats()["cache_hits"] == 0
    warm = fetching(storage, cache=DiskCache(tmp_path, 1 << 30))
    fetch(warm, picks)
    assert warm.fetcher.stats()["requests"] == 0
    assert warm.fetcher.stats()["cache_hits"] == cold.fetcher.stats()["requests"]
    damaged = sorted(tmp_path.glob("*.piece"))[0]
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    again = fetching(storage, cache=DiskCache(tmp_path, 1 << 30))
    fetch(again, picks)
    assert again.fetcher.stats()["requests"] == 1


def test_an_index_that_is_wrong_ends_the_request(dataset, fetching, tmp_path):
    linked_copy(dataset("webdataset"), tmp_path / "d")
    opened = fetching(SlowStorage(tmp_path / "d"))
    (tmp_path / "d/index/train.parquet").unlink()
    with pytest.raises(FormatError, match=r"index/train\.parquet: missing"):
        opened.fetcher.request(next(opened.order().picks(0)))
