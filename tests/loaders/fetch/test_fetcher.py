"""Every fetcher gives the right bytes or names the shard; from a bucket within a budget, hedged, and cached."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dataprep.errors import DataprepError, FormatError, StorageError, UnansweredError, UsageError
from dataprep.storage import gcs_client, open_storage
from dataprep.storage.checksums import crc32c_of
from dataprep.storage.gcs_client import Deadlines
from loaders.fetch.cache import DiskCache
from loaders.fetch.fetcher import FREE_HEDGES, BucketFetcher, DiskFetcher, Record
from loaders.order import Order, check_budget, stored_picks
from tests.conftest import BUCKET
from tests.loaders.fetch.conftest import fetch
from tests.support.adoption import upload
from tests.support.faults import linked_copy
from tests.support.gcs_emulator import GCSEmulator
from tests.support.slow_storage import SlowStorage
from tests.support.virtual_time import retry_in_virtual_time
from tests.support.waiting import wait_for

FORMATS = ("webdataset", "tfrecord", "imagefolder")
BOUND_S = 60.0
"""Longest time of a wait, which ends far sooner unless something is wrong."""
HOURS_S = 36_000.0
"""Longer than any machine takes for a read, so that none is made a second time."""


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("world_size", [1, 2, 5])  # 5 divides no 6 streams: ranks share pieces
def test_every_image_is_the_right_one(dataset, fetching, fmt, world_size):
    for rank in range(world_size):
        for storage in (SlowStorage(dataset(fmt)), open_storage(str(dataset(fmt)))):
            opened = fetching(storage)
            picks = opened.order().picks(0, rank=rank, world_size=world_size)
            count = 2 * sum(opened.counts) // world_size  # two passes
            assert fetch(opened, itertools.islice(picks, count)) == count


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
@pytest.mark.parametrize("storage_kind", [SlowStorage, lambda path: open_storage(str(path))])
def test_whole_records_hold_image_and_fields(dataset, fetching, fmt, storage_kind):
    opened = fetching(storage_kind(dataset(fmt)), whole_records=True)
    table = pq.ParquetFile(dataset(fmt) / "index/train.parquet")
    for pick in itertools.islice(opened.order().picks(0), 60):
        ticket = opened.fetcher.request(pick)
        found = ticket.wait()
        ticket.done()
        assert isinstance(found, Record)
        row = {name: int(values[pick.sample]) for name, values in _numbers(table, pick.piece.shard).items()}
        with open(dataset(fmt) / opened.index.file(pick.piece.shard, pick.sample), "rb") as file:
            file.seek(row["record_offset"])
            assert bytes(found.record) == file.read(row["record_bytes"])
        assert crc32c_of(bytes(found.image)) == opened.crc32c(pick)


def _numbers(table, group):
    return table.read_row_group(group, columns=["record_offset", "record_bytes"]).to_pydict()


def test_only_pieces_not_yet_known_need_their_shards_index(dataset, fetching):
    opened = fetching(SlowStorage(dataset("webdataset")))
    picks = list(itertools.islice(opened.order().picks(0), 40))
    assert opened.fetcher.shards_needed(picks) == {pick.piece.shard for pick in picks}
    opened.fetcher.request(picks[0]).done()
    later = next(pick for pick in picks[1:] if pick.piece == picks[0].piece)
    assert opened.fetcher.shards_needed([later]) == set()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("slow", [True, False])
def test_a_missing_object_is_an_error_at_once(dataset, fetching, tmp_path, fmt, slow):
    linked_copy(dataset(fmt), tmp_path / "d")
    opened = fetching(SlowStorage(tmp_path / "d") if slow else tmp_path / "d")
    pick = next(opened.order().picks(0))
    path = tmp_path / "d" / opened.index.file(pick.piece.shard, pick.sample)
    path.unlink()
    ticket = opened.fetcher.request(pick)
    fault = FormatError if fmt == "imagefolder" else StorageError  # of one image, or of a shard
    with pytest.raises(fault, match='missing, but the index lists it; run "dataprep verify"') as caught:
        ticket.wait()
    ticket.done()
    assert str(caught.value).startswith(str(path))
    assert opened.fetcher.stats()["held_bytes"] == 0


def test_a_request_fails_if_the_index_is_damaged(dataset, fetching, tmp_path):
    linked_copy(dataset("webdataset"), tmp_path / "d")
    opened = fetching(SlowStorage(tmp_path / "d"))
    (tmp_path / "d/index/train.parquet").unlink()
    with pytest.raises(FormatError, match=r"index/train\.parquet: missing"):
        opened.fetcher.request(next(opened.order().picks(0)))


def test_on_disk_nothing_is_read_ahead(dataset, fetching):
    opened = fetching(dataset("webdataset"))
    picks = list(itertools.islice(opened.order().picks(0), 10))
    tickets = [opened.fetcher.request(pick) for pick in picks]
    assert opened.fetcher.stats()["requests"] == 0
    for ticket in tickets:
        ticket.wait()
    assert opened.fetcher.stats()["requests"] == 10
    assert opened.fetcher.stats()["most_held_bytes"] == 0


def test_local_disks_get_a_disk_fetcher_and_other_storages_a_bucket_fetcher(dataset, fetching):
    path = dataset("webdataset")
    assert isinstance(fetching(open_storage(str(path))).fetcher, DiskFetcher)
    assert isinstance(fetching(SlowStorage(path)).fetcher, BucketFetcher)


def test_a_budget_that_is_too_small_is_refused_with_the_arithmetic():
    order = Order(shard_samples=(10**6,), seed=0, global_batch=12, samples_per_block=20, num_streams=12)
    check_budget(order, 1, 100_000, 50 << 20)
    check_budget(order, 4, 100_000, 15 << 20)
    check_budget(order, 5, 100_000, 50 << 20)  # every rank takes from every stream
    with pytest.raises(UsageError) as caught:
        check_budget(order, 4, 100_000, 12_000_000)
    assert str(caught.value) == (
        "prefetch_bytes 12,000,000 must be 12,387,097 or more: 12 streams / 4 ranks * window 2 * blocks of 2,000,000 "
        "bytes (20 images) are held at once, and 3% is reserved for hedged reads; raise it, or lower block_bytes, "
        "num_streams or window"
    )
    for world_size in (1, 5):
        with pytest.raises(UsageError, match="must be 49,548,388 or more: 12 streams \\* window 2"):
            check_budget(order, world_size, 100_000, 45_000_000)
    with pytest.raises(UsageError, match=r"12 streams / 2 \(divides 10 ranks, too\) \* window 2"):
        check_budget(order, 10, 100_000, 20_000_000)
    small = Order(shard_samples=(30,), seed=0, global_batch=12, samples_per_block=20)
    check_budget(small, 1, 100_000, 10 << 20)  # there is not that much to hold


# One request a piece


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_a_piece_is_one_request_in_the_order_of_need(dataset, fetching, fmt):
    storage = SlowStorage(dataset(fmt))
    opened = fetching(storage, threads=1, hedge_after_s=HOURS_S)
    opened.read_index()
    storage.requests.clear()
    picks = list(itertools.islice(opened.order().picks(0), sum(opened.counts)))
    fetch(opened, picks)
    pieces = list(dict.fromkeys(pick.piece for pick in picks))
    entries = [opened.index.shard(piece.shard) for piece in pieces]
    starts = [
        (opened.index.file(piece.shard, 0), int(r.image_offset[piece.first]))
        for piece, r in zip(pieces, entries, strict=True)
    ]
    ends = [
        int(r.image_offset[piece.stop - 1] + r.image_bytes[piece.stop - 1])
        for piece, r in zip(pieces, entries, strict=True)
    ]
    assert [(name, offset) for name, offset, _ in storage.requests] == starts
    assert [offset + num_bytes for _, offset, num_bytes in storage.requests] == ends
    stats = opened.fetcher.stats()
    assert stats["requests"] == len(pieces)
    assert stats["bytes_read"] == sum(num_bytes for _, _, num_bytes in storage.requests)


def test_no_bytes_are_held_after_the_last_ticket(dataset, fetching):
    for fmt in FORMATS:
        opened = fetching(SlowStorage(dataset(fmt)), hedge_after_s=HOURS_S)
        count = fetch(opened, stored_picks(opened.counts, samples_per_block=7))
        assert count == sum(opened.counts)
        assert opened.fetcher.stats()["held_bytes"] == 0
        assert opened.fetcher.stats()["most_held_bytes"] > 0


def test_a_piece_requested_again_while_it_is_held_is_read_again(dataset, fetching):
    opened = fetching(SlowStorage(dataset("webdataset")), hedge_after_s=HOURS_S)
    picks = [*stored_picks(opened.counts[:1], samples_per_block=5)]
    tickets = [(pick, opened.fetcher.request(pick)) for pick in picks * 2]  # two evaluations, one into the other
    for pick, ticket in tickets:
        assert crc32c_of(bytes(ticket.wait())) == opened.crc32c(pick)
        ticket.done()
        ticket.done()
    assert opened.fetcher.stats()["held_bytes"] == 0


# The budget


def test_the_budget_is_never_exceeded(dataset, fetching, monkeypatch):
    monkeypatch.setattr(
        "loaders.fetch.fetcher.IDLE_S", BOUND_S
    )  # threads that stand still are not taken for a deadlock
    storage = SlowStorage(dataset("tfrecord"), latency_s=0.01)
    probe = fetching(storage)
    order = probe.order(num_streams=4)
    largest = max(
        int(r.image_offset[stop - 1] + r.image_bytes[stop - 1] - r.image_offset[first])
        for shard, samples in enumerate(probe.counts)
        for r in [probe.index.shard(shard)]
        for first in range(0, samples, 4)
        for stop in [min(first + 4, samples)]
    )
    budget = 11 * largest  # 8 are held at once
    opened = fetching(storage, prefetch_bytes=budget)
    opened.read_index()
    storage.most_bytes_in_flight = 0
    fetch(opened, itertools.islice(order.picks(0), 400), work_s=0.001)
    stats = opened.fetcher.stats()
    assert 0 < stats["most_held_bytes"] <= budget
    assert storage.most_bytes_in_flight <= budget
    assert stats["blocked_s"] > 0


@pytest.mark.parametrize("chunk", [1, 8])
def test_a_tiny_budget_is_slow_but_does_not_deadlock(dataset, fetching, chunk):
    """Also if a few tickets are requested before any of them is waited on, as in a loader."""
    opened = fetching(SlowStorage(dataset("webdataset"), latency_s=0.001), prefetch_bytes=1)
    picks = list(itertools.islice(opened.order().picks(0), 16))
    for first in range(0, len(picks), chunk):
        tickets = [(pick, opened.fetcher.request(pick)) for pick in picks[first : first + chunk]]
        for pick, ticket in tickets:
            assert crc32c_of(bytes(ticket.wait())) == opened.crc32c(pick)
            ticket.done()


# Slow reads


class SometimesStuck(SlowStorage):
    """The first read of every n-th range waits until it is let go, or for `BOUND_S`."""

    def __init__(self, root: Path, every: int) -> None:
        super().__init__(root)
        self.every = every
        self.free = threading.Event()
        self.waited_in_vain = False
        self.seen: dict[tuple, int] = {}

    def read_range(self, name, offset, num_bytes, version=0, file_bytes=None):
        number = self.seen.setdefault((name, offset, num_bytes), len(self.seen))
        first = (name, offset, num_bytes) not in self.requests
        data = super().read_range(name, offset, num_bytes, version, file_bytes)
        if first and not name.startswith("index") and name.startswith("train") and number % self.every == 0:
            self.waited_in_vain |= not self.free.wait(BOUND_S)
        return data


@pytest.mark.parametrize("hedge_after_s", [0.1, None])
def test_a_slow_read_is_hedged(dataset, fetching, hedge_after_s, monkeypatch):
    """However many other reads a busy machine makes slow."""
    monkeypatch.setattr("loaders.fetch.fetcher.MAX_HEDGE_RATIO", 1.0)
    storage = SometimesStuck(dataset("imagefolder"), every=40)
    opened = fetching(storage, hedge_after_s=hedge_after_s, threads=16)
    fetch(opened, itertools.islice(opened.order().picks(0), sum(opened.counts)))
    stats = opened.fetcher.stats()
    storage.free.set()
    assert not storage.waited_in_vain  # all images had come while the first reads of some were still stuck
    assert 1 <= stats["hedges_won"] <= stats["hedges"]


def test_few_reads_are_hedged_if_all_reads_are_slow(dataset, fetching):
    opened = fetching(SlowStorage(dataset("imagefolder"), latency_s=0.1), hedge_after_s=0.03, threads=16)
    fetch(opened, itertools.islice(opened.order().picks(0), 200))
    wait_for(lambda: not opened.fetcher.stats()["held_bytes"])  # those that lost
    stats = opened.fetcher.stats()
    assert 0 < stats["hedges"] <= FREE_HEDGES + 0.05 * stats["requests"]
    assert stats["held_bytes"] == 0


# Failures


@pytest.fixture
def otherwise_patient(monkeypatch):
    """Every limit of waiting for a bucket is years, but for the one that a reader sets for a server that is gone."""
    monkeypatch.setattr("dataprep.storage.gcs_client.Deadlines", partial(Deadlines, refused_s=1e9))
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 1e9)
    monkeypatch.setattr(gcs_client, "REQUEST_TIMEOUT_S", 36_000.0)


@pytest.mark.usefixtures("otherwise_patient")
def test_a_busy_server_is_retried_for_longer_than_a_lost_one(gcs, bucket_url, dataset, fetching, monkeypatch):
    upload(dataset("tfrecord"), bucket_url)
    clock = retry_in_virtual_time(monkeypatch)
    opened = fetching(bucket_url, deadline_s=100.0)
    pick, other = itertools.islice(opened.order().picks(0), 2)
    opened.read_index()
    gcs.set_faults(1, kinds=["503"])
    ticket = opened.fetcher.request(pick)
    wait_for(lambda: clock.now_s > 300)
    gcs.set_faults(0)
    assert crc32c_of(bytes(ticket.wait())) == opened.crc32c(pick)
    gcs.set_faults(1, kinds=["reset_before"])
    with pytest.raises(StorageError, match=rf"^{bucket_url}/imagenet-train\.tfrecord-"):
        opened.fetcher.request(other).wait()


def test_a_truncated_object_is_an_error(gcs, bucket_url, dataset, fetching):
    upload(dataset("webdataset"), bucket_url)
    opened = fetching(bucket_url)
    pick = next(opened.order().picks(0))
    file = opened.index.file(pick.piece.shard, pick.sample)
    opened.storage.delete(file)
    opened.storage.create(file, b"short")
    with pytest.raises(StorageError, match=rf"{file}: 5 bytes, the index says"):
        opened.fetcher.request(pick).wait()


@pytest.mark.usefixtures("otherwise_patient")
@pytest.mark.parametrize("how", [pytest.param("stopped", marks=pytest.mark.long), "frozen"])
def test_a_lost_server_is_an_error_within_the_deadline(dataset, fetching, monkeypatch, how):
    with GCSEmulator() as emulator:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
        emulator.create_bucket(BUCKET)
        upload(dataset("webdataset"), f"gs://{BUCKET}/gone")
        opened = fetching(f"gs://{BUCKET}/gone")
        other = fetching(f"gs://{BUCKET}/gone")
        picks = list(itertools.islice(opened.order().picks(0), 40))
        fetch(opened, picks[:2])
        opened.read_index()
        pid = emulator.pid
        os.kill(pid, signal.SIGSTOP) if how == "frozen" else emulator.stop()
        try:
            with ThreadPoolExecutor(1) as pool:
                index_error = pool.submit(failure, other.index.shard, 0)
                tickets = [opened.fetcher.request(pick) for pick in picks[20:]]
                errors = [error for error in map(failure, [ticket.wait for ticket in tickets]) if error]
                assert "index/train.parquet" in str(index_error.result())
            assert errors and all(type(error) in (StorageError, UnansweredError) for error in errors)
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

    def read_range(self, name, offset, num_bytes, version=0, file_bytes=None):
        if name.startswith("train/"):
            self.free.wait()
        return super().read_range(name, offset, num_bytes, version, file_bytes)


def test_close_ends_everything_while_reads_hang(dataset, fetching):
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
            wait = tickets[-1].wait
            waiters.append(threading.Thread(target=lambda wait=wait: errors.append(failure(wait)), daemon=True))
            waiters[-1].start()

    waiters: list[threading.Thread] = []
    planner = threading.Thread(target=plan, daemon=True)
    planner.start()
    wait_for(lambda: waiters)
    time.sleep(0.6)
    assert planner.is_alive()  # the budget is full, and somebody waits for every ticket
    opened.fetcher.close()
    for thread in (planner, *waiters):
        thread.join(BOUND_S)
        assert not thread.is_alive()  # though no read has ended yet
    assert len(errors) == len(tickets) + 1 > 1
    assert all("not read, the loader was closed" in str(error) for error in errors)
    storage.free.set()
    opened.fetcher.close()


# The cache


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_second_read_comes_from_the_cache(dataset, fetching, tmp_path, fmt):
    storage = SlowStorage(dataset(fmt))
    picks = list(itertools.islice(fetching(storage).order().picks(0), sum(fetching(storage).counts)))
    cold = fetching(storage, cache=DiskCache(tmp_path, 1 << 30), hedge_after_s=HOURS_S)
    fetch(cold, picks)
    assert cold.fetcher.stats()["cache_hits"] == 0
    warm = fetching(storage, cache=DiskCache(tmp_path, 1 << 30), hedge_after_s=HOURS_S)
    fetch(warm, picks)
    assert warm.fetcher.stats()["requests"] == 0
    assert warm.fetcher.stats()["cache_hits"] == cold.fetcher.stats()["requests"]
    damaged = sorted(tmp_path.glob("*.piece"))[0]
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    again = fetching(storage, cache=DiskCache(tmp_path, 1 << 30), hedge_after_s=HOURS_S)
    fetch(again, picks)
    assert again.fetcher.stats()["requests"] == 1


def test_the_cache_of_a_dataset_is_not_filled_by_another_that_claims_its_digests(dataset, fetching, tmp_path):
    linked_copy(dataset("webdataset"), tmp_path / "stranger")
    cache = tmp_path / "cache"
    stranger = SlowStorage(tmp_path / "stranger")
    picks = list(itertools.islice(fetching(stranger).order().picks(0), sum(fetching(stranger).counts)))
    fetch(fetching(stranger, cache=DiskCache(cache, 1 << 30)), picks)
    mine = fetching(SlowStorage(dataset("webdataset")), hedge_after_s=HOURS_S, cache=DiskCache(cache, 1 << 30))
    fetch(mine, picks)
    assert mine.fetcher.stats()["cache_hits"] == 0


@pytest.mark.parametrize("whole_records", [False, True])
@pytest.mark.parametrize("fmt", FORMATS)
def test_the_cache_keeps_no_damaged_bytes(dataset, fetching, tmp_path, fmt, whole_records):
    """A shard that is restored is read again; the cache went on with what was damaged."""
    linked_copy(dataset(fmt), tmp_path / "copy")
    settings = {"cache": DiskCache(tmp_path / "cache", 1 << 30), "whole_records": whole_records}
    opened = fetching(SlowStorage(tmp_path / "copy"), **settings)
    pick = next(opened.order().picks(0))
    file = tmp_path / "copy" / opened.index.file(pick.piece.shard, pick.sample)
    good, entries = file.read_bytes(), opened.index.shard(pick.piece.shard)
    last = int(entries.image_offset[pick.sample] + entries.image_bytes[pick.sample]) - 1
    file.unlink()
    file.write_bytes(good[:last] + bytes([good[last] ^ 1]) + good[last + 1 :])

    def image():
        found = fetching(SlowStorage(tmp_path / "copy"), **settings).fetcher.request(pick).wait()
        return found.image if whole_records else found

    assert crc32c_of(image()) != opened.crc32c(pick)
    file.write_bytes(good)
    assert crc32c_of(image()) == opened.crc32c(pick)
    file.unlink()
    assert crc32c_of(image()) == opened.crc32c(pick)  # by now it is from the cache
