"""Where a bucket is read from, as several commands ask for it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dataprep.machine import tpu_machine
from dataprep.placement import POLICIES
from dataprep.region import check_place

beside_option = click.option("--beside", metavar="ZONE", help="Zone or region in which --output will be read.")
tpu_option = click.option("--tpu", metavar="NAME", help="TPU that will read it; gcloud is asked for its zone.")
region_policy_option = click.option(
    "--region-policy",
    type=click.Choice(POLICIES),
    default="refuse",
    show_default=True,
    help="When reading a bucket is known to cost money.",
)
# What Beam's runners on Google Cloud call it, the most exact first.
_WORKER_PLACES = ("--worker_zone", "--zone", "--worker_region", "--region")
_RUNNERS_HERE = ("local", "FnApiRunner", "PrismRunner")


def named_place(zone: str | None, tpu: str | None) -> str | None:
    """The zone or region of the flags; None where there is none of them, and this machine is meant.

    Raises:
        UsageError: No such TPU, or a malformed zone.
        UndecidedError: `gcloud` could not answer.
    """
    checked = None if zone is None else check_place(zone)
    return checked if tpu is None else tpu_machine(tpu, checked).zone


def usd(amount: float) -> str:
    """`$1,234.56`; what is less than a cent, but not nothing, says so."""
    return "under $0.01" if 0 < amount < 0.01 else f"${amount:,.2f}"


def runs_here(runner: str) -> bool:
    """Whether a build's workers are processes of this machine."""
    return runner in _RUNNERS_HERE


def place_of_workers(beam_options: Sequence[str]) -> str | None:
    """The zone or region in which a Beam runner was told to work."""
    pairs = [option.partition("=") for option in beam_options]
    for name in _WORKER_PLACES:
        for flag, _, value in pairs:
            if flag == name and value:
                return check_place(value)
    return None
