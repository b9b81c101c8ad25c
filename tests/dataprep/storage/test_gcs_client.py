"""The client of a process, its retries, and refusals as one line that names the permission, bucket or next step."""

import contextlib
import gzip
import itertools
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from google.api_core.exceptions import RetryError
from google.api_core.retry import Retry

from dataprep.errors import AccessError, StorageError
from dataprep.storage import gcs_client, gcs_transfers, open_storage
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.gcs_client import Deadlines, retry_policy
from tests.support.gcs_emulator import GCSEmulator
from tests.support.storages import all_calls, quick_bucket
from tests.support.virtual_time import RetryClock, retry_in_virtual_time

storage = quick_bucket
GO_ON = "run the same command again: it continues where it stopped"


def test_many_concurrent_library_calls_succeed_over_shared_connections(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_latency(20)
    with ThreadPoolExecutor(64) as threads:
        assert all(threads.map(lambda number: storage.create(f"{number:03d}", b"1"), range(256)))
    gcs.set_latency(0)
    assert len(list(storage.list())) == 256


def test_clients_are_made_once_a_process(gcs: GCSEmulator, storage: GCSStorage) -> None:
    assert gcs_client.client() is gcs_client.client()
    storage.create("x", b"1")
    gcs_transfers._store.cache_clear()
    with ThreadPoolExecutor(64) as threads:
        assert set(threads.map(lambda _: storage.read_range("x", 0, 1), range(64))) == {b"1"}
    assert gcs_transfers._store.cache_info().misses == 1


def test_the_address_of_the_emulator_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    assert gcs_client.emulator_url() == "http://127.0.0.1:1"
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    assert gcs_client.emulator_url() == ""


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> RetryClock:
    return retry_in_virtual_time(monkeypatch)


@pytest.mark.usefixtures("quickly", "clock")
def test_requests_fail_at_the_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 0.05)
    assert 1 < attempts(retry_policy(lambda error: True), [Refusal(503)] * 100_000) < 100_000


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_reader_with_deadlines_waits_as_long_for_a_server_that_refuses(status: int):
    retry = retry_policy(lambda error: True, deadlines=Deadlines(lost_s=0.0, refused_s=60.0))
    assert attempts(retry, [Refusal(status)] * 5) == 6


@pytest.mark.usefixtures("quickly")
def test_a_server_that_never_answers_is_lost_at_once_where_the_deadline_is_none():
    retry = retry_policy(lambda error: True, deadlines=Deadlines(lost_s=0.0, refused_s=60.0))
    assert attempts(retry, [Refusal(None)] * 5) == 1
    patient = retry_policy(lambda error: True, deadlines=Deadlines(lost_s=3600.0, refused_s=60.0))
    assert attempts(patient, [Refusal(None)] * 5) == 6


class _RefusingAtFirst(BaseHTTPRequestHandler):
    """A bucket that answers 503 to twenty requests, then has any object."""

    requests = itertools.count()

    def do_GET(self) -> None:
        if next(self.requests) < 20:
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *words: object) -> None:
        pass


