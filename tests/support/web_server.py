"""The web on loopback: many host names on one port, and every way in which a host answers badly.

A path's first part says what comes (`web_pages.KINDS`), a host's name how the whole host behaves (`HOSTS`); `mixture`
makes a table of both with the status that each URL must end with.

    python -m tests.support.web_server --latency-s 0.02     prints where it listens; its processor time once stdin ends
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from dataprep.web.requests import Status
from tests.support.http_wire import Head, read_head
from tests.support.name_server import name_server
from tests.support.waiting import LONGEST_S
from tests.support.web_pages import DOMAIN, KINDS, SLOW, Exchange, mutated, prepare, redirect_anywhere

HOSTS: dict[str, frozenset[Status]] = {
    "closed": frozenset({Status.ROBOTS}),
    "brokenrobots": frozenset({Status.ROBOTS_UNAVAILABLE}),
    "overloaded": frozenset({Status.HTTP, Status.HOST_BUSY, Status.ROBOTS_UNAVAILABLE}),
    "gone": frozenset({Status.DNS}),
    "down": frozenset({Status.CONNECT, Status.HOST_DOWN}),
    "inside": frozenset({Status.REFUSED_ADDRESS}),
}
"""What a host's name begins with, and how everything there ends; all other hosts are ordinary."""


def addresses_of(name: str, before: int) -> Sequence[str]:
    """For a name server: where the hosts are."""
    return {"gone": [], "down": ["127.0.0.77"], "inside": ["10.9.8.7"]}.get(name.partition("-")[0], ["127.0.0.1"])


@dataclass(frozen=True, slots=True)
class Case:
    """A row of a table, and the statuses of which one is right."""

    url: str
    expected: frozenset[Status]


