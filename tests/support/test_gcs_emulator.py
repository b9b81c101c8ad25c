"""The emulator answers as Cloud Storage does, fails as it is told, and never outlives who started it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import google_crc32c
import psutil
import pytest

from tests.support import gcs_proxy
from tests.support.gcs_emulator import REPOSITORY, GCSEmulator
from tests.support.gcs_proxy import FAULTS, HALF_CHUNK, RESET_AFTER, RESET_BEFORE, RESET_BODY, Proxy
from tests.support.waiting import end_soon

OBJECTS = "/storage/v1/b/bucket/o"
UPLOADS = f"/upload{OBJECTS}"


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """One connection, without retries of any kind."""

    def __init__(self, url: str) -> None:
        self.connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=100)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, names)
        with self.connection.getresponse() as response:
            return Response(response.status, response.headers, response.read())

    def insert(self, name: str, data: bytes, query: str = "", **metadata: str) -> Response:
        """A simple upload."""
        document = json.dumps({"name": name, **metadata}).encode()
        parts = b"--X\r\nContent-Type: application/json\r\n\r\n%s\r\n--X\r\nContent-Type: image/jpeg\r\n\r\n%s\r\n--X--"
        kind = 'multipart/related; boundary="X"'
        return self.send("POST", f"{UPLOADS}?uploadType=multipart{query}", parts % (document, data), Content_Type=kind)

    def start_upload(self, name: str, query: str = "", **metadata: str) -> Response:
        document = json.dumps({"name": name, **metadata}).encode()
        return self.send("POST", f"{UPLOADS}?uploadType=resumable{query}", document)

    def put_chunk(self, session: Response, data: bytes, span: str) -> Response:
        path = "/" + session.headers["Location"].split("/", 3)[3]
        return self.send("PUT", path, data, Content_Range=f"bytes {span}")

    def read(self, name: str) -> bytes:
        return self.send("GET", f"/bucket/{name}").body


@pytest.fixture(scope="module")
def emulator() -> Iterator[GCSEmulator]:
    with GCSEmulator() as emulator:
        emulator.create_bucket("bucket")
        yield emulator


@pytest.fixture
def client(emulator: GCSEmulator) -> Iterator[Client]:
    with Client(emulator.url) as client:
        yield client
    emulator.set_faults(0)
    emulator.set_latency(0)
    emulator.set_bandwidth(None)


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


# As Cloud Storage does


def test_a_simple_upload_is_read_back_whole_and_in_ranges(client: Client) -> None:
    data = os.urandom(300_000)
    inserted = json.loads(client.insert("simple", data, crc32c=crc32c(data)).body)
    assert (inserted["size"], inserted["crc32c"], inserted["contentType"]) == ("300000", crc32c(data), "image/jpeg")
    for path in ("/bucket/simple", f"/download{OBJECTS}/simple?alt=media"):
        assert client.send("GET", path).body == data
        part = client.send("GET", path, Range="bytes=100000-209999")
        assert (part.status, part.body) == (206, data[100_000:210_000])
    assert client.send("GET", "/bucket/simple", Range="bytes=300000-300001").status == 416
    assert client.send("GET", "/bucket/simple", Range="bytes=299999-300001").body == data[-1:]


def test_a_generation_of_0_requires_that_no_object_exists(client: Client) -> None:
    assert client.insert("once", b"1", "&ifGenerationMatch=0").status == 200
    assert client.insert("once", b"2", "&ifGenerationMatch=0").status == 412
    generation = json.loads(client.send("GET", f"{OBJECTS}/once").body)["generation"]
    assert client.insert("once", b"3", f"&ifGenerationMatch={generation}").status == 200
    assert client.read("once") == b"3"


def test_of_two_resumable_uploads_of_one_name_the_second_to_end_is_refused(client: Client) -> None:
    first, second = (client.start_upload("race", "&ifGenerationMatch=0") for _ in range(2))
    assert client.put_chunk(first, b"first", "0-4/5").status == 200
    assert client.put_chunk(second, b"later", "0-4/5").status == 412
    assert client.start_upload("race", "&ifGenerationMatch=0").status == 412
    assert client.read("race") == b"first"


def test_a_resumable_upload_keeps_and_reports_the_bytes_received(client: Client) -> None:
    session = client.start_upload("parts", crc32c=crc32c(b"0123456789"))
    assert client.put_chunk(session, b"", "*/10").headers.get("Range") is None
    assert client.put_chunk(session, b"0123", "0-3/10").headers["Range"] == "bytes=0-3"
    assert client.put_chunk(session, b"0123", "0-3/10").headers["Range"] == "bytes=0-3"
    assert client.put_chunk(session, b"89", "8-9/10").status == 503
    asked = client.put_chunk(session, b"", "*/10")
    assert (asked.status, asked.headers["Range"]) == (308, "bytes=0-3")
    last = client.put_chunk(session, b"23456789", "2-9/10")
    again = client.put_chunk(session, b"23456789", "2-9/10")
    assert (again.status, again.body) == (last.status, last.body) == (200, last.body)
    assert client.read("parts") == b"0123456789"


def test_an_upload_with_a_wrong_checksum_creates_no_object(client: Client) -> None:
    assert client.insert("wrong", b"1", crc32c=crc32c(b"2")).status == 400
    session = client.start_upload("wrong", crc32c=crc32c(b"2"))
    assert client.put_chunk(session, b"1", "0-0/1").status == 400
    assert client.send("GET", f"{OBJECTS}/wrong").status == 404


def test_a_deletion_obeys_its_precondition(client: Client) -> None:
    client.insert("gone", b"1")
    assert client.send("DELETE", f"{OBJECTS}/gone?ifGenerationMatch=1").status == 412
    generation = json.loads(client.send("GET", f"{OBJECTS}/gone").body)["generation"]
    assert client.send("DELETE", f"{OBJECTS}/gone?ifGenerationMatch={generation}").status == 204
    assert client.send("DELETE", f"{OBJECTS}/gone").status == 404


def test_a_missing_bucket_and_a_missing_object_have_different_answers(client: Client) -> None:
    client.insert("there", b"1")
    for path in (OBJECTS + "/x", "/bucket/x", f"/download{OBJECTS}/x?alt=media"):
        assert json.loads(client.send("GET", path).body)["error"]["message"] == "No such object: bucket/x"
        missing = client.send("GET", path.replace("bucket", "other"))
        assert json.loads(missing.body)["error"]["message"] == "The specified bucket does not exist."
    for kind in ("multipart", "resumable"):
        body = b'--X\r\n\r\n{"name": "x"}\r\n--X\r\n\r\n\r\n--X--' if kind == "multipart" else b'{"name": "x"}'
        path = f"{UPLOADS}?uploadType={kind}".replace("bucket", "other")
        assert client.send("POST", path, body, Content_Type="multipart/related; boundary=X").status == 404


def test_a_long_listing_is_complete_and_in_order(client: Client) -> None:
    names = [f"list/{number:03d}" for number in range(120)]
    for name in reversed(names):
        client.insert(name, b"")
    listed = json.loads(client.send("GET", f"{OBJECTS}?prefix=list/").body)
    assert [item["name"] for item in listed["items"]] == names


def test_objects_may_be_kept_in_a_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with GCSEmulator(root=tmp_path) as emulator, Client(emulator.url) as client:
            if not (tmp_path / "bucket").exists():
                emulator.create_bucket("bucket")
                client.insert("a/x", b"kept")
            assert client.read("a/x") == b"kept"


def test_the_command_of_the_documents_serves_the_buckets_of_a_folder(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs/bottleneck.md").read_text()
    (line,) = re.findall(r"^\.venv/bin/python (-m tests\.support\.gcs_emulator .*) &$", text, re.MULTILINE)
    words = line.replace("--port 4443", "--port 0").replace("--root buckets", f"--root {tmp_path}").split()
    (tmp_path / "bucket").mkdir()
    with subprocess.Popen([sys.executable, *words], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            with Client(process.stdout.readline().strip()) as client:
                client.insert("a/x", b"kept")
                assert client.read("a/x") == b"kept"
        finally:
            process.terminate()


# As it is told


@pytest.mark.parametrize("status", [403, 429, 503])
def test_a_fault_that_answers_with_a_status_changes_nothing(emulator: GCSEmulator, client: Client, status: int) -> None:
    emulator.set_faults(1, kinds=[str(status)])
    assert client.insert(f"status-{status}", b"1").status == status
    emulator.set_faults(0)
    assert client.send("GET", f"{OBJECTS}/status-{status}").status == 404


@pytest.mark.parametrize(("kind", "served"), [(RESET_BEFORE, False), (RESET_AFTER, True), (RESET_BODY, True)])
def test_a_connection_is_reset_before_or_after_the_request_is_served(
    emulator: GCSEmulator, client: Client, kind: str, served: bool
) -> None:
    emulator.set_faults(1, kinds=[kind])
    with pytest.raises((ConnectionResetError, http.client.HTTPException)):
        client.insert(f"reset-{kind}", b"1")
    emulator.set_faults(0)
    client.connection.close()
    assert (client.send("GET", f"{OBJECTS}/reset-{kind}").status == 200) == served


def test_a_reset_in_the_body_is_sent_after_half_of_it(emulator: GCSEmulator, client: Client) -> None:
    data = os.urandom(110_000)
    client.insert("half", data)
    emulator.set_faults(1, kinds=[RESET_BODY])
    client.connection.request("GET", "/bucket/half")
    response = client.connection.getresponse()
    assert b"".join(response.read(1000) for _ in range(55)) == data[:55_000]
    with pytest.raises(ConnectionResetError):
        response.read(1000)
    client.connection.close()


def test_half_a_chunk_is_kept_and_the_rest_requested_again(emulator: GCSEmulator, client: Client) -> None:
    session = client.start_upload("chunk")
    emulator.set_faults(1, kinds=[HALF_CHUNK])
    kept = client.put_chunk(session, b"0123456789", "0-9/10")
    assert (kept.status, kept.headers["Range"]) == (308, "bytes=0-4")
    emulator.set_faults(0)
    assert client.put_chunk(session, b"56789", "5-9/10").status == 200
    assert client.read("chunk") == b"0123456789"


def test_faults_are_drawn_by_their_seed_at_their_rate(emulator: GCSEmulator, client: Client) -> None:
    client.insert("drawn", b"1")

    def draw(seed: int) -> list[int]:
        emulator.set_faults(0.25, seed=seed, kinds=["429", "503"])
        return [client.send("GET", f"{OBJECTS}/drawn").status for _ in range(200)]

    before = emulator.stats()["faults"]
    first = draw(1)
    after = emulator.stats()["faults"]
    assert {status: first.count(int(status)) for status in ("429", "503")} == {
        status: after[status] - before.get(status, 0) for status in ("429", "503")
    }
    assert 30 < 200 - first.count(200) < 70
    assert draw(1) == first
    assert draw(2) != first


def test_unknown_faults_are_refused(emulator: GCSEmulator) -> None:
    with pytest.raises(ValueError, match="'reset' is no fault, expected an HTTP status or one of"):
        emulator.set_faults(1, kinds=[*FAULTS, "reset"])


def test_requests_are_delayed_concurrently(emulator: GCSEmulator, client: Client) -> None:
    client.insert("slow", b"1")
    begun = emulator.stats()["requests"]
    emulator.set_latency(36_000_000)
    with ExitStack() as stack:
        held = [stack.enter_context(Client(emulator.url)).connection for _ in range(64)]
        for connection in held:
            connection.request("GET", "/bucket/slow")
        while emulator.stats()["requests"] < begun + len(held):
            time.sleep(0.01)
        answered, _, _ = select.select([connection.sock for connection in held], [], [], 0)
        assert answered == []
        assert emulator.stats()["most_in_flight"] >= len(held)


def test_latency_is_in_milliseconds() -> None:
    assert Proxy(200).latency_s == 0.2


def test_a_delayed_request_does_not_delay_others(emulator: GCSEmulator, client: Client) -> None:
    client.insert("there", b"1")
    begun = emulator.stats()["requests"]
    emulator.set_latency(36_000_000)
    with Client(emulator.url) as held:
        held.connection.request("GET", "/bucket/there")
        while emulator.stats()["requests"] == begun:
            time.sleep(0.01)
        emulator.set_latency(1)
        assert client.read("there") == b"1"


class Link:
    """A clock that only sleeping moves, and clients that note when a piece has come through."""

    Lock = asyncio.Lock

    def __init__(self) -> None:
        self.now_s = 100.0
        self.came: list[tuple[float, str, int]] = []

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    def client(self, name: str) -> SimpleNamespace:
        async def drain() -> None:
            await asyncio.sleep(0)

        def write(piece: bytes) -> None:
            self.came.append((self.now_s - 100, name, len(piece)))

        return SimpleNamespace(is_gone=False, writer=SimpleNamespace(write=write, drain=drain))


def test_responses_share_the_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link()
    monkeypatch.setattr(gcs_proxy, "time", link)
    monkeypatch.setattr(gcs_proxy, "asyncio", link)

    async def send() -> None:
        bandwidth = gcs_proxy.Bandwidth(1e6)
        clients = [link.client(str(number)) for number in range(8)]
        await asyncio.gather(*(bandwidth.send(bytes(100_000), client) for client in clients))

    asyncio.run(send())
    assert link.came[-1][0] == pytest.approx(0.8 - gcs_proxy.OVERSLEPT_S)  # 800 kB at 1 MB/s
    came = Counter[str]()
    for _, name, num_bytes in link.came:
        came[name] += num_bytes
        assert max(came.values()) - min(came[str(number)] for number in range(8)) <= 1e6 * gcs_proxy.TURN_S
    assert set(came.values()) == {100_000}


def test_a_link_with_a_queue_sends_a_whole_piece_of_each_response_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link()
    monkeypatch.setattr(gcs_proxy, "time", link)
    monkeypatch.setattr(gcs_proxy, "asyncio", link)

    async def send() -> None:
        bandwidth = gcs_proxy.Bandwidth(1e6, turn_bytes=25_000)
        clients = [link.client(str(number)) for number in range(8)]
        await asyncio.gather(*(bandwidth.send(bytes(100_000), client) for client in clients))

    asyncio.run(send())
    assert link.came[-1][0] == pytest.approx(0.8 - gcs_proxy.OVERSLEPT_S)
    assert [(name, num_bytes) for _, name, num_bytes in link.came] == [(str(n), 25_000) for n in range(8)] * 4


def test_limited_bandwidth_holds_a_body_back_until_it_is_lifted(emulator: GCSEmulator, client: Client) -> None:
    data = bytes(100_000)
    client.insert("wide", data)
    emulator.set_bandwidth(1e-4)
    with Client(emulator.url) as held:
        held.connection.request("GET", "/bucket/wide")
        with held.connection.getresponse() as response:
            assert held.connection.sock is not None
            held.connection.sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                response.read()
        emulator.set_bandwidth(None)
        assert client.read("wide") == data


# Its processes


def family(emulator: GCSEmulator) -> list[psutil.Process]:
    process = psutil.Process(emulator.pid)
    return [process, *process.children(recursive=True)]


def test_emulator_listens_on_loopback_alone() -> None:
    with GCSEmulator() as emulator:
        addresses = [
            connection.laddr.ip
            for process in family(emulator)
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert addresses == ["127.0.0.1", "127.0.0.1"]


def test_no_process_is_left_after_the_block() -> None:
    with GCSEmulator() as emulator:
        processes = family(emulator)
        assert len(processes) == 2
    assert end_soon([process.pid for process in processes])


@pytest.mark.parametrize("position", [0, 1])
def test_both_processes_end_when_either_is_killed(position: int) -> None:
    with GCSEmulator() as emulator:
        processes = family(emulator)
        processes[position].kill()
        assert end_soon([process.pid for process in processes])


OWNER = """
import time
from tests.support.gcs_emulator import GCSEmulator
with GCSEmulator() as emulator:
    print(emulator.pid, flush=True)
    time.sleep(600)
"""


def test_both_processes_end_when_their_owner_is_killed() -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        process = psutil.Process(int(owner.stdout.readline()))
        processes = [process, *process.children()]
        assert len(processes) == 2
        owner.kill()
        assert end_soon([process.pid for process in processes])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_interrupted(number: int) -> None:
    command = [sys.executable, "-m", "tests.support.gcs_emulator", "--latency-ms", "5"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        processes = psutil.Process(process.pid).children()
        with Client(url) as client:
            assert client.send("GET", "/storage/v1/b").status == 200
        process.send_signal(number)
        assert process.wait(60) == 0
    assert end_soon([process.pid for process in processes])