def test_a_read_of_a_whole_object_that_is_refused_is_repeated_for_as_long_as_any_request(monkeypatch, caplog, clock):
    """Twenty waits are longer than a lost server is waited for, and shorter than one that refuses."""
    monkeypatch.setattr(gcs_client, "_warned", threading.Event())
    monkeypatch.setattr(gcs_client, "SILENT_S", 0.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), _RefusingAtFirst) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        bucket = GCSStorage("gs://refusing/data", Deadlines(lost_s=60.0, refused_s=36_000.0))
        assert bucket.read("dataset.json") == b"{}"
        server.shutdown()
    assert next(_RefusingAtFirst.requests) == 21
    assert clock.now_s > 60
    assert "does not answer" not in caplog.text


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """A server that does not exist, behind a proxy that is not there; requests end within a second."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proxy = f"127.0.0.1:{taken.getsockname()[1]}"
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@{proxy}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://storage.invalid")
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 0.5)
    monkeypatch.setattr(gcs_client, "SILENT_S", 0.0)
    monkeypatch.setattr(gcs_client, "_warned", threading.Event())
    return proxy


@pytest.mark.usefixtures("quickly")
def test_a_dead_proxy_is_named_at_once_and_in_the_end(nowhere: str, caplog: pytest.LogCaptureFixture):
    note = f" (through the proxy {nowhere} of HTTP_PROXY or ALL_PROXY; NO_PROXY lists hosts that need none); "
    with pytest.raises(StorageError) as caught:
        open_storage("gs://bucket/prefix").read("x")
    assert note + GO_ON in str(caught.value)
    (warning,) = caplog.messages
    assert warning.startswith("dataprep: warning: Cloud Storage does not answer (")
    assert warning.endswith(f"{note}trying again until 0 s have passed")
    assert "secret" not in f"{warning} {caught.value}"


@pytest.mark.usefixtures("quickly", "nowhere")
def test_a_host_of_no_proxy_is_reached_without_the_proxy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_PROXY", ".invalid")
    with pytest.raises(StorageError) as caught:
        open_storage("gs://bucket/prefix").read("x")
    assert "proxy" not in str(caught.value)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("scheme", ["socks", "socks5"])
def test_a_proxy_of_socks_is_refused_at_once(scheme: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", f"{scheme}://127.0.0.1:9")
    with pytest.raises(AccessError, match=r"SOCKS.* \(through the proxy .*127.0.0.1:9 .*; name a proxy of http://"):
        open_storage("gs://bucket/prefix").read("x")


# Refusals


@pytest.mark.parametrize(
    ("call", "permission"),
    [
        (lambda storage: storage.stat("x"), "storage.objects.get"),
        (lambda storage: storage.read("x"), "storage.objects.get"),
        (lambda storage: storage.read_range("x", 0, 1), "storage.objects.get"),
        (lambda storage: list(storage.list()), "storage.objects.list"),
        (lambda storage: storage.create("x", b""), "storage.objects.create"),
        (lambda storage: storage.delete("x"), "storage.objects.delete"),
    ],
)
def test_a_missing_permission_is_named(gcs, storage, call, permission):
    gcs.set_faults(1, kinds=["403"])
    wanted = rf"{storage.url}/?x?: permission {permission} is missing; grant it to the account in use, for example with"
    with pytest.raises(AccessError, match=wanted):
        call(storage)


def test_invalid_credentials_say_how_to_get_others(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_faults(1, kinds=["401"])
    for call in all_calls(storage):
        with pytest.raises(AccessError, match='no valid credentials; run "gcloud auth application-default login"'):
            call()


def test_a_missing_bucket_is_named(gcs: GCSEmulator) -> None:
    storage = GCSStorage("gs://no-such-bucket/data")
    for call in all_calls(storage)[:-2]:
        with pytest.raises(AccessError, match="the bucket gs://no-such-bucket does not exist; create it, or check"):
            call()


def test_a_bucket_whose_reader_pays_is_read_once_a_project_is_named(gcs, monkeypatch):
    gcs.create_bucket("reader-pays", reader_pays=True)
    storage = GCSStorage("gs://reader-pays/data")
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "")
    gcs_client.bill("my-project")
    storage.create("x", b"0123")
    assert [info.name for info in storage.list()] == ["x"]
    assert (storage.stat("x").num_bytes, storage.read("x"), storage.read_range("x", 1, 2)) == (4, b"0123", b"12")
    monkeypatch.delenv("GOOGLE_CLOUD_QUOTA_PROJECT")
    for call in all_calls(storage)[:5]:
        with pytest.raises(
            AccessError, match=r"\(requester pays\): name .*, `billing_project` or GOOGLE_CLOUD_QUOTA_PROJECT=PROJECT"
        ):
            call()


def test_an_object_that_is_sent_decompressed_is_named_at_once(gcs: GCSEmulator) -> None:
    gcs.create_bucket("compressed")
    blob = gcs_client.client().bucket("compressed").blob("x.tar")
    blob.content_encoding = "gzip"
    blob.upload_from_string(gzip.compress(b"0123" * 99))
    retries = gcs_client.retries.count
    with pytest.raises(
        StorageError, match=r"gs://compressed/x.tar: stored with Content-Encoding gzip, .* store it witho"
    ):
        GCSStorage("gs://compressed").read_range("x.tar", 2, 20)
    assert gcs_client.retries.count == retries


def test_without_credentials_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    storage = GCSStorage("gs://some-bucket/data")
    for call in all_calls(storage):
        with pytest.raises(AccessError, match=r'gs://some-bucket/data.* no valid credentials; run "gcloud auth'):
            call()
