"""Options for the place where a bucket is read, shared by several commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path

import click

from dataprep.arguments import Finite
from dataprep.cloud.placement import POLICIES
from dataprep.cloud.prices import stale_tables
from dataprep.cloud.region import check_place, unknown_regions
from dataprep.commands.options import COUNT
from dataprep.messages import printable

tpu_option = click.option(
    "--tpu", metavar="NAME", help="TPU that will read the data; its zone is looked up with gcloud."
)
region_policy_option = click.option(
    "--region-policy",
    type=click.Choice(POLICIES),
    default="refuse",
    show_default=True,
    help="What to do when the transfer from a bucket is charged.",
)
prices_option = click.option(
    "--prices",
    "prices_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="CSV file of prices that replace the published ones.",
)
_MOST_MONTHS = 1200.0
"""Longest time for which a cache or a copy can be priced: a hundred years."""
months_option = click.option(
    "--months",
    type=Finite(min=0, max=_MOST_MONTHS),
    default=1.0,
    show_default=True,
    help="Months for which a cache or a copy would be kept.",
)
objects_option = click.option(
    "--objects",
    metavar="N",
    type=COUNT,
    help="Number of objects in which the data lie, such as loose pictures; each costs a request when it is read or "
    "copied.  [default: objects of 256 MiB]",
)
_WORKER_PLACES = ("--worker_zone", "--zone", "--worker_region", "--region")
"""Options of Beam's runners on Google Cloud for the workers' zone or region, the most exact one first."""
_RUNNERS_HERE = ("local", "FnApiRunner")


def named_place(zone: str | None, tpu: str | None) -> str | None:
    """Return the zone or region that the options name; None if they name none, which means this machine.

    A note says if dataprep does not know the region of --zone.

    Raises:
        UsageError: There is no such TPU, or a zone is malformed.
        UndecidedError: `gcloud` could not answer.
    """
    checked = None if zone is None else _noted(check_place(zone))
    if tpu is None:
        return checked
    from dataprep.cloud.gcloud import find_zone

    return find_zone(tpu, checked)


def runs_here(runner: str) -> bool:
    """Return whether a build's workers are processes of this machine."""
    return runner in _RUNNERS_HERE


def place_of_workers(beam_options: Sequence[str]) -> str | None:
    """Return the zone or region that a Beam runner's options, `--name=value` or `--name value`, set for its workers."""
    given: dict[str, str] = {}
    for option, following in pairwise([*beam_options, "--"]):
        name, equals, value = option.partition("=")
        given[name] = value if equals or following.startswith("--") else following
    place = next((given[name] for name in _WORKER_PLACES if given.get(name)), None)
    return None if place is None else _noted(check_place(place))


def note_unknown_regions(places: Iterable[str]) -> None:
    """Print a note on stderr for each region that dataprep does not know."""
    for line in unknown_regions(places):
        click.echo(f"note: {line}", err=True)


def echo_commands(commands: Iterable[str]) -> None:
    """Print commands below the line of `do` that names them."""
    for each in commands:
        click.echo(f"              {printable(each)}")


def echo_stale_prices() -> None:
    """Print a note on the tables of prices that are old."""
    if line := stale_tables(date.today()):
        click.echo(f"note: {line}")


def _noted(place: str) -> str:
    note_unknown_regions([place])
    return place
