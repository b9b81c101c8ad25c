"""`dataprep replicate`: copies of a finished dataset in the regions of its readers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from dataprep.arguments import StrictCommand
from dataprep.builder.finished import shape_faults
from dataprep.cloud.placement import guard, is_bucket
from dataprep.cloud.prices import published_prices, read_prices
from dataprep.cloud.replicate import copy_dataset, dataset_phases, plan_copy, record_copies
from dataprep.commands.options import Finite, json_option, stall_option
from dataprep.commands.progress import CopyProgress
from dataprep.commands.region_options import prices_option, region_policy_option
from dataprep.commands.replicate_price import PlannedCopy, planned_copy
from dataprep.dataset.replicas import Replica
from dataprep.errors import CredentialsError, UndecidedError, UsageError
from dataprep.messages import counted, human_bytes, printable, usd
from dataprep.storage import open_storage

EPILOG = """\b
Examples:
  dataprep replicate gs://bucket-eu/imagenet --to gs://bucket-us/imagenet --dry-run
  dataprep replicate gs://bucket-eu/imagenet --to gs://bucket-us/imagenet --max-usd 10
  dataprep replicate shards/imagenet --to gs://bucket-eu/imagenet --to gs://bucket-us/imagenet
  dataprep verify gs://bucket-eu/imagenet --replicas

\b
Exit codes: 0 all copies are whole, 1 a copy failed, or the dataset is damaged, 2 usage, no dataset or bucket, a missing
permission, or more than --max-usd, 3 --max-usd was given and a price is not known. From bucket to bucket Cloud Storage
copies by itself; from or to a disk the bytes pass through this machine, whose reading --region-policy is about.
"""
_WORKERS = 16
"""Default number of threads. They wait for Cloud Storage, which makes the copies, so the number of cores does not
matter."""

_PRICE_ALONE = (
    "; for a price alone, `dataprep check-region URL --bucket-location PLACE --bytes SIZE --zone ZONE` needs none"
)


@click.command("replicate", cls=StrictCommand, epilog=EPILOG)
@click.argument("url", metavar="URL")
@click.option("--to", "targets", metavar="URL", multiple=True, required=True, help="Place of a copy; may be repeated.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print what would be copied, its price, and when the copy has paid for itself; write nothing.",
)
@click.option("--max-usd", type=Finite(min=0), help="Copy nothing if all copies together cost more than this.")
@prices_option
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=_WORKERS,
    show_default=True,
    help="Objects that are copied at the same time.",
)
@stall_option("Minutes without an answer or a byte after which the copying ends with an error.")
@region_policy_option
@json_option
def command(
    url: str,
    targets: tuple[str, ...],
    dry_run: bool,
    max_usd: float | None,
    prices_file: Path | None,
    workers: int,
    stall_minutes: float,
    region_policy: str,
    as_json: bool,
) -> None:
    """Copy the finished dataset at URL to other places, and list those in buckets in each place's replicas.json.

    From that list, loaders choose the copy that is the cheapest to read, if reading URL is charged. No other existing
    object is replaced, and sizes and CRC32C are checked. README.md and croissant.json are copied, too; others that
    exist at a target stay there. After an interruption the same command copies what is missing. Without --json the
    price is printed before the copying.
    """
    prices = published_prices() if prices_file is None else read_prices(prices_file)
    urls = [open_storage(target).url for target in targets]
    if len(set(urls)) < len(urls):
        raise UsageError(f"--to {Counter(urls).most_common(1)[0][0]}: given twice; give it once")
    if not all(is_bucket(each) for each in urls):
        guard(url, region_policy)  # this machine reads what Cloud Storage cannot copy by itself
    with CopyProgress(quiet=as_json, stall_s=60 * stall_minutes) as progress:
        progress.step("listing the dataset and its copies")
        try:
            phases = dataset_phases(open_storage(url), shape_faults)
            plans = [planned_copy(plan_copy(url, each, phases), prices, epochs=dry_run) for each in urls]
        except CredentialsError as error:
            raise CredentialsError(f"{error}{_PRICE_ALONE}") if dry_run else error from None
    _check_price(plans, max_usd)
    if not as_json:
        for line in (line for plan in plans for line in plan.lines):
            click.echo(printable(line) if not line.startswith(" ") else line, err=not dry_run)
    if dry_run:
        _print_result(plans, None, [], as_json)
        return
    warnings: list[str] = []
    with CopyProgress(quiet=as_json, stall_s=60 * stall_minutes) as progress:
        for plan in plans:
            progress.copying(plan.copying.target.url, plan.copying.objects, plan.copying.num_bytes)
            copy_dataset(plan.copying, workers=workers, copied=progress.copied)
        progress.step("writing replicas.json")
        source = plans[0].copying.source
        replicas = record_copies(source, [plan.copying.target for plan in plans], warnings.append)
    for warning in warnings:
        click.echo(f"dataprep: warning: {printable(warning)}", err=True)
    _print_result(plans, replicas, warnings, as_json)


def _check_price(plans: Sequence[PlannedCopy], max_usd: float | None) -> None:
    if max_usd is None:
        return
    unknown = next((plan for plan in plans if plan.cost is None), None)
    if unknown is not None:
        raise UndecidedError(
            f"--max-usd {max_usd:g}: the price of {unknown.copying.target.url} is not known "
            f"({unknown.verdict.reason}); add the missing information, or leave out --max-usd"
        )
    total = sum(plan.cost.total for plan in plans if plan.cost)
    if total > max_usd:
        raise UsageError(
            f"the copying costs {usd(total)}, more than --max-usd {max_usd:g}; nothing was copied: allow more, or run "
            "with --dry-run to see why"
        )


def _print_result(
    plans: Sequence[PlannedCopy], replicas: Sequence[Replica] | None, warnings: Sequence[str], as_json: bool
) -> None:
    """Print what was copied; `replicas` is None after a dry run."""
    if as_json:
        listed = None if replicas is None else [{"url": each.url, **asdict(each.bucket)} for each in replicas]
        copies = [_json(plan) for plan in plans]
        source = plans[0].copying.source.url
        click.echo(json.dumps({"source": source, "copies": copies, "replicas": listed, "warnings": list(warnings)}))
        return
    if replicas is None:
        return
    for plan in plans:
        copying = plan.copying
        objects = counted(copying.objects + copying.existing, "object")
        copied = f"{copying.objects:,} of them copied ({human_bytes(copying.num_bytes)})"
        did = copied if copying.objects else "nothing was missing"
        click.echo(f"{copying.target.url} is a whole copy: {objects}, {did}")


def _json(plan: PlannedCopy) -> dict[str, object]:
    copying, cost = plan.copying, plan.cost
    return {
        "url": copying.target.url,
        "objects": copying.objects,
        "num_bytes": copying.num_bytes,
        "standing": copying.existing,
        "kept": list(copying.kept),
        "verdict": plan.verdict.kind,
        "usd_per_gib": plan.verdict.usd_per_gib,
        "reason": plan.verdict.reason,
        "usd": None if cost is None else {**asdict(cost), "total": cost.total},
        "reader": plan.reader,
        "epochs": plan.epochs,
    }
