"""A metadata server of Google Cloud on loopback: what it serves is given, and how badly."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

ROOT = "/computeMetadata/v1/"
# Each attribute as the documentation shows it.
TPU = {
    "instance/zone": "projects/123456789012/zones/us-central2-b",
    "instance/attributes/worker-network-endpoints": "my-tpu-w-0:4f1:10.128.0.2,my-tpu-w-1:5a2:10.128.0.3",
}


class MetadataServer(ThreadingHTTPServer):
    """Serves `values` by their path below ROOT; anything else is 404, and 403 without the header that is asked for."""

    daemon_threads = True

    def __init__(self, values: Mapping[str, str], *, flavor: str, delay_s: float, byte_delay_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.values, self.flavor = values, flavor
        self.delay_s, self.byte_delay_s = delay_s, byte_delay_s
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        """For GCE_METADATA_HOST."""
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MetadataServer

    def do_GET(self) -> None:
        path = self.path.removeprefix(ROOT)
        self.server.asked.append(path)
        time.sleep(self.server.delay_s)
        known = path in self.server.values
        status = 403 if self.headers.get("Metadata-Flavor") != "Google" else 200 if known else 404
        body = self.server.values[path].encode() if status == 200 else b"no"
        try:
            self._answer(status, body)
        except OSError:
            self.close_connection = True  # whoever asked has given up

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if self.server.flavor:
            self.send_header("Metadata-Flavor", self.server.flavor)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not self.server.byte_delay_s:
            self.wfile.write(body)
            return
        for index in range(len(body)):
            self.wfile.write(body[index : index + 1])
            time.sleep(self.server.byte_delay_s)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@contextmanager
def metadata_server(
    values: Mapping[str, str] = TPU, *, flavor: str = "Google", delay_s: float = 0, byte_delay_s: float = 0
) -> Iterator[MetadataServer]:
    """A running server.

    Args:
        flavor: Value of the header that a real one sends; empty for none.
        delay_s: Before each answer.
        byte_delay_s: After each byte of an answer's body.
    """
    server = MetadataServer(values, flavor=flavor, delay_s=delay_s, byte_delay_s=byte_delay_s)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def vm_in(zone: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    """Make this machine one of Google Cloud in a zone; the running server that says so."""
    with metadata_server({"instance/zone": f"projects/1/zones/{zone}"}) as server:
        monkeypatch.delenv("NO_GCE_CHECK", raising=False)
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        yield server
