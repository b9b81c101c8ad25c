"""Web server of laion.py: images by number on many loopback addresses, each after a pause, with little processor time.

    python benchmarks/image_server.py LIST --hosts 200 --latency-s 0.02     prints the port; ends when stdin does

LIST has one file name per line. `/17` is the 18th file, `/cpu` the seconds of processor time used so far; there is no
robots.txt. Connections are kept open if the client wants it.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop


def addresses(count: int) -> list[str]:
    """Return loopback addresses, each of which stands for a host, so that no name has to be resolved."""
    return [f"127.0.{1 + number // 250}.{1 + number % 250}" for number in range(count)]


class Connection(asyncio.Protocol):
    """Connection of one client; a request is a head without a body, and the next one follows the answer."""

    def __init__(self, files: Sequence[str], latency_s: float) -> None:
        self._files, self._latency_s = files, latency_s
        self._head = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._head.endswith(b"\r\n\r\n"):
            asyncio.get_running_loop().call_later(self._latency_s, self._answer, self._head)
            self._head = b""

    def _answer(self, head: bytes) -> None:
        if self._transport.is_closing():
            return
        body = self._body(head.split(b" ", 2)[1][1:])
        status = b"404 Not Found" if body is None else b"200 OK"
        self._transport.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body or b"")))
        self._transport.write(body or b"")
        if b"connection: close" in head.lower():
            self._transport.close()

    def _body(self, name: bytes) -> bytes | None:
        if name == b"cpu":
            return b"%.6f" % time.process_time()
        return Path(self._files[int(name)]).read_bytes() if name.isdigit() else None


async def serve(files: Sequence[str], hosts: int, latency_s: float) -> None:
    """Answer until stdin ends."""
    loop, port = asyncio.get_running_loop(), 0
    for address in addresses(hosts):
        server = await loop.create_server(lambda: Connection(files, latency_s), address, port, backlog=4096)
        port = server.sockets[0].getsockname()[1]
    print(port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--latency-s", type=float, default=0.02)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(serve(options.list.read_text().splitlines(), options.hosts, options.latency_s))


if __name__ == "__main__":
    main()
