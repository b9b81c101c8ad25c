"""Fetching as a caller does it, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dataprep.web.client import Fetcher
from dataprep.web.politeness import Known
from dataprep.web.requests import Consent, Limits, Outcome, Request, Status
from tests.support.web_server import Case, mixture, web_server_process

QUICK = {"read_s": 5.0, "answer_s": 9.0}
"""Limits for hosts that stall."""
SLOW_HOST = {Status.TIMEOUT, Status.CONNECT, Status.HOST_DOWN, Status.HOST_BUSY, Status.ROBOTS_UNAVAILABLE, Status.DNS}
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


async def fetch_many(
    requests: Iterable[Request], limits: Limits, known: Known | None = None
) -> AsyncGenerator[Outcome, None]:
    """Fetch with a fetcher of their own."""
    async with Fetcher(limits, known) as fetcher, contextlib.aclosing(fetcher.fetch_many(requests)) as outcomes:
        async for outcome in outcomes:
            yield outcome
            del outcome  # now only the caller holds the body


async def fetch_all(urls: Sequence[str], limits: Limits, known: Known | None = None) -> list[Outcome]:
    """Exactly one outcome for each, and nothing left behind."""
    requests = (Request(row, url) for row, url in enumerate(urls))
    async with contextlib.aclosing(fetch_many(requests, limits, known)) as outcomes:
        found = [outcome async for outcome in outcomes]
    assert sorted(outcome.key for outcome in found) == list(range(len(urls)))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return sorted(found, key=lambda outcome: outcome.key)


def loopback_limits(nameserver: str, **changed: Any) -> Limits:
    """Limits that reach the web on loopback, with patience: whoever waits for hosts that stall is quicker."""
    usual: dict[str, Any] = {"in_flight": 64, "body_bytes": 1 << 20, "host_per_s": 1e3}
    usual |= {
        "address_connections": 1_000,
        "address_per_s": 1e5,
        "consent": Consent.ROBOTS,
    }  # all names have one address
    patient = {"connect_s": 100.0, "read_s": 100.0, "answer_s": 200.0, "row_s": 600.0}
    fixed = {"contact": "https://example.org/crawler", "allow_networks": LOOPBACK, "nameservers": (nameserver,)}
    return Limits(**{**fixed, **usual, **patient, **changed})


@dataclass(frozen=True, slots=True)
class Mixed:
    """What became of a mixed table."""

    outcomes: list[Outcome]
    wrong: list[tuple[Case, Outcome]]
    """Rows that ended otherwise than they should."""
    elapsed_s: float


def fetch_mixture(count: int = 20_000, hosts: int = 200, latency_s: float = 0.02, **changed: Any) -> Mixed:
    """Fetches a table of all kinds from a server in a process of its own, under `loopback_limits` that are QUICK."""
    with web_server_process(latency_s) as web:
        cases = mixture(web.port, count, hosts)
        began_s = time.perf_counter()
        limits = loopback_limits(web.nameserver, **{**QUICK, **changed})
        outcomes = asyncio.run(fetch_all([case.url for case in cases], limits))
        elapsed_s = time.perf_counter() - began_s
        for number in late_rows(cases, [outcome.status for outcome in outcomes]):
            (outcomes[number],) = asyncio.run(fetch_all([cases[number].url], limits))
    ended = zip(cases, outcomes, strict=True)
    wrong = [(case, outcome) for case, outcome in ended if outcome.status not in case.expected]
    return Mixed(outcomes, wrong, elapsed_s)


def late_rows(cases: Sequence[Case], statuses: Sequence[Status]) -> list[int]:
    """Return the rows that ended as if their host were slow, which it is not: the machine was, so fetch them again."""
    ended = enumerate(zip(cases, statuses, strict=True))
    return [number for number, (case, status) in ended if status in SLOW_HOST and status not in case.expected]