def mixture(port: int, count: int = 20_000, hosts: int = 200) -> list[Case]:
    """A table of all kinds over all hosts: three rows in four plain images, one host in 16 of a special sort."""
    draw = random.Random(0)
    quick, slow = [kind for kind in KINDS if kind not in SLOW], sorted(SLOW)
    cases = []
    for row in range(count):
        number = row % hosts
        # Every kind comes early, so that a short table has them all.
        kind = [*quick, *slow][row // 2 % len(KINDS)] if row % 2 and row < 4 * len(KINDS) else None
        kind = kind or draw.choices(["own", draw.choice(quick), draw.choice(slow)], [76, 23, 1])[0]
        special = list(HOSTS)[number // 16 % len(HOSTS)] if number % 16 == 15 else None
        host = f"{special or 'host'}-{number}.{DOMAIN}"
        expected = HOSTS[special] if special else frozenset({KINDS[kind][1]})
        cases.append(Case(f"http://{host}:{port}/{kind}/{row}", expected))
    return cases


def _accepts(task: asyncio.Task[object]) -> bool:
    return getattr(task.get_coro(), "__name__", "") == "_accept_connection2"


@dataclass
class WebServer:
    """The counts are for tests in the same process."""

    address: str | None = "127.0.0.1"
    """None: all of this machine's, of both families."""
    latency_s: float = 0.0
    jitter_s: float = 0.0
    """Up to so much more, other for each answer, so that they come in another order each time."""
    together: int = 0
    """Requests of a host that wait for each other, robots.txt aside, the first time that so many come at once."""
    made_s: float = field(default_factory=time.monotonic)
    """When this server was made, on the event loop's clock."""
    draw: random.Random = field(default_factory=random.Random)
    port: int = 0
    connections: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    """Connections by the address of this machine to which they came."""
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By host and path."""
    begun_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each request of a host came, on the event loop's clock."""
    at_once: Counter[str] = field(default_factory=Counter)
    most_at_once: Counter[str] = field(default_factory=Counter)
    heads: list[Head] = field(default_factory=list)
    robots: dict[str, str] = field(default_factory=dict)
    """robots.txt of a host, in place of the usual one."""
    most_of_all: int = 0
    """Most requests at once, of all hosts."""
    pages: dict[tuple[str, str], tuple[bytes, Sequence[str]]] = field(default_factory=dict)
    """Bodies and header lines of answers by host and path, in place of the usual ones."""
    faults: dict[tuple[str, str], int] = field(default_factory=dict)
    """Codes of answers by host and path, in place of the usual ones."""
    robots_location: str = ""
    """Where every robots.txt redirects to, if anywhere."""
    tls: ssl.SSLContext | None = None

    def url(self, path: str, host: str = f"host.{DOMAIN}") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, ready: Callable[[], None], stopped: asyncio.Event) -> None:
        prepare()
        server = await asyncio.start_server(self._connection, self.address, self.port, backlog=4096, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        ready()
        await stopped.wait()
        # A socket stays open whose accepting begins after the server was closed, or is cancelled.
        waited_for: set[asyncio.Task[object]] = set()
        while accepting := {task for task in asyncio.all_tasks() if _accepts(task)} - waited_for:
            await asyncio.wait(accepting, timeout=5)
            waited_for |= accepting
        server.close()
        await asyncio.sleep(0)  # a task that is cancelled before its first step closes no socket, either
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(2):  # an aborted socket is closed in the next step of the loop, and below TLS one step later
            await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.reached[writer.get_extra_info("sockname")[0]] += 1
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while not writer.is_closing() and (head := await read_head(reader)):
                await self._exchange(head, writer)
        writer.transport.abort()

    async def _exchange(self, head: Head, writer: asyncio.StreamWriter) -> None:
        self.heads.append(head)
        host = head.headers["host"].partition(":")[0]
        method, path, _ = head.start_line.split(" ")
        exchange = Exchange(self, host, path, writer, method)
        self.asked[host, exchange.path] += 1
        self.begun_s[host].append(asyncio.get_running_loop().time())
        self.at_once[host] += 1
        self.most_at_once[host] = max(self.most_at_once[host], self.at_once[host])
        self.most_of_all = max(self.most_of_all, sum(self.at_once.values()))
        try:
            if exchange.path != "/robots.txt":
                await self._others(host)
            await self._answer(exchange)
        finally:
            self.at_once[host] -= 1

    async def _others(self, host: str) -> None:
        until_s = time.monotonic() + LONGEST_S
        while self.most_at_once[host] < self.together and time.monotonic() < until_s:
            await asyncio.sleep(0.01)

    async def _answer(self, exchange: Exchange) -> None:
        sort = exchange.host.partition("-")[0]
        if code := self.faults.get((exchange.host, exchange.path)):
            await exchange.send(b"", code=code)
        elif page := self.pages.get((exchange.host, exchange.path)):
            await exchange.send(page[0], *page[1])
        elif exchange.path == "/robots.txt":
            await self._robots(exchange, sort)
        elif sort == "overloaded":
            await exchange.send(b"much later", "Retry-After: 3600", code=429)
        elif exchange.path.startswith("/to/"):
            await redirect_anywhere(exchange)
        elif exchange.path.startswith("/mutated/"):
            await mutated(exchange)
        else:
            kind = exchange.path.split("/")[1].partition("?")[0]
            await KINDS.get(kind, KINDS["missing"])[0](exchange)

    async def _robots(self, exchange: Exchange, sort: str) -> None:
        if self.robots_location:
            await exchange.send(b"", f"Location: {self.robots_location}", code=302)
            return
        if sort == "brokenrobots":
            await exchange.send(b"", code=500)
            return
        usual = f"User-agent: *\nDisallow: /{'' if sort == 'closed' else 'private/'}\n"
        await exchange.send(self.robots.get(exchange.host, usual).encode(), "Content-Type: text/plain")


@contextmanager
def web_server(**options: object) -> Iterator[WebServer]:
    """A running one, in a thread of this process."""
    server = WebServer(**options)  # type: ignore[arg-type]
    ready, loop, stopped = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(ready.set, stopped),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()


@dataclass
class RemoteWeb:
    """A web server and its name server in another process."""

    port: int
    nameserver: str
    cpu_s: float = 0.0
    """Processor time of that process, known once it has ended."""


@contextmanager
def web_server_process(latency_s: float = 0.0, jitter_s: float = 0.0) -> Iterator[RemoteWeb]:
    """The same in a process of its own, for measurements and soaks: all names lead to it, as `addresses_of` says."""
    command = [sys.executable, "-m", "tests.support.web_server"]
    command += ["--latency-s", str(latency_s), "--jitter-s", str(jitter_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        remote = RemoteWeb(**json.loads(_line(process.stdout)))
        try:
            yield remote
        finally:
            if process.stdin:
                process.stdin.close()
            remote.cpu_s = json.loads(_line(process.stdout))["cpu_s"]


def _line(stream: IO[str] | None) -> str:
    return stream.readline() if stream else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--jitter-s", type=float, default=0.0)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    latency = {"latency_s": options.latency_s, "jitter_s": options.jitter_s}
    with web_server(**latency) as server, name_server(addresses_of) as names:
        print(json.dumps({"port": server.port, "nameserver": names.address}), flush=True)
        sys.stdin.read()
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime}), flush=True)


if __name__ == "__main__":
    main()
