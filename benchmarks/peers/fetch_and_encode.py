"""(c) The lower bound of laion.py: fetch, digest, encode, write and fsync in plain loops, in as many processes.

Requests are written by hand to one open socket for each host, a window of rows ahead of the row that is encoded: no
HTTP library, no event loop, no thread, no check of an address, no robots.txt, no limit, no caption, no index.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import google_crc32c
import pyarrow.parquet as pq
from contest import print_samples

from dataprep.fetched.encode import EncodeOptions, encode_image
from dataprep.fetched.filters import RowFilter

WINDOW = 48
"""Most rows whose requests are sent before the first of them is read."""
LENGTH = b"Content-Length: "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="parquet file with a column URL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    urls = pq.read_table(options.table, columns=["URL"]).column("URL").to_pylist()
    options.out.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    parts = [urls[index :: options.processes] for index in range(options.processes)]
    files = [options.out / f"{index:05d}.bin" for index in range(options.processes)]
    workers = [context.Process(target=write_part, args=part) for part in zip(parts, files, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode != 0:
            raise SystemExit(f"a process of the lower bound ended with code {worker.exitcode}")
    print_samples(len(urls))


def write_part(urls: list[str], target: Path) -> None:
    """Fetch the images of one process, and write what they are encoded to."""
    options, row_filter, web = EncodeOptions(), RowFilter(), Web()
    windows = list(cut(urls))
    whole = hashlib.sha256()
    web.ask(windows[0])
    with open(target, "wb", buffering=1 << 18) as out:
        for window, following in zip(windows, [*windows[1:], []], strict=True):
            bodies = [web.body(url) for url in window]
            web.ask(following)
            for body in bodies:
                hashlib.sha256(body).digest()
                encoded = encode_image(body, options, row_filter).data
                google_crc32c.value(encoded)
                whole.update(encoded)
                out.write(encoded)
        out.flush()
        os.fsync(out.fileno())


def cut(urls: list[str]) -> Iterator[list[str]]:
    """Cut URLs into windows, in each of which every host occurs once."""
    window: dict[str, str] = {}
    for url in urls:
        host = urlsplit(url).netloc
        if host in window or len(window) == WINDOW:
            yield list(window.values())
            window = {}
        window[host] = url
    yield list(window.values())


class Web:
    """One open connection to each host, on which one request at a time is under way."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}

    def ask(self, urls: list[str]) -> None:
        """Send a request to each URL."""
        for url in urls:
            parts = urlsplit(url)
            if parts.netloc not in self._sockets:
                self._sockets[parts.netloc] = socket.create_connection((parts.hostname, parts.port))
            request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n"
            self._sockets[parts.netloc].sendall(request.encode())

    def body(self, url: str) -> bytes:
        """Read the answer of a request that was sent."""
        connection = self._sockets[urlsplit(url).netloc]
        start = b""
        while (end := start.find(b"\r\n\r\n")) < 0:
            start += connection.recv(1 << 16)
        at = start.index(LENGTH) + len(LENGTH)
        length = int(start[at : start.index(b"\r\n", at)])
        body, have = bytearray(length), len(start) - end - 4
        body[:have] = start[end + 4 :]
        while have < length:
            have += connection.recv_into(memoryview(body)[have:])
        return bytes(body)


if __name__ == "__main__":
    main()
