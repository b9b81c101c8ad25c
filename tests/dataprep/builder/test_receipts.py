"""A shard that has a receipt is done; a receipt is its own build's."""

import pyarrow as pa
import pytest

from dataprep.builder.receipts import (
    LISTING_SHARE,
    POLL_S,
    ReceiptWatch,
    finished_shards,
    read_receipt,
    read_receipts,
    read_summary,
    receipt_file,
    write_receipt,
)
from dataprep.dataset.index import IndexRows
from dataprep.dataset.records import Event, Placement, ShardReceipt
from dataprep.errors import ConflictError, FormatError

ROOT = "_build/0/1"


def receipt(index: int, **more) -> ShardReceipt:
    events = (Event("b", "rejected", "truncated", "image file is truncated"),)
    fields = {"samples": 1, "num_bytes": 9, "sha256": "0" * 64, "crc32c": "AAAAAA==", "events": events}
    return ShardReceipt(index=index, split="val", split_index=index, file=f"val/{index}.tar", **(fields | more))


def rows(index: int):
    table = IndexRows(index)
    table.add("a", b"image", Placement(0, 9, 2, 5), label=0, height=4, width=3)
    return table.table()


def test_receipt_is_read_back_with_its_rows(storage):
    write_receipt(storage, receipt(3), rows(3), ROOT)
    assert read_receipt(storage, 3, ROOT) == (receipt(3), rows(3))
    assert read_receipt(storage, 4, ROOT) is None
    write_receipt(storage, receipt(3), rows(3), ROOT)  # the same again, as after a crash
    with pytest.raises(ConflictError):
        write_receipt(storage, receipt(3, samples=2), rows(3), ROOT)


def test_receipts_are_read_in_the_given_order(storage):
    for index in (5, 0, 2):
        write_receipt(storage, receipt(index), rows(index), ROOT)
    assert finished_shards(storage, ROOT) == {0, 2, 5}
    found = list(read_receipts(storage, [2, 1, 5, 0], ROOT))
    assert [pair and pair[0].index for pair in found] == [2, None, 5, 0]


def test_receipt_of_another_build_is_refused_naming_both(storage):
    write_receipt(storage, receipt(0), rows(0), ROOT)
    storage.create(receipt_file(0, "_build/0/2"), storage.read(receipt_file(0, ROOT)))
    with pytest.raises(FormatError, match=f"a receipt of {ROOT}, expected one of _build/0/2"):
        read_receipt(storage, 0, "_build/0/2")


def test_names_sort_as_indexes_do(storage):
    indexes = [0, 9, 99_999, 100_000, 100_001, 585_000, 999_999, 1_000_000, 12_345_678]
    names = [receipt_file(index, ROOT) for index in indexes]
    assert names == sorted(names)
    assert names[2:4] == [f"{ROOT}/receipts/99999.parquet", f"{ROOT}/receipts/a100000.parquet"]
    for name in [*names, *(f"{ROOT}/receipts/{odd}.parquet" for odd in ("x", "1", "a00001", "00007.tmp"))]:
        storage.create(name, b"")
    assert finished_shards(storage, ROOT) == set(indexes)


