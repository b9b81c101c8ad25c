"""A machine of its own on which every address there is leads to one web server, and a build that may reach one of them.

    unshare --map-root-user --net python -m tests.support.laion_trap FOLDER

In a network namespace without any device but loopback, all addresses of both families are made local: whatever is
connected to, wherever it lies in the world, is accepted, and the address noted. The name server answers at port 53 of
every address, so that the build asks it whichever the machine is set up to ask. Prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from tests.support.builds import dataprep
from tests.support.hostile_urls import ADDRESSES, BAD, HOSTS
from tests.support.laion_builds import end_of, laion_arguments, rows_of, write_table
from tests.support.name_server import name_server
from tests.support.web_server import WebServer, web_server

PUBLIC, PUBLIC_6 = "93.184.216.34", "2606:4700::1111"
SITES = 16
"""Public hosts over which redirects are spread: one alone would be asked for 16 rows a second."""
PORT = 8080
PORTS = (80, 443, PORT)
SCHEMES = ("ftp", "file", "gopher", "dict", "ldap", "ws", "wss", "tftp", "sftp", "jar", "unix")
CONTROLS = ("127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.1.1", "100.100.100.200", "::1", "fd00:ec2::254")

REFUSED = {"refused address"}
BAD_URL = {"bad url"}
NO_HOST = {"bad url", "refused address", "dns"}
NOT_FETCHED = {*NO_HOST, "redirect", "http 404", "protocol", "timeout", "no url"}
"""A text that is no URL may be a path below its site."""

Case = tuple[str, set[str]]
"""A URL, and the reasons of which its row must have one; an empty one is that of success."""


def cases() -> list[Case]:
    """All ways to ask for what must not be reached, and some that may be."""
    return [*_good(), *_addresses(), *_hosts(), *_texts()]


def _good() -> Iterator[Case]:
    for site in range(SITES):
        yield f"http://site-{site}.test/own/{site}", {""}
        yield f"http://rebind-{site}.test/own/{site}", {"", "refused address"}


def _addresses() -> Iterator[Case]:
    for number, address in enumerate(ADDRESSES):
        host = f"[{address}]" if ":" in address else address
        yield f"http://{host}:{PORT}/a.jpg", REFUSED
        yield f"http://name-{number}.test:{PORT}/a.jpg", REFUSED
        yield f"http://first-{number}.test/a.jpg", REFUSED
        yield f"https://last-{number}.test/a.jpg", REFUSED
        yield _redirect(number, f"http://{host}/a.jpg"), REFUSED
        yield _redirect(number, f"//name-{number}.test/a.jpg"), REFUSED


def _hosts() -> Iterator[Case]:
    for number, host in enumerate(HOSTS):
        yield f"http://{host}:{PORT}/a.jpg", NO_HOST
        yield f"https://{host}/a.jpg", NO_HOST
        yield _redirect(number, f"http://{host}:{PORT}/a.jpg"), {*NO_HOST, "protocol"}


def _texts() -> Iterator[Case]:
    for number, scheme in enumerate(SCHEMES):
        yield f"{scheme}://127.0.0.1:{PORT}/a.jpg", BAD_URL
        yield _redirect(number, f"{scheme}://127.0.0.1:{PORT}/a.jpg"), BAD_URL
    for number, text in enumerate(BAD):
        with contextlib.suppress(UnicodeEncodeError):  # half a character, which no table holds
            text.encode()
            yield text, {*BAD_URL, "no url"}
        yield _redirect(number, text), NOT_FETCHED


def _redirect(number: int, target: str) -> str:
    return f"http://site-{number % SITES}.test/to/?{quote(target, safe='', errors='surrogatepass')}"


def answer(name: str, before: int) -> Sequence[str]:
    """The name server's addresses of a name; `rebind` is another one when it is asked for again."""
    sort, _, number = name.removesuffix(".test").partition("-")
    if sort == "site":
        return [PUBLIC]
    if sort == "rebind":
        return ["127.0.0.1"] if before else [PUBLIC]
    if sort not in ("name", "first", "last"):
        return []
    address = ADDRESSES[int(number)]
    public = PUBLIC_6 if ":" in address else PUBLIC
    return {"name": [address], "first": [address, public], "last": [public, address]}[sort]


def main() -> None:
    folder = Path(sys.argv[1])
    _make_all_addresses_local()
    asked = cases()
    table = write_table(folder / "table.parquet", [url for url, _ in asked])
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(web_server(address=None, port=port)) for port in PORTS]
        stack.enter_context(name_server(answer, ("0.0.0.0", 53)))
        control = _control(servers)
        words = laion_arguments(table, folder / "out", "webdataset", "--rows-per-shard", 200, "--workers", 2)
        run = dataprep(*words, NO_GCE_CHECK="true")
        found = {"control": control, "reached": _reached(servers), "code": run.returncode, "stderr": run.stderr[-3000:]}
    ends = [end_of(row)[1] for row in rows_of(folder / "out")] if run.returncode == 0 else []
    wrong = [(url, end) for (url, due), end in zip(asked, ends, strict=False) if end not in due]
    print(json.dumps(found | {"asked": len(asked), "ends": Counter(ends), "wrong": wrong}))


def _make_all_addresses_local() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for family, everything in (("-4", "0.0.0.0/0"), ("-6", "::/0")):
        subprocess.run(["ip", family, "route", "add", "local", everything, "dev", "lo"], check=True)


def _control(servers: Sequence[WebServer]) -> dict[str, int]:
    """How many of the servers saw a connection to each of some addresses; forgotten afterwards."""
    for address, port in itertools.product(CONTROLS, PORTS):
        with socket.create_connection((address, port)) as connection:
            connection.sendall(b"GET /own/1 HTTP/1.1\r\nHost: control\r\n\r\n")
            connection.recv(1)
    reached = _reached(servers)
    for server in servers:
        server.reached.clear()
    return reached


def _reached(servers: Sequence[WebServer]) -> dict[str, int]:
    return dict(sum((server.reached for server in servers), Counter()))


if __name__ == "__main__":
    main()
