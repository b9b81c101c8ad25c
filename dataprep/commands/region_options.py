"""Options for the place where a bucket is read, shared by several commands, and the buckets of a planned build."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dataprep.cloud.cost import Amount, Cost, reading_cost, writing_cost
from dataprep.cloud.machine import this_zone
from dataprep.cloud.placement import POLICIES, Placement, is_bucket, placement_of
from dataprep.cloud.prices import published_prices, stale_tables
from dataprep.cloud.region import check_place, unknown_regions
from dataprep.commands.options import COUNT, Finite
from dataprep.messages import printable, usd

if TYPE_CHECKING:
    from dataprep.builder.plan import Plan
    from dataprep.builder.request import BuildRequest
    from dataprep.builder.traffic import Traffic

beside_option = click.option("--beside", metavar="ZONE", help="Zone or region in which --output will be read.")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedBucket:
    """A bucket that a build reads or writes."""

    role: str
    """Either `output` or `source`."""
    url: str
    where: str | None
    """Zone or region of the reader: the training reads the output, and the build the source."""
    verdict: str
    usd_per_gib: float | None
    reason: str
    traffic: Traffic
    cost: Cost | None
    """Cost of this build, in USD; None if a price is unknown."""

    @property
    def line(self) -> str:
        """The bucket in one line for the user."""
        verb, what = ("writing", "it") if self.role == "output" else ("reading", "it once")
        cost = f" and costs {usd(self.cost.total)}" if self.cost else ", at an unknown cost"
        requests = self.traffic.inserts + self.traffic.gets
        return (
            f"  {self.role} {self.url}: {self.verdict}; {self.reason}; {verb} {what} takes {requests:,} requests{cost}"
        )

    def document(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return asdict(self)


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
    from dataprep.cloud.tpu.find import find_zone

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


def planned_buckets(
    plan: Plan, request: BuildRequest, *, reader: str | None, builder: str | None, runner: str, workers: int
) -> list[PlannedBucket]:
    """Return the output and the source, if they are in buckets.

    Args:
        reader: Zone or region in which the output will be read; None: this machine's.
        builder: Zone or region of a Beam runner's workers; None: this machine's, or unknown.
    """
    found = []
    if is_bucket(request.output_url):
        found.append(_output(plan, placement_of(request.output_url, reader or this_zone()), workers))
    if is_bucket(request.source_url):
        where = builder or (this_zone() if runs_here(runner) else None)
        found.append(_source(plan, placement_of(request.source_url, where)))
    return found


def _noted(place: str) -> str:
    note_unknown_regions([place])
    return place


def _output(plan: Plan, found: Placement, workers: int) -> PlannedBucket:
    from dataprep.builder.recipe import recipe_of

    traffic, cost = recipe_of(plan.options.dataset).output_traffic(plan, workers=workers), None
    if found.bucket is not None:
        prices = published_prices()
        cost = writing_cost(traffic.inserts, traffic.gets, found.bucket, traffic.num_bytes, prices)
    return _planned("output", found, traffic, cost)


def _source(plan: Plan, found: Placement) -> PlannedBucket:
    from dataprep.builder.recipe import recipe_of

    traffic, cost = recipe_of(plan.options.dataset).source_traffic(plan), None
    if found.bucket is not None:
        storage_class = (found.bucket.storage_class or "standard").lower()
        amount = Amount(storage_class=storage_class, num_bytes=traffic.num_bytes, objects=0, gets=traffic.gets)
        cost = reading_cost([amount], found.bucket, found.verdict, published_prices())
    return _planned("source", found, traffic, cost)


def _planned(role: str, found: Placement, traffic: Traffic, cost: Cost | None) -> PlannedBucket:
    return PlannedBucket(
        role=role,
        url=found.url,
        where=found.where,
        verdict=found.verdict.kind,
        usd_per_gib=found.verdict.usd_per_gib,
        reason=found.verdict.reason,
        traffic=traffic,
        cost=cost,
    )
