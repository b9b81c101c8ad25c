"""The emulator fails as it is told, and never outlives who started it; tests of storages show that it answers as Cloud
Storage does."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.gcs_emulator import REPOSITORY, GCSEmulator
from tests.support.gcs_proxy import RESET_AFTER, RESET_BEFORE, RESET_BODY
from tests.support.waiting import end_soon

OBJECTS = "/storage/v1/b/bucket/o"


class Client:
    """One connection, without retries of any kind."""

    def __init__(self, url: str) -> None:
        self.connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=100)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, names)
        with self.connection.getresponse() as response:
            return response.status, response.read()

    def insert(self, name: str, data: bytes) -> None:
        """A simple upload."""
        document = json.dumps({"name": name}).encode()
        parts = b"--X\r\nContent-Type: application/json\r\n\r\n%s\r\n--X\r\nContent-Type: image/jpeg\r\n\r\n%s\r\n--X--"
        kind = 'multipart/related; boundary="X"'
        self.send("POST", f"/upload{OBJECTS}?uploadType=multipart", parts % (document, data), Content_Type=kind)

    def read(self, name: str) -> bytes:
        return self.send("GET", f"/bucket/{name}")[1]


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
    assert (client.send("GET", f"{OBJECTS}/reset-{kind}")[0] == 200) == served


def test_faults_are_drawn_by_their_seed_at_their_rate(emulator: GCSEmulator, client: Client) -> None:
    client.insert("drawn", b"1")

    def draw(seed: int) -> list[int]:
        emulator.set_faults(0.25, seed=seed, kinds=["429", "503"])
        return [client.send("GET", f"{OBJECTS}/drawn")[0] for _ in range(200)]

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
