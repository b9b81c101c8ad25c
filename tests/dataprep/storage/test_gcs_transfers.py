"""Ranges of objects, read by many threads at once, over faults, and by forked processes."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google.auth
import google.auth.credentials
import google.auth.exceptions
import pytest

from dataprep.errors import AccessError, ConflictError, StorageError
from dataprep.storage import gcs_client, open_storage
from dataprep.storage.checksums import crc32c_of, crc32c_text
from dataprep.storage.gcs import UPLOAD_CHUNK_BYTES, GCSStorage
from tests.support.gcs_emulator import GCSEmulator
from tests.support.gcs_proxy import RESET_BODY
from tests.support.storages import quick_bucket, run_python

storage = quick_bucket


def test_a_truncated_response_is_not_returned(gcs: GCSEmulator, storage: GCSStorage) -> None:
    data = os.urandom(300_000)
    storage.create("x", data)
    gcs.set_faults(0.5, seed=5, kinds=[RESET_BODY])
    for _ in range(20):
        assert storage.read_range("x", 100_000, 110_000) == data[100_000:210_000]
        assert storage.read("x") == data


class RefusedCredentials(google.auth.credentials.Credentials):
    """Credentials of an account whose key was withdrawn."""

    def refresh(self, request: Any) -> None:
        raise google.auth.exceptions.RefreshError("invalid_grant: account not found")


def test_range_reads_use_the_credentials_of_google_auth_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(google.auth, "default", lambda scopes, quota_project_id: (RefusedCredentials(), "project"))
    gcs_client._credentials.cache_clear()
    try:
        storage = GCSStorage("gs://bucket-of-withdrawn-account/data")
        with pytest.raises(AccessError, match=r"no valid credentials; .*invalid_grant: account not found"):
            storage.read_range("x", 0, 1)
    finally:
        gcs_client._credentials.cache_clear()


@pytest.fixture
def own(bucket_url, monkeypatch):
    """An emulator that may be slow, because no other test uses it."""
    with GCSEmulator() as emulator:
        emulator.create_bucket("dataprep-tests")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
        yield emulator


def test_64_ranges_are_read_concurrently(own, bucket_url):
    storage, data = GCSStorage(bucket_url), os.urandom(64 * 110_000)
    storage.create("x", data)
    own.set_latency(200)
    own.set_together(64)
    with ThreadPoolExecutor(storage.reads_in_flight) as threads:
        parts = threads.map(lambda at: storage.read_range("x", at, 110_000), range(0, len(data), 110_000))
        assert b"".join(parts) == data
    assert own.stats()["most_in_flight"] == storage.reads_in_flight == 64


@pytest.mark.long
def test_a_slow_link_shared_by_many_reads_is_not_taken_for_a_lost_server(own, bucket_url):
    """All of them together take three times as long as an unanswered read may."""
    storage, data = GCSStorage(bucket_url, gcs_client.Deadlines(lost_s=0.8)), os.urandom(64 * 50_000)
    GCSStorage(bucket_url).create("x", data)
    own.set_bandwidth(len(data) / 2.4)
    with ThreadPoolExecutor(64) as threads:
        parts = threads.map(lambda at: storage.read_range("x", at, 50_000), range(0, len(data), 50_000))
        assert b"".join(parts) == data


def test_a_reader_that_gives_up_says_how_a_slow_connection_is_borne(own, bucket_url):
    GCSStorage(bucket_url).create("x", b"late")
    own.set_latency(3000)
    impatient = GCSStorage(bucket_url, gcs_client.Deadlines(lost_s=0.5))
    for read in (lambda: impatient.read_range("x", 0, 4), lambda: impatient.read("x")):
        with pytest.raises(StorageError, match=r"fewer requests at a time \(reads_in_flight\).*\(deadline_s\)$"):
            read()


FORK = """
import os, signal, warnings
from dataprep.errors import StorageError
from dataprep.storage import open_storage

def fails(read, kind, text):
    try:
        read()
    except kind as error:
        return text in str(error)

