"""Options that name a TPU, which all its commands share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from dataprep.cloud.accelerators import parse_accelerator
from dataprep.cloud.gcloud import Gcloud
from dataprep.cloud.tpu.command_lines import APIS, Api, Place, check_zone
from dataprep.cloud.tpu.find import find_target
from dataprep.cloud.tpu.fleet import Fleet
from dataprep.commands.options import json_option

_Wrapped = Callable[..., None]
_PLACE_OPTIONS: tuple[Callable[[_Wrapped], _Wrapped], ...] = (
    click.argument("name", metavar="TPU"),
    click.option(
        "--zone",
        required=True,
        envvar="CLOUDSDK_COMPUTE_ZONE",
        show_envvar=True,
        help="Zone of the TPU, such as us-central2-b.",
    ),
    click.option("--project", help="Project of the TPU.  [default: gcloud's own]"),
    click.option(
        "--api", type=click.Choice(APIS), help="Service that has the TPU.  [default: the TPU API, else Compute Engine]"
    ),
)
_OUTPUT_OPTIONS: tuple[Callable[[_Wrapped], _Wrapped], ...] = (
    click.option("--dry-run", is_flag=True, help="Print the commands that would be run, and run nothing."),
    json_option,
)
_internal_ip_option = click.option("--internal-ip", is_flag=True, help="Reach workers by their internal addresses.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """The TPU that a command line names, and the options of the run."""

    place: Place
    api: Api | None
    internal_ip: bool
    dry_run: bool
    as_json: bool = False
    shown: list[str] = field(default_factory=list)
    """Lines of a dry run, for its JSON."""

    @property
    def gcloud(self) -> Gcloud:
        return Gcloud(self.shown.append if self.as_json else click.echo, dry_run=self.dry_run)

    def say(self, text: str, *, nl: bool = True) -> None:
        """Print a line for the user, on stderr if stdout is for JSON."""
        click.echo(text, nl=nl, err=self.as_json)

    def fleet(self) -> Fleet:
        """Look up the workers of the TPU.

        Raises:
            UsageError: There is no such TPU, or it is not ready.
        """
        gcloud = self.gcloud
        return Fleet(gcloud, find_target(gcloud, self.place, self.api, internal_ip=self.internal_ip))


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """Result of a command."""

    facts: dict[str, object] = field(default_factory=dict)
    """Facts that `--json` prints after the TPU's name and zone."""
    code: int = 0


def on_tpu(function: Callable[..., Done]) -> Callable[..., None]:
    """Add the options that name a TPU, --dry-run and --json; the function gets a `Where` as its first argument."""
    return _with_options(function, [*_PLACE_OPTIONS, *_OUTPUT_OPTIONS])


def on_workers(function: Callable[..., Done]) -> Callable[..., None]:
    """Add the options of `on_tpu` and how workers are reached, for commands that connect to them."""
    return _with_options(function, [*_PLACE_OPTIONS, _internal_ip_option, *_OUTPUT_OPTIONS])


def _with_options(
    function: Callable[..., Done], options: Sequence[Callable[[_Wrapped], _Wrapped]]
) -> Callable[..., None]:
    @functools.wraps(function)
    def wrapped(
        name: str, zone: str, project: str | None, api: Api | None, dry_run: bool, as_json: bool, **others: Any
    ) -> None:
        if "accelerator" in others:
            check_zone(zone, parse_accelerator(others["accelerator"]))
        place, internal_ip = Place(name=name, zone=zone, project=project), others.pop("internal_ip", False)
        where = Where(place=place, api=api, internal_ip=internal_ip, dry_run=dry_run, as_json=as_json)
        done = function(where, **others)
        if as_json:
            facts = {"dry_run": True, "commands": where.shown} if dry_run else done.facts
            click.echo(json.dumps({"name": name, "zone": zone, **facts}))
        click.get_current_context().exit(done.code)

    result: Callable[..., None] = wrapped
    for option in reversed(options):
        result = option(result)
    return result


def examples(*lines: str) -> str:
    """Return the end of a command's help: command lines as they are typed."""
    return "\n".join(["\b", "Examples:", *(f"  dataprep {line}" for line in lines)])


def note(text: str) -> None:
    """Print a line about the progress, on stderr."""
    click.echo(text, err=True)
