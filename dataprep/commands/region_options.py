"""Options for the place where a bucket is read and for its prices, shared by several requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Literal

import click

from dataprep.arguments import OTHER, READ, WHERE, Request, option, request, spelled
from dataprep.cloud.prices import Prices, published_prices, read_prices, stale_tables
from dataprep.cloud.region import check_place, unknown_regions
from dataprep.messages import printable
from dataprep.storage.gcs_client import bill

MOST_MONTHS = 1200.0
"""Longest time for which a cache or a copy can be priced: a hundred years."""
_WORKER_PLACES = ("--worker_zone", "--zone", "--worker_region", "--region")
"""Options of Beam's runners on Google Cloud for the workers' zone or region, the most exact one first."""
_RUNNERS_HERE = ("local", "FnApiRunner")


@request
class NamedTpu(Request):
    """Options of requests about a TPU that reads."""

    tpu: str | None = option(
        "TPU that will read the data; its zone is looked up with gcloud.", default=None, metavar="NAME", group=WHERE
    )


@request
class Billed(Request):
    """Options of requests that read a bucket."""

    billing_project: str | None = option(
        "Project that pays for requests to Cloud Storage buckets with requester pays.",
        default=None,
        metavar="PROJECT",
        shown="the environment variable GOOGLE_CLOUD_QUOTA_PROJECT",
        group=READ,
        rare=True,
    )

    def __post_init__(self) -> None:
        """Check the values and set the billing project. Worker processes inherit it."""
        super().__post_init__()
        bill(self.billing_project)


@request
class Guarded(Request):
    """Options of requests that may read a bucket across regions."""

    region_policy: Literal["refuse", "warn", "off"] = option(
        "What to do if reading from the bucket would incur transfer charges.", default="refuse", group=WHERE
    )


@request
class Priced(Request):
    """Options of requests that calculate prices."""

    prices: Path | None = option(
        "CSV file of prices that replace the published prices.", default=None, metavar="FILE", group=OTHER
    )

    def table(self) -> Prices:
        """Return the prices to apply."""
        return published_prices() if self.prices is None else read_prices(self.prices)


Note = Callable[[str], object]
"""Receiver of a note."""


def named_place(zone: str | None, tpu: str | None, note: Note) -> str | None:
    """Return the zone or region that the options name, None for this machine; an unknown region is noted. Raises
    UsageError if there is no such TPU or a zone is malformed, and UndecidedError if `gcloud` could not answer."""
    checked = None if zone is None else _noted(check_place(zone), note)
    if tpu is None:
        return checked
    from dataprep.cloud.gcloud import find_zone

    return find_zone(tpu, checked)


def runs_here(runner: str) -> bool:
    """Return whether a build's workers are processes of this machine."""
    return runner in _RUNNERS_HERE


def place_of_workers(beam_options: Sequence[str], note: Note) -> str | None:
    """Return the zone or region that a Beam runner's options, `--name=value` or `--name value`, set for its workers."""
    given: dict[str, str] = {}
    for word, following in pairwise([*beam_options, "--"]):
        name, equals, value = word.partition("=")
        given[name] = value if equals or following.startswith("--") else following
    place = next((given[name] for name in _WORKER_PLACES if given.get(name)), None)
    return None if place is None else _noted(check_place(place), note)


def echo_commands(kind: type, commands: Iterable[str]) -> None:
    """Print commands for a request, with its fields as options, below the line of `do` that names them."""
    for each in commands:
        click.echo(f"              {printable(spelled(kind, each))}")


def echo_stale_prices() -> None:
    """Print a note on the tables of prices that are old."""
    if line := stale_tables(date.today()):
        click.echo(f"note: {spelled(Priced, line)}")


def _noted(place: str, note: Note) -> str:
    for line in unknown_regions([place]):
        note(line)
    return place
