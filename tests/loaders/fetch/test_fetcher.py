"""What every fetcher promises: the right bytes, settings within their ranges, and errors that name the shard."""

from __future__ import annotations

import itertools

import pyarrow.parquet as pq
import pytest

from dataprep.errors import FormatError, StorageError, UsageError
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of
from loaders.fetch.fetcher import BucketFetcher, DiskFetcher, Record
from loaders.order import Order, check_budget
from tests.loaders.fetch.conftest import fetch
from tests.support.faults import linked_copy
from tests.support.slow_storage import SlowStorage

FORMATS = ("webdataset", "tfrecord", "imagefolder")


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
