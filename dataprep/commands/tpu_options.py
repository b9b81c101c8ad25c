"""Which TPU is meant, as all commands on TPUs ask for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from dataprep.tpu.fleet import Fleet, Gcloud, find_target
from dataprep.tpu.gcloud import APIS, Api, Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """A TPU, and whether anything is done to it."""

    place: Place
    api: Api | None
    internal_ip: bool
    dry_run: bool

    @property
    def gcloud(self) -> Gcloud:
        return Gcloud(click.echo, dry_run=self.dry_run)

    def fleet(self) -> Fleet:
        """Its workers, looked up now.

        Raises:
            UsageError: There is no such TPU, or it is not ready.
        """
        gcloud = self.gcloud
        return Fleet(gcloud, find_target(gcloud, self.place, self.api, internal_ip=self.internal_ip))


def on_tpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that name a TPU; the function gets a `Where` first."""

    @click.argument("name", metavar="TPU")
    @click.option(
        "--zone", required=True, envvar="CLOUDSDK_COMPUTE_ZONE", show_envvar=True, help="Such as us-central2-b."
    )
    @click.option("--project", help="[default: gcloud's own]")
    @click.option("--api", type=click.Choice(APIS), help="[default: the TPU API, else Compute Engine]")
    @click.option("--internal-ip", is_flag=True, help="Reach workers by their internal addresses.")
    @click.option("--dry-run", is_flag=True, help="Print the commands that would be run, and run nothing.")
    @functools.wraps(function)
    def wrapped(
        name: str, zone: str, project: str | None, api: Api | None, internal_ip: bool, dry_run: bool, **others: Any
    ) -> Any:
        place = Place(name=name, zone=zone, project=project)
        return function(Where(place=place, api=api, internal_ip=internal_ip, dry_run=dry_run), **others)

    return wrapped


def note(text: str) -> None:
    """A line about the progress."""
    click.echo(text, err=True)
