"""Hosts that would stop a worker which fetches: a costly robots.txt, answers and bodies that never end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dataprep.web.requests import Request, Status
from tests.attacks import Attack
from tests.support.fetching import fetch_many, loopback_limits
from tests.support.memory_growth import MemoryGrowth
from tests.support.name_server import name_server
from tests.support.web_pages import DOMAIN, KINDS, Exchange, picture
from tests.support.web_server import WebServer, addresses_of, web_server

ROBOTS = {
    "23 kB of agents and rules": "".join(f"User-agent:{n:x}\n" for n in range(1_000)) + "Allow:/\n" * 900,
    "500 kB of agents and rules": "".join(f"User-agent:x{n:x}\n" for n in range(15_000)) + "Allow:/\n" * 30_000,
    "500 kB of our own agent": "User-agent:dataprep\nAllow:/\n" * 18_000,
    "60,000 rules": "User-agent:*\n" + "Allow:/\n" * 60_000,
    "a wildcard after each letter": "User-agent:*\nDisallow:/" + "*a" * 200_000 + "b$\n",
    "2,000 rules with wildcards": "User-agent:*\n" + "".join(f"Disallow:/*{'a' * (n % 40)}b$\n" for n in range(1_000)),
    "lines without a meaning": "a:\n" * 160_000,
}
LOOP_S = 5.0
"""The event loop must come round within this processor time of the process; 0.1.0 took up to minutes."""
MEMORY_BYTES = 200 << 20


async def _fetch(web: WebServer, nameserver: str, urls: Sequence[str], wanted: int, **limits: object) -> list[Status]:
    """The first so many statuses to come; the event loop is watched meanwhile."""
    requests = [Request(row, url) for row, url in enumerate(urls)]
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began_s = time.process_time()
            await asyncio.sleep(0.01)
            longest_s = max(longest_s, time.process_time() - began_s)

    watching = asyncio.create_task(watch())
    async with contextlib.aclosing(fetch_many(requests, loopback_limits(nameserver, **limits))) as outcomes:
        statuses = [(await anext(outcomes)).status for _ in range(wanted)]
    watching.cancel()
    assert longest_s < LOOP_S, f"the event loop stood still for {longest_s:.1f} s of the processor"
    return statuses


def robots_bombs(folder: Path) -> str:
    """Each robots.txt is parsed beside forty images of another host, without much time or memory."""
    growth = MemoryGrowth()
    with web_server() as web, name_server(addresses_of) as names:
        urls = [web.url(f"/image/{row}", f"quick.{DOMAIN}") for row in range(40)]
        for number, text in enumerate(ROBOTS.values()):
            web.robots[f"bomb{number}.{DOMAIN}"] = text
            urls.append(web.url("/image/" + "a" * 200, f"bomb{number}.{DOMAIN}"))
        statuses = asyncio.run(_fetch(web, names.address, urls, len(urls)))
    assert statuses.count(Status.SUCCESS) >= 40
    assert set(statuses) <= {Status.SUCCESS, Status.ROBOTS}
    more_bytes = growth.bytes()
    assert more_bytes < MEMORY_BYTES, f"{more_bytes:,} bytes more"
    return f"{len(ROBOTS)} robots.txt of up to 500 kB, {more_bytes >> 20} MiB more"


async def _trickle(exchange: Exchange) -> None:
    """The start of an image whose length is not said, or is said to be the largest allowed; then nothing."""
    head = "Transfer-Encoding: chunked" if "chunked" in exchange.path else "Content-Length: 1048576"
    start = picture()[:20]
    await exchange.raw(f"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n{head}\r\n\r\n".encode())
    await exchange.raw(b"14\r\n" + start + b"\r\n" if "chunked" in exchange.path else start)
    await asyncio.sleep(3_600)


def slow_bodies(folder: Path) -> str:
    """A hundred slow bodies leave memory for two hundred quick ones."""
    KINDS["trickle"] = (_trickle, Status.TIMEOUT)
    try:
        with web_server() as web, name_server(addresses_of) as names:
            urls = [
                web.url(f"/trickle/{'chunked' if row % 2 else 'claimed'}/{row}", f"slow{row}.{DOMAIN}")
                for row in range(100)
            ]
            urls += [web.url(f"/chunked/{row}", f"quick{row % 5}.{DOMAIN}") for row in range(200)]
            limits = {"in_flight": 120, "memory_bytes": 3 << 20, "read_s": 600.0, "answer_s": 600.0}
            running = _fetch(web, names.address, urls, 200, **limits)
            statuses = asyncio.run(asyncio.wait_for(running, 240.0))
    finally:
        del KINDS["trickle"]
    assert statuses == [Status.SUCCESS] * 200, set(statuses)
    return "200 images in 3 MiB beside 100 bodies that never end"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "long-headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"a" * 8_000 + b"\r\n"),
    "short-headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: a\r\n" * 1_000),
    "early-hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100),
    "trailers": (CHUNKED + b"3\r\n\xff\xd8\xff\r\n0\r\n", b"X-A: " + b"a" * 8_000 + b"\r\n"),
    "chunk-extension": (CHUNKED, b"1;" + b"a" * 60_000),
    "tiny-chunks": (CHUNKED + b"3\r\n\xff\xd8\xff\r\n", b"1\r\na\r\n" * 5_000),
}
"""How an answer begins, and what follows again and again."""


async def _without_end(start: bytes, again: bytes, exchange: Exchange) -> None:
    await exchange.raw(start)
    while True:
        await exchange.raw(again)


def endless_answers(folder: Path) -> str:
    """Headers, hints, trailers and chunks without end: each row ends without success, in bounded memory."""
    growth = MemoryGrowth()
    KINDS.update({name: (partial(_without_end, *parts), Status.TIMEOUT) for name, parts in ENDLESS.items()})
    try:
        with web_server() as web, name_server(addresses_of) as names:
            urls = [web.url(f"/{name}/{row}", f"{name}{row}.{DOMAIN}") for name in ENDLESS for row in range(4)]
            statuses = asyncio.run(_fetch(web, names.address, urls, len(urls), answer_s=4.0, read_s=4.0))
    finally:
        for name in ENDLESS:
            del KINDS[name]
    assert Status.SUCCESS not in statuses
    more_bytes = growth.bytes()
    assert more_bytes < MEMORY_BYTES, f"{more_bytes:,} bytes more"
    return f"{len(urls)} answers without end, {more_bytes >> 20} MiB more, {sorted(set(statuses))}"


ATTACKS = [
    Attack("answers that never end", endless_answers),
    Attack("a robots.txt that is costly to parse", robots_bombs, sampled=True),
    Attack("bodies that never end", slow_bodies, sampled=True),
]
