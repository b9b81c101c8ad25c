"""The client of a process, and how long a failed request is sent again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.api_core.exceptions import RetryError
from google.api_core.retry import Retry

from dataprep.storage import gcs_client, gcs_ranges
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.gcs_client import retry_policy
from tests.support.gcs_emulator import GCSEmulator

GO_ON = "run the same command again: it goes on where it stopped"


@pytest.fixture
def storage(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> GCSStorage:
    monkeypatch.setattr(gcs_client, "RETRY_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(gcs_client, "RETRY_LONGEST_WAIT_S", 0.02)
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


class Refusal(Exception):
    """An answer of the server, with its HTTP status."""

    def __init__(self, code: int | None) -> None:
        self.code = code


def attempts(retry: Retry, errors: Sequence[Exception]) -> int:
    """Call through a retry what fails with these errors, one after the other; the number of calls until it ended."""
    left, made = list(errors), []

    def call() -> str:
        made.append(1)
        if left:
            raise left.pop(0)
        return "done"

    with contextlib.suppress(Refusal, RetryError):
        retry(call)()
    return len(made)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_client, "RETRY_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(gcs_client, "RETRY_LONGEST_WAIT_S", 0.001)


@pytest.mark.usefixtures("quickly")
def test_only_retryable_requests_are_retried():
    retry = retry_policy(lambda error: getattr(error, "code", None) == 503)
    assert attempts(retry, [Refusal(503)] * 5) == 6
    assert attempts(retry, [Refusal(503), Refusal(404), Refusal(503)]) == 2


@pytest.mark.usefixtures("quickly")
def test_requests_fail_at_the_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 0.05)
    assert 1 < attempts(retry_policy(lambda error: True), [Refusal(503)] * 100_000) < 100_000


def test_the_address_of_the_emulator_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    assert gcs_client.emulator_url() == "http://127.0.0.1:1"
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    assert gcs_client.emulator_url() == ""
