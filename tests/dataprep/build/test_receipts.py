"""A shard that has a receipt is done; a receipt is its own build's."""

import pytest

from dataprep.build.receipts import finished_shards, read_receipt, read_receipts, receipt_file, write_receipt
from dataprep.dataset.index_rows import IndexRows
from dataprep.dataset.records import Event, Placement, ShardReceipt
from dataprep.errors import ConflictError, FormatError
from dataprep.storage import open_storage

ROOT = "_build/0/1"


def receipt(index: int, **more) -> ShardReceipt:
    events = (Event("b", "rejected", "truncated", "image file is truncated"),)
    fields = {"samples": 1, "num_bytes": 9, "sha256": "0" * 64, "crc32c": "AAAAAA==", "events": events}
    return ShardReceipt(index=index, split="val", split_index=index, file=f"val/{index}.tar", **(fields | more))


def rows(index: int):
    table = IndexRows(index)
    table.add("a", b"image", Placement(0, 9, 2, 5), label=0, height=4, width=3)
    return table.table()


@pytest.fixture
def storage(storage_url):
    return open_storage(storage_url)


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
