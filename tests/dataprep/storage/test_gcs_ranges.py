"""Ranges of objects, read by many threads at once, over faults, and by forked processes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google.auth
import google.auth.credentials
import google.auth.exceptions
import pytest

from dataprep.errors import AccessError, StorageError
from dataprep.storage import gcs_client, gcs_retry
from dataprep.storage.gcs import GCSStorage
from tests.support.gcs_emulator import GCSEmulator
from tests.support.gcs_proxy import RESET_BODY
from tests.support.storages import run_python


@pytest.fixture
def storage(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> GCSStorage:
    monkeypatch.setattr(gcs_retry, "RETRY_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(gcs_retry, "RETRY_LONGEST_WAIT_S", 0.02)
    return GCSStorage(bucket_url)


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
    monkeypatch.setattr(google.auth, "default", lambda scopes: (RefusedCredentials(), "project"))
    gcs_client._credentials.cache_clear()
    try:
        storage = GCSStorage("gs://bucket-of-withdrawn-account/data")
        with pytest.raises(AccessError, match=r"no valid credentials; .*invalid_grant: account not found"):
            storage.read_range("x", 0, 1)
    finally:
        gcs_client._credentials.cache_clear()


def test_64_ranges_are_read_concurrently(bucket_url: str) -> None:
    with GCSEmulator() as own, pytest.MonkeyPatch.context() as patch:
        own.create_bucket("dataprep-tests")
        patch.setenv("STORAGE_EMULATOR_HOST", own.url)
        storage = GCSStorage(bucket_url)
        data = os.urandom(64 * 110_000)
        storage.create("x", data)
        own.set_latency(200)
        own.set_together(64)
        with ThreadPoolExecutor(storage.reads_in_flight) as threads:
            parts = threads.map(lambda at: storage.read_range("x", at, 110_000), range(0, len(data), 110_000))
            assert b"".join(parts) == data
        assert own.stats()["most_in_flight"] == storage.reads_in_flight == 64


@pytest.mark.long
def test_a_slow_link_shared_by_many_reads_is_not_taken_for_a_lost_server(bucket_url: str) -> None:
    """All of them together take three times as long as an unanswered read may."""
    patient = gcs_retry.Deadlines(lost_s=0.8)
    with GCSEmulator() as own, pytest.MonkeyPatch.context() as patch:
        own.create_bucket("dataprep-tests")
        patch.setenv("STORAGE_EMULATOR_HOST", own.url)
        data = os.urandom(64 * 50_000)
        GCSStorage(bucket_url).create("x", data)
        own.set_bandwidth(len(data) / 2.4)
        storage = GCSStorage(bucket_url, patient)
        with ThreadPoolExecutor(64) as threads:
            parts = threads.map(lambda at: storage.read_range("x", at, 50_000), range(0, len(data), 50_000))
            assert b"".join(parts) == data


def test_a_reader_that_gives_up_says_how_a_slow_connection_is_borne(bucket_url: str) -> None:
    with GCSEmulator() as own, pytest.MonkeyPatch.context() as patch:
        own.create_bucket("dataprep-tests")
        patch.setenv("STORAGE_EMULATOR_HOST", own.url)
        GCSStorage(bucket_url).create("x", b"late")
        own.set_latency(3000)
        impatient = GCSStorage(bucket_url, gcs_retry.Deadlines(lost_s=0.5))
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
