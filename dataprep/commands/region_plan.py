"""Estimates the costs of a build's buckets, for `--dry-run`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dataprep.builder.plan import Plan
from dataprep.builder.recipe import recipe_of
from dataprep.builder.request import BuildRequest
from dataprep.builder.traffic import Traffic
from dataprep.cloud.cost import Amount, Cost, reading_cost, writing_cost
from dataprep.cloud.machine import this_zone
from dataprep.cloud.placement import Placement, is_bucket, placement_of
from dataprep.cloud.prices import published_prices
from dataprep.commands.region_options import runs_here
from dataprep.messages import usd


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


def _output(plan: Plan, found: Placement, workers: int) -> PlannedBucket:
    traffic, cost = recipe_of(plan.options.dataset).output_traffic(plan, workers=workers), None
    if found.bucket is not None:
        prices = published_prices()
        cost = writing_cost(traffic.inserts, traffic.gets, found.bucket, traffic.num_bytes, prices)
    return _planned("output", found, traffic, cost)


def _source(plan: Plan, found: Placement) -> PlannedBucket:
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
