"""Fetching as a caller does it, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dataprep.web.caches import Known
from dataprep.web.client import fetch_many
from dataprep.web.limits import Limits
from dataprep.web.outcomes import Outcome, Request
from tests.support.web_server import Case, mixture, web_server_process

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


async def fetch_all(urls: Sequence[str], limits: Limits, known: Known | None = None) -> list[Outcome]:
    """Exactly one outcome for each, and nothing left behind."""
    requests = (Request(row, url) for row, url in enumerate(urls))
    async with contextlib.aclosing(fetch_many(requests, limits, known)) as outcomes:
        found = [outcome async for outcome in outcomes]
    assert sorted(outcome.key for outcome in found) == list(range(len(urls)))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return sorted(found, key=lambda outcome: outcome.key)


def loopback_limits(nameserver: str, **changed: Any) -> Limits:
    """Limits that reach the web on loopback, and are quick about hosts that stall."""
    # More in flight wait longer for two busy cores than for a host that stalls; a machine may stand still for 2 s.
    usual: dict[str, Any] = {"in_flight": 64, "body_bytes": 1 << 20, "read_s": 5.0, "answer_s": 9.0, "host_per_s": 1e3}
    fixed = {"contact": "https://example.org/crawler", "allow_networks": LOOPBACK, "nameservers": (nameserver,)}
    return Limits(**{**fixed, **usual, **changed})


@dataclass(frozen=True, slots=True)
class Mixed:
    """What became of a mixed table."""

    outcomes: list[Outcome]
    wrong: list[tuple[Case, Outcome]]
    """Rows that ended otherwise than they should."""
    elapsed_s: float


def fetch_mixture(count: int = 20_000, hosts: int = 200, latency_s: float = 0.02, **changed: Any) -> Mixed:
    """Fetches a table of all kinds from a server in a process of its own, under `loopback_limits`."""
    with web_server_process(latency_s) as web:
        cases = mixture(web.port, count, hosts)
        began_s = time.perf_counter()
        outcomes = asyncio.run(fetch_all([case.url for case in cases], loopback_limits(web.nameserver, **changed)))
        elapsed_s = time.perf_counter() - began_s
    ended = zip(cases, outcomes, strict=True)
    wrong = [(case, outcome) for case, outcome in ended if outcome.status not in case.expected]
    return Mixed(outcomes, wrong, elapsed_s)
