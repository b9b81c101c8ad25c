"""What only a bucket does: requests that fail, permissions that are missing, processes that fork or die."""

import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from dataprep.errors import AccessError, ConflictError, StorageError, UsageError
from dataprep.storage import gcs, gcs_client, open_storage
from dataprep.storage.base import ChangedError
from dataprep.storage.checksums import crc32c_of, crc32c_of_bytes, crc32c_text
from dataprep.storage.gcs import GCSStorage
from tests.support.gcs_emulator import GCSEmulator
from tests.support.gcs_proxy import FAULTS, HALF_CHUNK, RESET_AFTER, RESET_BODY
from tests.support.storages import LARGE_BYTES, all_calls, publish, quick_bucket

storage = quick_bucket
FAULT_RATE = 0.1
GO_ON = "run the same command again: it continues where it stopped"


# Faults


def test_every_call_succeeds_with_correct_bytes_despite_faults(gcs: GCSEmulator, storage: GCSStorage) -> None:
    before = gcs.stats()["faults"]
    gcs.set_faults(FAULT_RATE, seed=1)
    rng = random.Random(1)
    contents = {f"folder-{number % 7}/{number:03d}": rng.randbytes(rng.randrange(50_000)) for number in range(120)}

    def use(name: str) -> None:
        data = contents[name]
        storage.create(name, data)
        assert storage.read(name) == data
        info = storage.stat(name)
        assert info is not None
        assert (info.num_bytes, info.crc32c) == (len(data), crc32c_of_bytes(data))
        for _ in range(3):
            start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
            assert storage.read_range(name, start, end - start) == data[start:end]

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(use, contents))
    assert [info.name for info in storage.list()] == sorted(contents)
    storage.delete_tree("folder-3")
    assert [info.name for info in storage.list()] == sorted(name for name in contents if "folder-3" not in name)
    injected = {kind: count - before.get(kind, 0) for kind, count in gcs.stats()["faults"].items()}
    assert sum(injected.values()) > 50
    assert all(injected[kind] > 0 for kind in FAULTS)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("num_bytes", [1000, LARGE_BYTES])
def test_an_upload_succeeds_despite_many_faults_of_each_kind(gcs, storage, kind, num_bytes):
    gcs.set_faults(0.4, seed=7, kinds=[kind])
    data = os.urandom(num_bytes)
    for number in range(2):
        publish(storage, str(number), data)
    with storage.open("0") as stream:
        assert stream.read() == data
    gcs.set_faults(0)
    assert storage.read("1") == data


def test_an_upload_whose_response_was_lost_is_no_conflict(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_faults(0.7, seed=3, kinds=[RESET_AFTER])
    for number in range(20):
        storage.create(str(number), b"%d" % number)
    gcs.set_faults(0)
    assert [storage.read(str(number)) for number in range(20)] == [b"%d" % number for number in range(20)]


def test_a_conflict_is_reported_despite_faults(gcs: GCSEmulator, storage: GCSStorage) -> None:
    storage.create("x", b"theirs")
    gcs.set_faults(0.5, seed=4)
    for _ in range(10):
        with pytest.raises(ConflictError, match="another object exists there already: 6 bytes with CRC32C"):
            storage.create("x", b"ours")
    gcs.set_faults(0)
    assert storage.read("x") == b"theirs"


@pytest.mark.parametrize("kind", ["429", "503", "reset_before", RESET_BODY])
def test_a_failing_request_is_an_error_after_the_deadline(gcs, storage, monkeypatch, kind):
    storage.create("x", b"1")
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 0.1)
    gcs.set_faults(1, kinds=[kind])
    for call in all_calls(storage):
        with pytest.raises(StorageError, match=re.escape(GO_ON)) as caught:
            call()
        assert str(caught.value).startswith(storage.url)
        assert "\n" not in str(caught.value)
        assert not isinstance(caught.value, AccessError)


