"""Shards of one worker: the next one is begun while late rows are waited for, and nothing else changes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.receipts import read_receipt, write_receipt
from dataprep.dataset.columns import table_of
from dataprep.dataset.index import index_schema
from dataprep.dataset.paths import BUILD
from dataprep.dataset.records import Fetched, ShardReceipt
from dataprep.errors import ConflictError, FormatError, StorageError
from dataprep.fetched.shard import built_names
from dataprep.fetched.shards import Places, ShardFetcher, decide, files_of, placing, put_in_place
from dataprep.storage import open_storage
from dataprep.storage.checksums import HashingWriter
from tests.support.builds import digests
from tests.support.fetched import Watcher, fetch_request
from tests.support.picture_web import LIMITS, picture_web

ROWS_PER_SHARD = 20
SHARDS = 3


class LateRows:
    """A server that keeps some pictures back until it is told."""

    def __init__(self, web, numbers):
        self.come = threading.Event()
        self._numbers, self._answer = numbers, web.answer
        web.answer = self.answer

    def answer(self, number):
        if number in self._numbers:
            self.come.wait(100)
        return self._answer(number)


@pytest.fixture
def web():
    with picture_web() as server:
        yield server


def build(web, folder, name, engine):
    table = folder / "laion.parquet"
    web.write_table(table, SHARDS * ROWS_PER_SHARD)
    limits = replace(LIMITS, host_connections=64, connect_s=600.0, read_s=600.0, answer_s=600.0)
    request = fetch_request(table, str(folder / name), rows_per_shard=ROWS_PER_SHARD, limits=limits)
    run_build(request, engine, Watcher())
    return digests(folder / name)


def test_a_late_row_delays_its_own_shard_alone(web, tmp_path):
    late = LateRows(web, {7})

    def engine(job, indexes):
        fetcher = ShardFetcher(job)
        first, second = fetcher.begin(0), fetcher.begin(1)
        yield second.result(timeout=100)
        assert not first.done()
        late.come.set()
        yield first.result(timeout=100)
        yield fetcher.begin(2).result(timeout=100)

    found = build(web, tmp_path, "ahead", engine)
    assert found == build(web, tmp_path, "one-by-one", lambda job, indexes: map(ShardFetcher(job).build, indexes))


def test_a_third_shard_is_not_begun_while_two_wait_for_late_rows(web, tmp_path):
    late = LateRows(web, {7, ROWS_PER_SHARD + 7})

    def engine(job, indexes):
        fetcher = ShardFetcher(job)
        begun = [fetcher.begin(0), fetcher.begin(1)]
        with ThreadPoolExecutor(1) as thread:
            third = thread.submit(fetcher.begin, 2)
            threading.Event().wait(0.5)
            asked = max(web.asked)
            late.come.set()
            begun.append(third.result(timeout=100))
        assert asked < 2 * ROWS_PER_SHARD
        yield from (receipt.result(timeout=100) for receipt in begun)

    build(web, tmp_path, "out", engine)
    assert set(web.asked.values()) == {1}


def test_an_error_in_a_shard_is_raised_by_its_future(web, tmp_path, monkeypatch):
    def engine(job, indexes):
        fetcher = ShardFetcher(job)
        monkeypatch.setattr("dataprep.fetched.shard.make_shard", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fetcher.begin(0).result(timeout=100)
        monkeypatch.undo()
        yield from (fetcher.begin(index).result(timeout=100) for index in indexes)

    build(web, tmp_path, "out", engine)


SAMPLES, BESIDE, STATS = "train/00000.tar", "train/00000.parquet", "train/00000_stats.json"
FIRST, SECOND = f"00000-{'a' * 32}", f"00000-{'b' * 32}"
PLACES = Places(root=BUILD, names=built_names("laion", "webdataset", "train", 5))
ROWS = table_of([()] * len(index_schema()), index_schema())


def digested(data: bytes) -> HashingWriter:
    found = HashingWriter()
    found.write(data)
    return found


def attempt(storage, name: str, content: bytes) -> ShardReceipt:
    """What a worker has written before its receipt: the files, in a folder of their own."""
    folder = f"{BUILD}/tmp/{name}"
    files = {SAMPLES: content * 1000, BESIDE: content, STATS: content}
    for file, data in files.items():
        storage.create(f"{folder}/{file}", data)
    samples, beside = digested(files[SAMPLES]), digested(content)
    entry = {"bytes": len(content), "sha256": beside.sha256, "crc32c": beside.crc32c}
    return ShardReceipt(
        index=0,
        split="train",
        split_index=0,
        file=SAMPLES,
        samples=0,
        num_bytes=samples.num_bytes,
        sha256=samples.sha256,
        crc32c=samples.crc32c,
        fetched=Fetched(
            attempt=folder,
            files=tuple(entry | {"file": file} for file in (BESIDE, STATS)),
            statuses={"success": 0},
            reasons={},
        ),
    )


def names(storage) -> list[str]:
    return [info.name for info in storage.list() if not info.name.startswith(f"{BUILD}/receipts/")]


def test_a_receipt_is_read_back_unchanged(storage):
    receipt = attempt(storage, FIRST, b"one")
    assert decide(storage, PLACES, receipt, ROWS) == receipt
    assert read_receipt(storage, 0, PLACES.root)[0] == receipt
    assert names(storage) == [BESIDE, SAMPLES, STATS]
    assert storage.read(SAMPLES) == b"one" * 1000


def test_the_losing_attempt_is_removed_and_the_winners_files_are_put_in_place(storage):
    first, second = attempt(storage, FIRST, b"one"), attempt(storage, SECOND, b"two")
    write_receipt(storage, first, ROWS, PLACES.root)  # and killed here
    assert decide(storage, PLACES, second, ROWS) == first
    assert names(storage) == [BESIDE, SAMPLES, STATS]
    assert storage.read(BESIDE) == b"one"


@pytest.mark.parametrize("placed", [(), (SAMPLES,), (SAMPLES, BESIDE, STATS)])
def test_files_half_put_in_place_by_a_killed_worker_are_completed(storage, placed):
    receipt = attempt(storage, FIRST, b"one")
    folder = receipt.fetched.attempt
    for name in placed:
        data = storage.read(f"{folder}/{name}")
        storage.create(name, data)
    if placed:
        storage.delete(f"{folder}/{placed[0]}")
    put_in_place(storage, receipt)
    put_in_place(storage, receipt)
    assert names(storage) == [BESIDE, SAMPLES, STATS]
    assert storage.read(SAMPLES) == b"one" * 1000


def test_merging_puts_waiting_files_in_place(storage):
    receipt = attempt(storage, FIRST, b"one")
    place = placing(storage)
    place(receipt)
    assert names(storage) == [BESIDE, SAMPLES, STATS]
    placing(storage)(receipt)


def test_another_file_in_the_place_is_a_conflict(storage):
    receipt = attempt(storage, FIRST, b"one")
    storage.create(BESIDE, b"two")
    with pytest.raises(ConflictError, match=BESIDE):
        put_in_place(storage, receipt)
    assert storage.read(BESIDE) == b"two"


def test_missing_files_are_named(storage):
    receipt = attempt(storage, FIRST, b"one")
    storage.delete(f"{receipt.fetched.attempt}/{SAMPLES}")
    with pytest.raises(StorageError, match=f"{SAMPLES}: could not be put in place from _build/tmp/{FIRST}"):
        put_in_place(storage, receipt)


def test_damaged_files_are_not_put_in_place(bucket_url):
    """Only in a bucket: a disk keeps no checksum that would show damage without a read."""
    storage = open_storage(bucket_url)
    receipt = attempt(storage, FIRST, b"one")
    with pytest.raises(StorageError):
        put_in_place(storage, replace(receipt, crc32c="AAAAAA=="))
    assert storage.stat(SAMPLES) is None


def test_a_late_attempt_after_a_finished_build_is_a_conflict(storage):
    """The other build's files stand, its receipts are gone: what comes late changes nothing."""
    winner = attempt(storage, FIRST, b"one")
    put_in_place(storage, winner)
    late = attempt(storage, SECOND, b"two")
    with pytest.raises(ConflictError):
        decide(storage, PLACES, late, ROWS)
    assert storage.read(BESIDE) == b"one"
    assert [info.name for info in files_of(winner)] == [SAMPLES, BESIDE, STATS]


