"""The receipt decides: every state in which a fetched shard may be found, on disk and in a bucket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataprep.checksums import HashingWriter
from dataprep.columns import table_of
from dataprep.errors import ConflictError, StorageError
from dataprep.laion.commit import decide, files_of, placing, put_in_place
from dataprep.records import Fetched, ShardReceipt
from dataprep.storage import open_storage
from dataprep.workspace import BUILD, index_schema, read_receipt, write_receipt

SAMPLES, BESIDE = "train/00000.tar", "train/00000.parquet"
ROWS = table_of([()] * len(index_schema()), index_schema())


@pytest.fixture
def storage(storage_url):
    return open_storage(storage_url)


def digests(data: bytes) -> HashingWriter:
    found = HashingWriter(None)
    found.write(data)
    return found


def attempt(storage, name: str, content: bytes) -> ShardReceipt:
    """What a worker has written before its receipt: the files, in a folder of their own."""
    folder = f"{BUILD}/tmp/{name}"
    files = {SAMPLES: content * 1000, BESIDE: content}
    for file, data in files.items():
        storage.create(f"{folder}/{file}", data)
    samples, beside = (digests(data) for data in files.values())
    entry = {"file": BESIDE, "bytes": len(content), "sha256": beside.sha256, "crc32c": beside.crc32c}
    return ShardReceipt(
        index=0,
        split="train",
        split_index=0,
        file=SAMPLES,
        samples=0,
        num_bytes=samples.num_bytes,
        sha256=samples.sha256,
        crc32c=samples.crc32c,
        fetched=Fetched(attempt=folder, files=(entry,), statuses={"success": 0}, reasons={}),
    )


def names(storage) -> list[str]:
    return [info.name for info in storage.list() if not info.name.startswith(f"{BUILD}/receipts/")]


def test_a_receipt_comes_back_as_it_was(storage):
    receipt = attempt(storage, "00000-a", b"one")
    assert decide(storage, BUILD, receipt, ROWS) == receipt
    assert read_receipt(storage, 0)[0] == receipt
    assert names(storage) == [BESIDE, SAMPLES]
    assert storage.read(SAMPLES) == b"one" * 1000


def test_who_loses_drops_its_own_and_completes_the_winner(storage):
    first, second = attempt(storage, "00000-a", b"one"), attempt(storage, "00000-b", b"two")
    write_receipt(storage, first, ROWS)  # and killed here
    assert decide(storage, BUILD, second, ROWS) == first
    assert names(storage) == [BESIDE, SAMPLES]
    assert storage.read(BESIDE) == b"one"


@pytest.mark.parametrize("placed", [(), (SAMPLES,), (SAMPLES, BESIDE)])
def test_killed_while_files_were_put_in_place(storage, placed):
    receipt = attempt(storage, "00000-a", b"one")
    folder = receipt.fetched.attempt
    for name in placed:
        data = storage.read(f"{folder}/{name}")
        storage.create(name, data)
    if placed:
        storage.delete(f"{folder}/{placed[0]}")
    put_in_place(storage, receipt)
    put_in_place(storage, receipt)
    assert names(storage) == [BESIDE, SAMPLES]
    assert storage.read(SAMPLES) == b"one" * 1000


def test_the_merge_puts_in_place_what_waits(storage):
    receipt = attempt(storage, "00000-a", b"one")
    place = placing(storage)
    place(receipt)
    assert names(storage) == [BESIDE, SAMPLES]
    placing(storage)(receipt)


def test_another_file_in_the_place_is_no_success(storage):
    receipt = attempt(storage, "00000-a", b"one")
    storage.create(BESIDE, b"two")
    with pytest.raises(ConflictError, match=BESIDE):
        put_in_place(storage, receipt)
    assert storage.read(BESIDE) == b"two"


def test_files_that_are_gone_are_named(storage):
    receipt = attempt(storage, "00000-a", b"one")
    storage.delete(f"{receipt.fetched.attempt}/{SAMPLES}")
    with pytest.raises(StorageError, match=f"{SAMPLES}: not put in place from _build/tmp/00000-a"):
        put_in_place(storage, receipt)


def test_files_that_are_damaged_are_not_taken(bucket_url):
    """A disk keeps no checksum that would say so for nothing."""
    storage = open_storage(bucket_url)
    receipt = attempt(storage, "00000-a", b"one")
    with pytest.raises(StorageError):
        put_in_place(storage, replace(receipt, crc32c="AAAAAA=="))
    assert storage.stat(SAMPLES) is None


def test_a_finished_and_cleaned_build_is_a_conflict(storage):
    """The other build's files stand, its receipts are gone: what comes late changes nothing."""
    winner = attempt(storage, "00000-a", b"one")
    put_in_place(storage, winner)
    late = attempt(storage, "00000-b", b"two")
    with pytest.raises(ConflictError):
        decide(storage, BUILD, late, ROWS)
    assert storage.read(BESIDE) == b"one"
    assert [info.name for info in files_of(winner)] == [SAMPLES, BESIDE]