class Clock:
    """A clock that each listing of a storage moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Counting:
    """A storage in which every object that is listed or looked up is counted, and takes time of a clock."""

    def __init__(self, storage, clock: Clock, listing_s: float = 0.0) -> None:
        self._storage, self._clock, self._listing_s = storage, clock, listing_s
        self.listed, self.looked_up = [], []

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def list(self, prefix="", first=""):
        self._clock.now_s += self._listing_s
        for info in self._storage.list(prefix, first):
            self.listed.append(info.name)
            yield info

    def stat(self, name):
        self.looked_up.append(name)
        return self._storage.stat(name)

    def counts(self) -> tuple[int, int]:
        found = len(self.listed), len(self.looked_up)
        self.listed, self.looked_up = [], []
        return found


def test_watch_lists_from_the_lowest_missing_shard(storage):
    for index in range(40):
        storage.create(receipt_file(index, ROOT), b"")
    counted = Counting(storage, Clock())
    watch = ReceiptWatch(counted, ROOT, range(60), Clock())
    assert list(watch.look()) == list(range(40)) and counted.counts() == (40, 0)
    assert not watch.look() and counted.counts() == (0, 0)
    for index in (41, 43):
        storage.create(receipt_file(index, ROOT), b"")
    assert list(watch.look()) == [41, 43] and counted.counts() == (2, 0)
    storage.create(receipt_file(40, ROOT), b"")
    assert list(watch.look()) == [40] and counted.counts() == (3, 0)
    assert not watch.look() and counted.counts() == (1, 0)  # 43, which comes after 42
    assert watch.missing == {42, *range(44, 60)}


def test_a_shard_that_stays_behind_costs_one_request_a_look(storage, monkeypatch):
    monkeypatch.setattr("dataprep.builder.receipts.PAGE_RECEIPTS", 10)
    for index in {*range(100)} - {3, 50}:
        storage.create(receipt_file(index, ROOT), b"")
    counted = Counting(storage, Clock())
    watch = ReceiptWatch(counted, ROOT, {3, 50, *range(90, 110)}, Clock())  # all others were finished before
    assert list(watch.look()) == list(range(90, 100))
    counted.counts()
    assert not watch.look() and counted.counts() == (0, 2)
    storage.create(receipt_file(3, ROOT), b"")
    storage.create(receipt_file(104, ROOT), b"")
    assert list(watch.look()) == [3, 104] and counted.counts() == (1, 2)


def test_watch_spends_a_small_share_of_the_time_on_listing(storage):
    clock = Clock()
    watch = ReceiptWatch(Counting(storage, clock, listing_s=3), ROOT, range(5), clock)
    assert watch.wait_s == 0 and not list(watch.receipts())
    assert watch.wait_s == pytest.approx(3 / LISTING_SHARE)
    storage.create(receipt_file(0, ROOT), b"")
    assert not list(watch.receipts())
    assert clock.now_s == 3  # nothing was due, and nothing was listed
    quick = ReceiptWatch(Counting(storage, clock), ROOT, range(5), clock)
    quick.look()
    assert quick.wait_s == POLL_S


def test_watch_yields_receipts_without_reading_their_rows(storage):
    events = tuple(Event(f"{key:0200}", "rejected", "truncated", "image file is truncated") for key in range(500))
    for index in (0, 2):
        many = pa.concat_tables([rows(index)] * 20_000).combine_chunks()
        write_receipt(storage, receipt(index, samples=20_000, events=events[: 250 * index]), many, ROOT)
    watch = ReceiptWatch(storage, ROOT, range(3))
    reads = []
    with pytest.MonkeyPatch.context() as patch:
        read_range = type(storage).read_range
        patch.setattr(
            type(storage),
            "read_range",
            lambda self, name, offset, count: reads.append(count) or read_range(self, name, offset, count),
        )
        patch.setattr(type(storage), "read", None)
        assert [each.index for each in watch.receipts()] == [0, 2]
    assert len(reads) == 3  # the second has more rejections than the first read takes
    assert watch.missing == {1} and not list(watch.receipts(now=True))
    assert read_summary(storage, storage.stat(receipt_file(2, ROOT)), 2, ROOT).events == events


@pytest.mark.parametrize("data", [b"", b"x", b"PAR1" + bytes(40) + b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1"])
def test_what_is_no_receipt_is_refused_by_its_end(storage, data):
    storage.create(receipt_file(0, ROOT), data)
    with pytest.raises(FormatError, match=r"00000.parquet: not a receipt \(.*\); dataprep did not write it: remove"):
        list(ReceiptWatch(storage, ROOT, [0]).receipts())


def test_a_receipt_that_is_gone_again_is_not_read(storage):
    write_receipt(storage, receipt(0), rows(0), ROOT)
    info = storage.stat(receipt_file(0, ROOT))
    storage.delete(info.name)
    assert read_summary(storage, info, 0, ROOT) is None
