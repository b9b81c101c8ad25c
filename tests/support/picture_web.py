"""One host on loopback with numbered pictures, whose answers a test decides; it remembers what was asked for.

/N.jpg is picture N. `faults` says which of them fail and how; with `changing` a picture is another one each time.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dataprep.web.addresses import parse_networks
from dataprep.web.requests import Limits
from tests.dataprep.fetched.pictures import encoded, photo
from tests.support.words import replaced

VARIANTS = 40


@cache
def picture(number: int) -> bytes:
    """One of VARIANTS small JPEGs."""
    return encoded(photo(64, 48, number % VARIANTS), "JPEG")


class PictureWeb:
    """What the server knows; read and changed by tests while it runs."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: Counter[int] = Counter()
        """Times that each picture was asked for."""
        self.rules_asked = 0
        """Times that robots.txt was asked for."""
        self.connections = 0
        self.faults: dict[int, int] = {}
        """Pictures that are answered with this code."""
        self.changing = False
        """Each answer differs from the one before: another picture, or every third time none."""
        self.latency_s = 0.0
        self.visit: Callable[[int, tuple[str, int]], object] = lambda _number, _address: None
        """Called with the picture and the address of its reader, before it is answered."""
        self.answered: dict[int, tuple[int, str]] = {}
        """The last answer for each picture: its code, and the SHA-256 of its body."""

    def answer(self, number: int) -> tuple[int, bytes]:
        self.asked[number] += 1
        time.sleep(self.latency_s)
        again = self.asked[number] if self.changing else 0
        if number in self.faults:
            code, body = self.faults[number], b""
        elif self.changing and (number + again) % 3 == 0:
            code, body = 500, b""
        else:
            code, body = 200, picture(number + again)
        self.answered[number] = code, hashlib.sha256(body).hexdigest()
        return code, body

    def rows(self, count: int) -> list[dict[str, Any]]:
        """A table of the first pictures."""
        url = f"http://127.0.0.1:{self.port}"
        return [
            {"URL": f"{url}/{number}.jpg", "TEXT": f"Bild {number} ü", "similarity": number / count, "LICENSE": None}
            for number in range(count)
        ]

    def write_table(self, path: Path, count: int) -> Path:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(self.rows(count)), path, row_group_size=16)
        return path


@contextmanager
def picture_web() -> Iterator[PictureWeb]:
    """A running one, in threads of this process."""
    web = PictureWeb()
    kept: set[socket.socket] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            web.rules_asked += self.path == "/robots.txt"
            name = self.path.removeprefix("/").removesuffix(".jpg")
            if name.isdigit():
                web.visit(int(name), self.client_address)
            code, body = web.answer(int(name)) if name.isdigit() else (404, b"")
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write no log: no test reads one."""

        def handle(self) -> None:
            web.connections += 1
            kept.add(self.connection)
            try:
                super().handle()
            except OSError:
                return  # whoever asked was killed
            finally:
                kept.discard(self.connection)

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    web.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        for connection in list(kept):  # clients keep them for the next request
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()
        thread.join()


LIMITS = Limits(
    contact="https://example.org/tests",
    allow_networks=parse_networks(["127.0.0.0/8"]),
    host_connections=32,
    host_per_s=1e4,
    address_per_s=1e4,
    retries=0,
    connect_s=100.0,
    read_s=100.0,
    answer_s=200.0,
    row_s=600.0,
)
WEB = (
    *("--contact", "https://example.org/tests", "--allow-network", "127.0.0.0/8", "--host-connections", 32),
    *("--host-per-second", 10_000, "--address-per-second", 10_000, "--retries", 0),
    *("--connect-seconds", 100, "--read-seconds", 100, "--answer-seconds", 200, "--row-seconds", 600),
)
"""Options by which a command reaches it."""


def laion_arguments(table: object, output: object, fmt: str, *more: object) -> list[object]:
    """Return the arguments of a build of a table of pictures, ten rows a shard."""
    build = ["build", "laion", "--source", table, "--output", output, "--format", fmt, "--rows-per-shard", 10]
    return replaced([*build, *WEB, "--json"], *more)
