"""The proxy between real clients and the emulator: what passes, what is counted, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from google.api_core.exceptions import Forbidden, NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from dataprep.guard.ledger import Budget
from dataprep.guard.proxy import MAX_NAMES, OTHERS, count_name
from dataprep.guard.report import GuardReport
from dataprep.guard.run import GuardSettings, RunningGuard, running_guard
from tests.support.gcs_emulator import GCSEmulator
from tests.support.guarded import HERE, LINES, NAME

pytestmark = pytest.mark.usefixtures("placed")


def under_guard(act: Callable[[RunningGuard], object], **budget: object) -> GuardReport:
    """Run a function in a thread while a guard serves this process."""

    async def run() -> GuardReport:
        settings = GuardSettings(where=HERE, budget=Budget(**budget))
        async with running_guard(settings, os.environ) as guard:
            await asyncio.to_thread(act, guard)
            return guard.report()

    return asyncio.run(run())


def client_of(guard: RunningGuard) -> Client:
    options = {"api_endpoint": guard.environment["HTTPS_PROXY"]}
    return Client(project="p", credentials=AnonymousCredentials(), client_options=options)


def address_of(guard: RunningGuard) -> tuple[str, int]:
    found = urlsplit(guard.environment["HTTPS_PROXY"])
    return found.hostname, found.port


def test_a_clients_whole_day_passes_through_unchanged(bucket_url):
    name, _, prefix = bucket_url.removeprefix("gs://").partition("/")
    large = bytes(range(256)) * (9 << 12)  # 9 MiB: uploaded in chunks of a session

    def act(guard: RunningGuard) -> None:
        bucket = client_of(guard).bucket(name)
        for suffix, data in (("small", b"small"), ("large ä/%", large)):
            blob = bucket.blob(f"{prefix}/{suffix}", chunk_size=1 << 20)
            blob.upload_from_string(data, if_generation_match=0)
            assert bucket.get_blob(blob.name).download_as_bytes() == data
        assert bucket.blob(f"{prefix}/large ä/%").download_as_bytes(start=1000, end=1999) == large[1000:2000]
        assert len(list(bucket.list_blobs(prefix=prefix))) == 2
        with pytest.raises(NotFound, match="No such object"):
            bucket.blob(f"{prefix}/absent").download_as_bytes()
        bucket.copy_blob(bucket.blob(f"{prefix}/small"), bucket, f"{prefix}/copy")
        bucket.blob(f"{prefix}/copy").delete()

    report = under_guard(act)
    (found,) = report.buckets
    assert found.bytes_read == 5 + len(large) + 1000
    assert {kind: found.requests[kind] for kind in ("list", "copy")} == {"list": 1, "copy": 1}
    assert found.requests["write"] == 2
    assert report.not_priced == {f"copy by the server from gs://{name}": 1}
    assert report.refused == 0


def test_a_read_over_the_budget_fails_with_the_reason():
    def act(guard: RunningGuard) -> None:
        bucket = client_of(guard).bucket("guard-far")
        with pytest.raises(Forbidden, match=r"gs://guard-far in europe-west4, read from us-central1-a at \$0\.05 per"):
            bucket.blob(NAME).download_as_bytes()
        assert guard.spent.is_set()

    report = under_guard(act, max_usd=0.00001)  # 256 KiB cost 0.000012 USD
    assert report.budget_ended
    assert (report.bytes_read, report.refused) == (0, 1)
    (message,) = report.refusals
    assert re.search(
        r"the budget of \$0\.00001 is spent: \$0\.0+[1-9]+ so far, and this read costs \$0\.000012;", message
    )
    assert "no copy is listed; dataprep replicate gs://guard-far/" in message


def test_what_is_left_of_the_budget_can_be_read():
    def act(guard: RunningGuard) -> None:
        bucket = client_of(guard).bucket("guard-far")
        assert len(bucket.blob(NAME).download_as_bytes()) == len(LINES)
        with pytest.raises(Forbidden, match=r"the budget of \$0\.00002 is spent"):
            bucket.blob(NAME).download_as_bytes()
        bucket.blob("checkpoint").upload_from_string(b"x")

    report = under_guard(act, max_usd=0.00002)
    assert (report.bytes_read, report.refused) == (len(LINES), 1)


@pytest.mark.parametrize(("bucket", "reason"), [("guard-far", "only us-central1"), ("guard-hidden", "not known")])
def test_a_bucket_outside_the_allowed_places_is_not_read(bucket, reason):
    def act(guard: RunningGuard) -> None:
        client = client_of(guard)
        with pytest.raises(Forbidden, match=reason):
            client.bucket(bucket).blob(NAME).download_as_bytes()
        assert client.bucket("guard-dual").blob(NAME).download_as_bytes() == LINES

    report = under_guard(act, allowed=("us-central1",))
    assert not report.budget_ended
    assert {each.bucket: each.refused for each in report.buckets} == {"guard-dual": 0, bucket: 1}


def request_of(guard: RunningGuard, method: str, target: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address_of(guard))
    with contextlib.closing(connection):
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_requests_of_the_xml_api_are_refused_in_xml():
    def act(guard: RunningGuard) -> None:
        status, body = request_of(guard, "GET", f"/guard-far/{NAME}")
        assert status == 403
        assert b"<Code>AccessDenied</Code><Message>refused by dataprep guard: gs://guard-far in europe-west4" in body

    under_guard(act, allowed=("us",))


@pytest.fixture(scope="module")
def unasked() -> Iterator[GCSEmulator]:
    """An emulator of this fixture's tests alone: requests of others may still arrive where they were cancelled."""
    with GCSEmulator() as emulator:
        yield emulator


