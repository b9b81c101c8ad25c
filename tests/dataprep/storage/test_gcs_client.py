"""The client of a process, and the emulator in its place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dataprep.storage import gcs_client, gcs_ranges, gcs_retry
from dataprep.storage.gcs import GCSStorage
from tests.support.gcs_emulator import GCSEmulator

GO_ON = "run the same command again: it goes on where it stopped"


@pytest.fixture
def storage(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> GCSStorage:
    monkeypatch.setattr(gcs_retry, "RETRY_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(gcs_retry, "RETRY_LONGEST_WAIT_S", 0.02)
    return GCSStorage(bucket_url)


def test_many_concurrent_library_calls_succeed_over_shared_connections(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_latency(20)
    with ThreadPoolExecutor(64) as threads:
        assert all(threads.map(lambda number: storage.create(f"{number:03d}", b"1"), range(256)))
    gcs.set_latency(0)
    assert len(list(storage.list())) == 256


def test_clients_are_made_once_a_process(gcs: GCSEmulator, storage: GCSStorage) -> None:
    assert gcs_client.client() is gcs_client.client()
    assert gcs_ranges._store(storage.bucket, gcs.url) is gcs_ranges._store(storage.bucket, gcs.url)


def test_the_address_of_the_emulator_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    assert gcs_client.emulator_url() == "http://127.0.0.1:1"
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    assert gcs_client.emulator_url() == ""