@pytest.mark.parametrize(
    "change",
    [
        {"index": 1},
        {"split": "../train"},
        {"split_index": 1},
        {"file": "id_ed25519"},
        {"file": "../id_ed25519"},
        {"file": "dataset.json"},
        {"attempt": "../home/me/.ssh"},
        {"attempt": "train"},
        {"attempt": f"{BUILD}/tmp/{FIRST}/../../../../home"},
        {"attempt": f"{BUILD}/tmp/00001-{'a' * 32}"},
        {"attempt": None},
        {"files": ()},
        {"files": ({"file": BESIDE}, {"file": "dataset.json"})},
        {"files": ({"file": BESIDE}, {})},
    ],
)
def test_a_receipt_that_names_what_is_not_its_own_is_refused(storage, change):
    storage.create("dataset.json", b"{}")
    receipt = attempt(storage, FIRST, b"one")
    before = names(storage)
    beside = {name: value for name, value in change.items() if name in ("attempt", "files")}
    shard = {name: value for name, value in change.items() if name not in beside}
    hostile = replace(receipt, **shard, fetched=replace(receipt.fetched, **beside))
    with pytest.raises(FormatError, match=f"its {next(iter(change))} is .*, expected .*; dataprep did not write it"):
        PLACES.checked(storage, 0, hostile)
    if "index" not in change:
        write_receipt(storage, hostile, ROWS, PLACES.root)
        with pytest.raises(FormatError, match="remove _build/ and run the same command again"):
            decide(storage, PLACES, receipt, ROWS)  # its own attempt goes, as the receipt stands
        assert names(storage) == [name for name in before if not name.startswith(f"{BUILD}/tmp/{FIRST}/")]