@pytest.mark.parametrize("target", ["/..%2Fx/y", "http://example.org/", "/UPPER/x", "*"])
def test_requests_that_name_no_bucket_are_not_sent_on(target, unasked, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", unasked.url)
    before = unasked.stats()["requests"]

    def act(guard: RunningGuard) -> None:
        assert request_of(guard, "GET", target)[0] == 400

    assert under_guard(act).buckets == ()
    assert unasked.stats()["requests"] == before


def test_links_of_an_emulator_lead_through_the_guard(placed):
    def act(guard: RunningGuard) -> None:
        blob = client_of(guard).bucket("guard-near").get_blob(NAME)
        assert blob.media_link.startswith(guard.environment["HTTPS_PROXY"])
        assert blob.download_as_bytes() == LINES

    assert under_guard(act).bytes_read == len(LINES)


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server of something else, which answers each connection with what came first."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(connection.recv(1000))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def connect(guard: RunningGuard, host: str, port: int) -> socket.socket:
    """A tunnel through the guard."""
    stream = socket.create_connection(address_of(guard))
    stream.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        received = stream.recv(1)
        assert received, head
        head += received
    assert b" 200 " in head, head
    return stream


def test_other_hosts_are_tunnelled_and_counted(echo):
    def act(guard: RunningGuard) -> None:
        with connect(guard, *echo) as stream:
            stream.sendall(b"twelve bytes")
            assert stream.recv(1000) == b"twelve bytes"
            assert stream.recv(1) == b""

    assert under_guard(act).tunnelled_bytes == {"127.0.0.1": 24}


def test_a_client_that_does_not_trust_the_guard_fails_and_is_listed():
    def act(guard: RunningGuard) -> None:
        context = ssl.create_default_context()
        with connect(guard, "storage.googleapis.com", 443) as stream, pytest.raises(ssl.SSLError):
            context.wrap_socket(stream, server_hostname="storage.googleapis.com")
        request_of(guard, "GET", "/guard-near")  # by now the guard has seen the end of the connection before

    assert under_guard(act).unread_connections == {"storage.googleapis.com": 1}


def test_a_client_that_speaks_http_2_alone_fails_and_is_listed():
    def act(guard: RunningGuard) -> None:
        context = ssl.create_default_context(cafile=guard.environment["SSL_CERT_FILE"])
        context.set_alpn_protocols(["h2"])
        stream = connect(guard, "storage.googleapis.com", 443)
        with contextlib.suppress(OSError), context.wrap_socket(stream, server_hostname="storage.googleapis.com") as tls:
            assert tls.recv(1) == b""
        request_of(guard, "GET", "/guard-near")  # by now the guard has seen the end of the connection before

    assert under_guard(act).unread_connections == {"storage.googleapis.com": 1}


def test_a_client_that_speaks_both_gets_http_1():
    def act(guard: RunningGuard) -> None:
        context = ssl.create_default_context(cafile=guard.environment["SSL_CERT_FILE"])
        context.set_alpn_protocols(["h2", "http/1.1"])
        stream = connect(guard, "storage.googleapis.com", 443)
        with context.wrap_socket(stream, server_hostname="storage.googleapis.com") as secure:
            assert secure.selected_alpn_protocol() == "http/1.1"

    assert under_guard(act).unread_connections == {}


@pytest.mark.parametrize(
    "head", [b"CONNECT x\r\n\r\n", b"CONNECT " + b"x" * (1 << 17), b"CONNECT a:1 HTTP/1.1\r\n\r\nx"]
)
def test_malformed_connects_end_the_connection(head):
    def act(guard: RunningGuard) -> None:
        with socket.create_connection(address_of(guard)) as stream, contextlib.suppress(ConnectionError):
            stream.sendall(head)
            assert stream.recv(1) == b""

    assert under_guard(act).tunnelled_bytes == {}


def test_names_are_bounded():
    from collections import Counter

    counter: Counter[str] = Counter()
    for number in range(2 * MAX_NAMES):
        count_name(counter, f"host-{number}", 1)
    assert len(counter) == MAX_NAMES + 1
    assert counter[OTHERS] == MAX_NAMES
