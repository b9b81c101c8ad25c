"""The emulator answers as Cloud Storage does, fails as it is told, and never outlives who started it."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import psutil
import pytest

from tests.support.gcs_emulator import REPOSITORY, GCSEmulator
from tests.support.gcs_proxy import RESET_AFTER, RESET_BEFORE, RESET_BODY
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


def test_the_command_serves_the_buckets_of_a_folder(tmp_path: Path) -> None:
    words = ["-m", "tests.support.gcs_emulator", "--port", "0", "--latency-ms", "5", "--root", str(tmp_path)]
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