def test_an_upload_session_that_never_accepts_a_whole_chunk_is_abandoned(gcs, storage, monkeypatch):
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 0.5)
    gcs.set_faults(1, kinds=[HALF_CHUNK])
    with pytest.raises(StorageError, match=r"Bytes stream is in unexpected state.*run the same command again"):
        publish(storage, "x", bytes(LARGE_BYTES))
    gcs.set_faults(0)
    assert storage.stat("x") is None


@pytest.mark.parametrize("num_bytes", [1000, LARGE_BYTES])
def test_bytes_that_differ_from_their_checksum_are_refused(storage: GCSStorage, num_bytes: int) -> None:
    with pytest.raises(StorageError, match="doesn't match calculated CRC32C"):
        publish(storage, "x", os.urandom(num_bytes), crc32c="AAAAAA==")
    assert storage.stat("x") is None


# URLs and names


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("gs://", "does not name a bucket"),
        ("gs:///data", "does not name a bucket"),
        ("gs://UPPER/data", "does not name a bucket"),
        ("gs://b", "does not name a bucket; .* of 3 to 63 characters a-z 0-9"),
        ("gs://bucket//data", "object name '/data' must be relative"),
        ("gs://bucket/a/../b", r"object name 'a/../b' must be relative"),
    ],
)
def test_malformed_urls_are_refused(url: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        GCSStorage(url)


def test_a_bucket_without_a_prefix_is_a_storage(gcs: GCSEmulator) -> None:
    gcs.create_bucket("whole-bucket")
    storage = GCSStorage("gs://whole-bucket/")
    storage.create("x", b"1")
    assert storage.url_of("x") == "gs://whole-bucket/x"
    assert [info.name for info in storage.list()] == ["x"]
    storage.create("a/y", b"2")
    storage.delete_tree("a")
    assert [info.name for info in storage.list()] == ["x"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("é" * 513, "must have at most 1,024 bytes, got 1,0"), ("\udce9", "must be UTF-8 text, got other bytes")],
)
def test_names_that_a_bucket_cannot_have_are_refused(storage: GCSStorage, name: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        storage.create(name, b"")


def test_a_level_and_a_beginning_are_listed_alone(storage: GCSStorage) -> None:
    for name in ("a/1", "a/2", "a b/3", "é/4", "top"):
        storage.create(name, b"x")
    assert storage.folders() == ["a", "a b", "é"]
    assert storage.folders("a") == []
    assert list(storage.first("", 3)) == list(storage.list())[:3]
    assert [info.name for info in storage.first("a", 1)] == ["a/1"]
    assert [info.name for info in storage.first("a", 9)] == ["a/1", "a/2"]


def test_empty_objects_that_stand_for_folders_are_not_listed_but_deleted(storage: GCSStorage) -> None:
    bucket = gcs_client.client().bucket(storage.bucket)
    bucket.blob(f"{storage.prefix}/train/").upload_from_string(b"")
    storage.create("train/x", b"1")
    assert [info.name for info in storage.list("train")] == ["train/x"]
    storage.delete_tree("train")
    assert list(bucket.list_blobs(prefix=storage.prefix)) == []


def test_objects_get_the_content_type_of_their_name(storage: GCSStorage) -> None:
    bucket = gcs_client.client().bucket(storage.bucket)
    for name, kind in {"a.json": "application/json", "a.jpg": "image/jpeg", "a": "application/octet-stream"}.items():
        storage.create(name, b"")
        assert bucket.get_blob(f"{storage.prefix}/{name}").content_type == kind


# Many at a time, and other processes


ROOT = "_build/plan/id"
DATA = b"a shard" * 1000
DISCARDED_S = 60
"""Deadline for the removal of a copied object, for which its writer does not wait."""


class Taken(ConflictError):
    """The place is another's."""


@pytest.fixture
def place(bucket_url):
    return open_storage(bucket_url)


def publish_staged(staged, name):
    spool = staged.spool_path(name)
    with staged.sending(spool, name) as sent:
        spool.write_bytes(DATA)
        sent(len(DATA))
    staged.publish(spool, name, crc32c_text(crc32c_of(DATA)))


def create(staged, name):
    staged.create(name, DATA)


def create_last(staged, name):
    staged.create_last(name, DATA, lambda: None)


PUTS = (publish_staged, create, create_last)


@pytest.mark.parametrize("put", PUTS)
def test_a_staged_object_is_published_and_nothing_else_is_left(put, place):
    put(place.staged(ROOT, lambda: None), "train/a.tar")
    _wait_for_removal(place)
    assert [(info.name, info.num_bytes) for info in place.list()] == [("train/a.tar", len(DATA))]


@pytest.mark.parametrize("put", PUTS)
def test_a_writer_does_not_wait_for_the_removal_of_what_was_copied(put, place):
    released = Event()
    for _ in range(gcs.DISCARDS_IN_FLIGHT):
        gcs._discarding.submit(released.wait)
    try:
        put(place.staged(ROOT, lambda: None), "train/a.tar")
        assert place.read("train/a.tar") == DATA
        assert [info.num_bytes for info in place.list(f"{ROOT}/")] == [len(DATA)]
    finally:
        released.set()
    _wait_for_removal(place)
    assert list(place.list(f"{ROOT}/")) == []


def _wait_for_removal(place):
    until_s = time.monotonic() + DISCARDED_S
    while list(place.list(f"{ROOT}/")) and time.monotonic() < until_s:
        time.sleep(0.01)


@pytest.mark.parametrize("put", PUTS)
def test_an_upload_that_ends_after_the_place_was_taken_leaves_nothing(put, place):
    with pytest.raises(Taken):
        put(place.staged(ROOT, _raise_taken), "train/a.tar")
    assert list(place.list()) == []


@pytest.mark.parametrize("put", PUTS)
def test_a_place_that_is_taken_after_the_look_gets_no_copy(put, place):
    """Whoever takes it removes what lies in the folder, so that the copy has no source."""
    looks = []

    def still_ours():
        looks.append(len(list(place.list(f"{ROOT}/"))))
        if len(looks) > 1:
            raise Taken("taken")
        place.delete_tree(ROOT)

    with pytest.raises(Taken):
        put(place.staged(ROOT, still_ours), "train/a.tar")
    assert looks == [1, 0]
    assert list(place.list()) == []


@pytest.mark.parametrize("put", PUTS)
def test_an_existing_object_is_not_replaced(put, place):
    place.create("train/a.tar", b"another")
    with pytest.raises(ConflictError, match=r"another object exists there already: 7 bytes .* move it away"):
        put(place.staged(ROOT, lambda: None), "train/a.tar")
    assert place.read("train/a.tar") == b"another"
    assert list(place.list(f"{ROOT}/")) == []


def test_the_last_object_is_uploaded_while_others_are_put_and_copied_when_they_are_there(place):
    """A place that is taken while they are put gets no copy."""
    looked, seen = Event(), []

    def others():
        assert looked.wait(DISCARDED_S)
        seen.append([info.name for info in place.list() if not info.name.startswith(ROOT)])
        place.delete_tree(ROOT)

    taken = iter((looked.set, _raise_taken))
    with pytest.raises(Taken):
        place.staged(ROOT, lambda: next(taken)()).create_last("dataset.json", DATA, others)
    assert seen == [[]]
    assert list(place.list()) == []


def _raise_taken():
    raise Taken("taken")


def test_a_stream_is_of_one_version(storage):
    storage.create("x", b"before")
    with storage.open("x") as stream:
        storage.put("x", b"after")
        with pytest.raises(ChangedError, match="x: written again, replaced"):
            stream.read()


def test_bytes_are_appended_to_exactly_the_given_object(storage: GCSStorage) -> None:
    storage.put("log", b"a")
    first = storage.stat("log")
    second = storage.append(first, b"b")
    assert second == storage.stat("log") and second.version == storage.stat("log").version
    assert not storage.append(first, b"c")
    storage.put("log", b"d")
    assert not storage.append(second, b"c")
    assert (storage.read("log"), [info.name for info in storage.list()]) == (b"d", ["log"])
    storage.delete("log")
    assert not storage.append(second, b"c")
