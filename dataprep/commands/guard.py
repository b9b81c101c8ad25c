"""`dataprep guard`: an egress budget for any command that reads Cloud Storage."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import click

from dataprep.arguments import StrictCommand
from dataprep.cloud.machine import this_zone
from dataprep.cloud.prices import published_prices, read_prices
from dataprep.commands.options import Finite, json_option
from dataprep.commands.region_options import named_place, prices_option, tpu_option
from dataprep.guard.ledger import Budget, allowed_places
from dataprep.guard.report import report_lines
from dataprep.guard.run import GRACE_S, GuardSettings, run_guarded

EPILOG = """\b
Examples:
  dataprep guard -- python train.py
  dataprep guard --max-usd 5 --zone us-central1-a -- python train.py --data gs://bucket/imagenet
  dataprep guard --allow us-central1 --allow NAM4 --json -- python train.py > report.json
  dataprep guard --max-usd 20 --zone europe-west4-a -- torchrun --nproc-per-node 4 train.py

\b
Exit codes: the command's own, 128 + N if signal N ended it; 124 if the budget ended and the command was stopped,
126 or 127 if it cannot be started; 1 if reads were refused and the command ended with 0. docs/guard.md says which
libraries are counted, and what no guard sees.
"""


@click.command("guard", cls=StrictCommand, epilog=EPILOG, context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--max-usd", type=Finite(min=0), help="Maximum cost of all requests and reads.")
@click.option(
    "--allow", "allow", metavar="PLACE", multiple=True,
    help="Region, dual-region or multi-region whose buckets may be read; may be repeated.  [default: all]",
)  # fmt: skip
@click.option("--zone", help="Zone or region of this machine.  [default: from its metadata server]")
@tpu_option
@prices_option
@click.option(
    "--grace-s",
    type=Finite(min=0),
    default=GRACE_S,
    show_default=True,
    help="Seconds between SIGTERM and SIGKILL for the command's processes when the budget has ended.",
)
@json_option
def command(
    words: tuple[str, ...],
    max_usd: float | None,
    allow: tuple[str, ...],
    zone: str | None,
    tpu: str | None,
    prices_file: Path | None,
    grace_s: float,
    as_json: bool,
) -> None:
    """Run a command, and count what it reads from Cloud Storage: requests, bytes and USD of each bucket.

    Above --max-usd, or outside the allowed places, a read fails with an error that names the bucket, its place, the
    price and the nearest copy. The report goes to stderr; with --json it is stdout's only content, and the command's
    own standard output goes to stderr.
    """
    settings = GuardSettings(
        where=named_place(zone, tpu) or this_zone(),
        budget=Budget(max_usd=max_usd, allowed=allowed_places(allow)),
        prices=published_prices() if prices_file is None else read_prices(prices_file),
        grace_s=grace_s,
    )
    stderr = os.dup(2)
    try:
        code, report = asyncio.run(run_guarded(words, settings, stdout=stderr if as_json else None))
    finally:
        os.close(stderr)
    if as_json:
        click.echo(json.dumps({**report.document(), "exit_code": code}))
    else:
        for line in report_lines(report):
            click.echo(line, err=True)
    click.get_current_context().exit(code)
