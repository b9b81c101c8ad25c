"""Shows the ways in which data can be read many times, with what each costs: `check-region` and `plan-input`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import date

import click

from dataprep.cloud.prices import stale_tables
from dataprep.cloud.region import region_of
from dataprep.cloud.ways import CACHE, COPY, Way
from dataprep.messages import usd

STORAGE_REGION = "us-central1"
"""Region whose published price of storage, in buckets and caches, is used everywhere."""


def storage_notes(ways: Iterable[Way]) -> list[str]:
    """Return a note if the storage of a copy or a cache is priced as in another region."""
    regions = {region_of(way.place) for way in ways if way.kind in (CACHE, COPY)} - {STORAGE_REGION}
    return [f"keeping data in {each} is priced as in {STORAGE_REGION}" for each in sorted(regions)]


def echo_stale_prices() -> None:
    """Print a note on each table of prices that is old."""
    for line in stale_tables(date.today()):
        click.echo(f"note: {line}")


def way_document(way: Way) -> dict[str, object]:
    """Return a way as JSON values."""
    return {
        **asdict(way),
        "once": {**asdict(way.once), "total": way.once.total},
        "read": {**asdict(way.read), "total": way.read.total},
        "total": way.total,
    }


def way_line(way: Way) -> str:
    """Describe a way in one line, the sum first."""
    read = f"{usd(way.read.transfer + way.read.retrieval)} to read, {usd(way.read.operations)} for requests"
    if way.kind == CACHE:
        return (
            f"a Rapid Cache in {way.place}: at most {usd(way.total)} ({usd(way.once.total)} for the first reading, "
            f"{usd(way.ingest)} to write it into the cache, {usd(way.kept)} to keep it, then {read})"
        )
    if way.kind == COPY:
        return (
            f"a copy in {way.place}: {usd(way.total)} ({usd(way.once.total)} to make it, {usd(way.kept)} to keep it, "
            f"{read})"
        )
    return f"from {way.place.lower()}: {usd(way.total)} ({read})"
