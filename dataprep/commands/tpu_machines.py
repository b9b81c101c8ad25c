"""`dataprep tpu plan`, `create` and `delete`, and the options of all commands for TPUs."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import click

from dataprep.arguments import MOST_COUNT, StrictCommand
from dataprep.cloud.accelerators import Accelerator, known_zones, parse_accelerator, zone_note
from dataprep.cloud.gcloud import Gcloud, find_target
from dataprep.cloud.tpu.command_lines import (
    APIS,
    BOOT_DISK_GB,
    Api,
    Place,
    Request,
    Target,
    check_zone,
    create_commands,
    delete_commands,
    describe_command,
    instances_command,
    parse_share,
    queued_command,
    startup_script,
)
from dataprep.cloud.tpu.fleet import Fleet
from dataprep.commands.options import json_option, label_option, parsed_labels
from dataprep.errors import UsageError
from dataprep.messages import shell_words

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


MODES = ("flex-start", "calendar")
"""Provisioning modes that only some zones have."""


_ANY_PROJECT, _ANY_NAME = "PROJECT", "my-tpu"


@click.command(
    "plan", cls=StrictCommand, epilog=examples("tpu plan v4-32", "tpu plan tpu7x-2x2x4 --zone us-central1-c --json")
)
@click.argument("accelerator", metavar="TYPE")
@click.option("--zone", help="Zone in the command that is shown.  [default: the first known one for the generation]")
@click.option("--dry-run", is_flag=True, help="Has no effect, because this command never runs anything.")
@json_option
def plan_command(accelerator: str, zone: str | None, dry_run: bool, as_json: bool) -> None:
    """Show what the name of a TPU means: machines and chips, the service and zones that have it, and the command that
    creates it.

    TYPE is a name such as v3-256, v5litepod-16, v4:2x2x4, tpu7x-2x2x4 or ct6e-standard-8t; xpk's names are understood.
    """
    found = parse_accelerator(accelerator)
    zones = known_zones(found.generation.name)
    if zone is not None:
        check_zone(zone, found)
    request = Request(place=Place(name=_ANY_NAME, zone=zone or zones[0], project=_ANY_PROJECT), accelerator=found)
    commands = [shell_words(*argv) for argv in create_commands(request)]
    for line in (found.note, zone_note(found, request.place.zone)):
        if line:
            note(line)
    if as_json:
        modes = {mode: known_zones(found.generation.name, mode) for mode in MODES}
        facts: dict[str, object] = {"accelerator": asdict(found), "devices": found.devices, "hbm_gib": found.hbm_gib}
        facts |= {"api": request.chosen_api, "zones": zones, "modes": modes, "commands": commands}
        click.echo(json.dumps(facts))
        return
    for name, value in _facts(found, request, zones).items():
        click.echo(f"  {name:<9} {value}")
    click.echo("\n" + "\n".join(commands))


@click.command(
    "create",
    cls=StrictCommand,
    epilog=examples(
        "tpu create my-tpu --type v4-32 --zone us-central2-b --dry-run",
        "tpu create my-tpu --type v5litepod-16 --zone us-west4-a --queued --valid-until 6h --spot",
        "tpu create my-tpu --type v6e-16 --zone us-east5-a --flex-start --max-run 7d",
        "tpu create my-tpu --type v3-256 --zone europe-west4-a --nfs 10.0.0.2:/vol1=/mnt/data",
    ),
)
@on_tpu
@click.option(
    "--type",
    "accelerator",
    required=True,
    metavar="TYPE",
    help="TPU to create, such as v3-256, v5litepod-16, v4:2x2x4, tpu7x-2x2x4.",
)
@click.option("--queued", is_flag=True, help="Wait in the TPU API's queue until there is capacity.")
@click.option("--valid-until", metavar="DURATION", help="Longest time to wait for the TPU, such as 6h.")
@click.option("--flex-start", is_flag=True, help="Wait for a TPU at a lower price, which is deleted after --max-run.")
@click.option("--max-run", metavar="DURATION", help="Time for which a --flex-start TPU is given.  [default: 7d]")
@click.option("--spot", is_flag=True, help="Take a cheaper TPU that Google may take away at any time.")
@click.option("--reserved", is_flag=True, help="Take the TPU from the project's reservation (TPU API).")
@click.option("--reservation", metavar="NAME", help="Take the TPU from this reservation (Compute Engine).")
@click.option(
    "--runtime-version",
    metavar="NAME",
    help="Software version of the workers (TPU API).  [default: the one for the generation]",
)
@click.option(
    "--image-family",
    metavar="NAME",
    help="Image of the boot disk (Compute Engine).  [default: the one for the generation]",
)
@click.option(
    "--boot-disk-gb",
    type=click.IntRange(10, MOST_COUNT),
    help=f"Size of the boot disk (Compute Engine).  [default: {BOOT_DISK_GB}]",
)
@click.option(
    "--service-account", metavar="EMAIL", help="Service account of the workers; give it access to the bucket only."
)
@click.option("--network", metavar="NAME", help="Network of the workers.  [default: the project's]")
@click.option("--subnetwork", metavar="NAME", help="Subnetwork of the workers.  [default: that of the region]")
@click.option("--internal-ips", is_flag=True, help="Give the workers no external addresses.")
@label_option
@click.option(
    "--nfs",
    "shares",
    multiple=True,
    metavar="SERVER:/SHARE=/FOLDER",
    help="NFS share to mount at every boot; may be repeated.",
)
@click.option(
    "--package", "packages", multiple=True, metavar="NAME", help="Debian package to install; may be repeated."
)
@click.option(
    "--startup-script",
    "own_script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Your own start-up script, instead of the one that is written to TPU-startup.sh.",
)
def create_command(
    where: Where,
    accelerator: str,
    labels: tuple[str, ...],
    shares: tuple[str, ...],
    packages: tuple[str, ...],
    own_script: Path | None,
    **options: Any,
) -> Done:
    """Create a TPU: by the TPU API, as a queued request, or by Compute Engine for the newest types.

    Workers install packages and mount shares when they boot. A TPU costs money from the moment it is READY.
    """
    if own_script and (shares or packages):
        raise UsageError(
            "--startup-script excludes --nfs and --package; write these into your script, or leave the script out"
        )
    script = own_script or Path(f"{where.place.name}-startup.sh")
    request = Request(
        place=where.place,
        accelerator=parse_accelerator(accelerator),
        api=where.api,
        labels=parsed_labels(labels),
        startup_script=str(script),
        **options,
    )
    commands, gcloud = create_commands(request), where.gcloud
    for line in _notes(request):
        note(line)
    with contextlib.ExitStack() as undo:
        if own_script is None:
            text = startup_script([parse_share(share) for share in shares], packages)
            gcloud.show(f"cat > {shell_words(script)} <<'EOF'\n{text}EOF")
            if not where.dry_run:
                if not script.exists():
                    undo.callback(script.unlink, missing_ok=True)
                script.write_text(text)
        for argv in commands:
            gcloud.require(argv)
        undo.pop_all()
    if not where.dry_run:
        place = where.place
        status = shell_words("dataprep", "tpu", "status", place.name, "--zone", place.zone)
        note(f"{place.name}: requested; see its state with: {status}")
    return Done(facts={"type": accelerator, "api": request.chosen_api, "startup_script": str(script)})


@click.command("delete", cls=StrictCommand, epilog=examples("tpu delete my-tpu --zone us-central2-b"))
@on_tpu
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete_command(where: Where, yes: bool) -> Done:
    """Delete a TPU, its queued request, or its group of machines, with everything on its disks."""
    commands, what = _deletion(where)
    if not where.dry_run and not yes:
        click.confirm(f"Delete {what} and all that is on its disks?", abort=True, err=where.as_json)
    for argv in commands:
        where.gcloud.require(argv, missing_ok=True)
    return Done(facts={"deleted": what})


def _deletion(where: Where) -> tuple[list[list[str]], str]:
    """Return the commands, and a description of what they delete."""
    place, gcloud = where.place, where.gcloud
    if where.api != "compute-engine":
        node = gcloud.read(describe_command(place)) or {}
        request = gcloud.read(queued_command(place)) or {}
        if node or request or gcloud.dry_run:
            target = Target(place=place, api="tpu", instances=())
            kind = f"{node.get('acceleratorType', 'TPU')} {place.name} in {place.zone} ({node.get('state', 'queued')})"
            return delete_commands(target, queued=bool(request)), kind
    machines = tuple(machine["name"] for machine in gcloud.read(instances_command(place)) or [])
    if not machines and not where.api:
        raise UsageError(f"{place.name}: no such TPU in {place.zone}; check its name, --zone and --project")
    target = Target(place=place, api="compute-engine", instances=machines or ((place.name,) if gcloud.dry_run else ()))
    return delete_commands(target, queued=False), f"{place.name} in {place.zone} ({len(machines)} machines)"


def _facts(found: Accelerator, request: Request, zones: list[str]) -> dict[str, str]:
    machine = found.machine
    kind = "" if machine.machine_type == machine.generation else f" {machine.machine_type}"
    made_by = {
        "tpu": "the TPU API (gcloud compute tpus)",
        "compute-engine": "Compute Engine (gcloud compute instances)",
    }
    also = found.generation.compute_engine and request.chosen_api == "tpu"
    return {
        "TPU": f"{found.name}: {found.chips:,} chips, {found.cores:,} cores, {found.devices:,} devices, "
        f"{found.hbm_gib:,} GiB of HBM",
        "workers": f"{found.hosts:,}{kind}, each {machine.chips} chips, {machine.vcpus or 'unknown'} vCPUs, "
        f"{machine.ram_gb} GB RAM",
        "made by": made_by[request.chosen_api] + (", or Compute Engine with --api compute-engine" if also else ""),
        "zones": f"{', '.join(zones)}, perhaps more",
        "modes": "; ".join(
            f"{mode} in {', '.join(known)}" for mode in MODES if (known := known_zones(found.generation.name, mode))
        )
        or "no zone with flex-start or calendar reservations is known",
    }


def _notes(request: Request) -> list[str]:
    """Return notes on a name that was translated, and on a generation or a mode that is not known of the zone."""
    notes = [line for line in (request.accelerator.note, zone_note(request.accelerator, request.place.zone)) if line]
    generation, zone = request.accelerator.generation.name, request.place.zone
    known = known_zones(generation, "flex-start")
    if request.flex_start and zone not in known:
        named = f"named only {', '.join(known)}" if known else "named no zone"
        notes.append(f"flex-start of {generation} in {zone} is not confirmed: Google's pages that were read {named}")
    return notes


class TpuState(TypedDict):
    """A TPU, as its service reports it."""

    api: Api
    state: str | None
    health: NotRequired[str | None]
    type: str | None
    workers: int


def state_of(where: Where, gcloud: Gcloud) -> TpuState:
    """Look a TPU up in both services.

    Raises:
        UsageError: Neither service has a TPU of this name.
    """
    place = where.place
    if where.api != "compute-engine":
        node = gcloud.read(describe_command(place))
        if node:
            return {
                "api": "tpu",
                "state": node.get("state"),
                "health": node.get("health"),
                "type": node.get("acceleratorType"),
                "workers": len(node.get("networkEndpoints") or []),
            }
        request = gcloud.read(queued_command(place))
        if request:
            return {
                "api": "tpu",
                "state": request.get("state", {}).get("state"),
                "type": "queued request",
                "workers": 0,
            }
    machines = gcloud.read(instances_command(place)) or []
    if not machines and not gcloud.dry_run:
        raise UsageError(f"{place.name}: no such TPU in {place.zone}; check its name, --zone and --project")
    states = sorted({machine.get("status", "") for machine in machines})
    types = sorted({machine.get("machineType", "").rpartition("/")[2] for machine in machines})
    return {"api": "compute-engine", "state": ", ".join(states), "type": ", ".join(types), "workers": len(machines)}