storage = open_storage(os.environ["URL"])
storage.create("x", b"0123456789")
assert storage.read_range("x", 2, 3) == b"234"
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
if os.fork() == 0:
    signal.alarm(100)
    assert storage.read_range("x", 2, 3) == b"234"
    assert storage.read("x") == b"0123456789"
    assert fails(lambda: storage.read_range("x", 8, 5), StorageError, "ends at 10")
    assert fails(lambda: storage.read_range("x", 99, 5), StorageError, "ends at 10")
    assert fails(lambda: storage.read_range("y", 0, 1), FileNotFoundError, "/y")
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""


def test_a_forked_child_can_read(bucket_url: str) -> None:
    done = run_python(FORK, URL=bucket_url)
    assert (done.returncode, done.stderr) == (0, "")


LARGE = 2 * UPLOAD_CHUNK_BYTES + 12_345
SIZES = [0, 1, UPLOAD_CHUNK_BYTES, LARGE]


def write(storage, name, data, step=1_000_000):
    """Write a spool file as a build does, and tell how much of it there is."""
    spool = storage.spool_path(name)
    with storage.sending(spool, name) as sent, spool.open("r+b", buffering=0) as file:
        for start in range(0, len(data), step):
            file.write(data[start : start + step])
            sent(min(start + step, len(data)))
    return spool, crc32c_text(crc32c_of(data))


@pytest.mark.parametrize("num_bytes", SIZES)
def test_a_shard_sent_while_it_is_written_is_published_whole(bucket_url, num_bytes):
    storage, data = open_storage(bucket_url), os.urandom(num_bytes)
    spool, crc32c = write(storage, "train/a.tar", data)
    storage.publish(spool, "train/a.tar", crc32c)
    assert not spool.exists()
    assert storage.read("train/a.tar") == data


def test_a_large_file_is_sent_once(bucket_url, monkeypatch):
    storage, data = open_storage(bucket_url), os.urandom(LARGE)
    spool, crc32c = write(storage, "a.tar", data)
    monkeypatch.setattr(GCSStorage, "_send", None)
    storage.publish(spool, "a.tar", crc32c)
    assert storage.read("a.tar") == data


def test_nothing_is_visible_before_the_end_nor_after_an_error(bucket_url):
    storage = open_storage(bucket_url)
    spool = storage.spool_path("a.tar")

    def write_and_fail():
        with storage.sending(spool, "a.tar") as sent, spool.open("r+b", buffering=0) as file:
            file.write(bytes(LARGE))
            sent(LARGE)
            raise RuntimeError("an image was bad")

    with pytest.raises(RuntimeError, match="an image was bad"):
        write_and_fail()
    assert list(storage.list()) == []
    again, crc32c = write(storage, "a.tar", b"good" * 5_000_000)
    storage.publish(again, "a.tar", crc32c)
    assert storage.stat("a.tar").num_bytes == 20_000_000


def test_an_existing_equal_object_is_success_and_a_different_one_a_conflict(bucket_url):
    storage, data = open_storage(bucket_url), os.urandom(LARGE)
    storage.create("a.tar", data)
    spool, crc32c = write(storage, "a.tar", data)
    storage.publish(spool, "a.tar", crc32c)
    other, crc32c = write(storage, "a.tar", data[1:])
    with pytest.raises(ConflictError, match=f"{LARGE:,} bytes"):
        storage.publish(other, "a.tar", crc32c)
    assert storage.read("a.tar") == data


def test_an_object_that_arrived_damaged_is_replaced(bucket_url):
    storage, data = open_storage(bucket_url), os.urandom(LARGE)
    spool, _ = write(storage, "a.tar", data)
    storage._following[spool].finish()  # in the bucket now; on the way to it a bit was lost
    good = b"\x01" + data[1:]
    spool.write_bytes(good)
    storage.publish(spool, "a.tar", crc32c_text(crc32c_of(good)))
    assert storage.read("a.tar") == good


def test_shards_are_published_despite_failing_requests(gcs, bucket_url):
    storage, data = open_storage(bucket_url), os.urandom(LARGE)
    gcs.set_faults(0.3, seed=1)
    for number in range(3):
        spool, crc32c = write(storage, f"{number}.tar", data)
        storage.publish(spool, f"{number}.tar", crc32c)
    gcs.set_faults(0)
    assert [info.num_bytes for info in storage.list()] == [LARGE] * 3
