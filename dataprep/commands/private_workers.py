"""What workers without public addresses need on Google Cloud, and what it costs: said before a build starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dataprep.builder.job import BuildJob, Engine
from dataprep.builder.open_build import open_build
from dataprep.builder.plan import Plan
from dataprep.builder.recipe import recipe_of
from dataprep.cloud.cost import GIB
from dataprep.cloud.prices import ANYWHERE, published_prices
from dataprep.dataset.records import ShardReceipt
from dataprep.messages import human_bytes, usd

_PRIVATE = "--no_use_public_ips"


def private_worker_lines(plan: Plan, options: Sequence[str]) -> list[str]:
    """Describe what workers without public addresses need for a build; no line if they have public addresses.

    Args:
        plan: The plan of the build.
        options: Options of a Beam runner.
    """
    if _PRIVATE not in options:
        return []
    lines = [
        f"{_PRIVATE}: workers reach buckets only if their subnetwork has Private Google Access: gcloud compute "
        "networks subnets update SUBNETWORK --region=REGION --enable-private-ip-google-access"
    ]
    web_bytes = recipe_of(plan.options.dataset).web_bytes(plan)
    if web_bytes:
        lines.append(
            f"{_PRIVATE}: workers reach the web only through Cloud NAT, which takes about "
            f"{usd(nat_cost(web_bytes))} for {human_bytes(web_bytes)} of downloads, free with public addresses"
        )
    return lines


def nat_cost(web_bytes: int) -> float:
    """Return the price of downloads through Cloud NAT, in USD, without the gateway's hours, which cost cents."""
    return web_bytes / GIB * (published_prices().find("nat_per_gib", ANYWHERE, ANYWHERE) or 0.0)


def telling(engine: Engine, options: Sequence[str], log: Callable[[str], object]) -> Engine:
    """Return an engine that first logs `private_worker_lines`."""

    def tell(job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
        for line in private_worker_lines(open_build(job.output_url, job.root, job.pointer).plan, options):
            log(line)
        yield from engine(job, indexes)

    return tell
