"""The guard of a Python process, in a process of its own: `python -m dataprep.guard.serve`.

A thread could wait for ever for a library that holds the interpreter while it reads. On stdin come the settings as one
line of JSON, then one line for each report; the end of stdin ends the guard. On stdout goes one line of JSON for each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import msgspec

from dataprep.cloud.prices import published_prices
from dataprep.dataset.documents import decoder
from dataprep.errors import DataprepError
from dataprep.guard.ledger import Budget
from dataprep.guard.run import GuardSettings, running_guard


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings as they are sent."""

    where: str | None
    max_usd: float | None
    allowed: tuple[str, ...]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the settings."""

    environment: dict[str, str] = {}
    error: str = ""
    """Why the guard did not start; empty if it did."""


async def serve(settings: GuardSettings) -> None:
    """Serve until stdin ends."""
    async with running_guard(settings, os.environ) as guard:
        _say(msgspec.json.encode(Started(environment=dict(guard.environment))))
        watch = asyncio.create_task(guard.watch(os.getppid()))
        while await asyncio.to_thread(sys.stdin.readline):
            _say(json.dumps(guard.report().document()).encode())
        watch.cancel()


def main() -> None:
    """Read the settings, and serve."""
    asked = decoder(Settings).decode(sys.stdin.readline())
    try:
        budget = Budget(max_usd=asked.max_usd, allowed=asked.allowed)
        asyncio.run(serve(GuardSettings(where=asked.where, budget=budget, prices=published_prices())))
    except DataprepError as error:
        _say(msgspec.json.encode(Started(error=str(error))))


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
