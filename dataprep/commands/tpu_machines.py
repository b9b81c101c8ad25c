"""`dataprep tpu plan`, `create` and `delete`, and the options of all commands for TPUs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from dataprep.arguments import WHERE, Request, command_of, option, request, texts
from dataprep.cloud.accelerators import Accelerator, known_zones, parse_accelerator, zone_note
from dataprep.cloud.gcloud import Gcloud, find_target
from dataprep.cloud.tpu import command_lines
from dataprep.cloud.tpu.fleet import Fleet
from dataprep.errors import UsageError
from dataprep.messages import shell_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """The TPU that a command line names, and the receiver of messages."""

    asked: command_lines.OnTpu
    as_json: bool = False
    shown: list[str] = field(default_factory=list)
    """Lines of a dry run, for its JSON."""

    @property
    def gcloud(self) -> Gcloud:
        return Gcloud(self.shown.append if self.as_json else click.echo, dry_run=self.asked.dry_run)

    def say(self, text: str, *, nl: bool = True) -> None:
        """Print a line for the user, on stderr if stdout is for JSON."""
        click.echo(text, nl=nl, err=self.as_json)

    def fleet(self) -> Fleet:
        """Look up the workers of the TPU. Raises UsageError if there is no such TPU, or it is not ready."""
        gcloud, internal_ip = self.gcloud, isinstance(self.asked, command_lines.OnWorkers) and self.asked.internal_ip
        return Fleet(gcloud, find_target(gcloud, self.asked.place, self.asked.api, internal_ip=internal_ip))


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """Result of a command."""

    facts: dict[str, object] = field(default_factory=dict)
    """Facts that `--json` prints after the TPU's name and zone."""
    code: int = 0


Asked = TypeVar("Asked", bound=command_lines.OnTpu)


def tpu_command(kind: type[Asked], run: Callable[[Asked, Where], Done], name: str, *lines: str) -> click.Command:
    """Make a command that works on a TPU, from its request and the function that carries it out."""

    def called(asked: Asked, *, as_json: bool) -> int:
        where = Where(asked=asked, as_json=as_json)
        done = run(asked, where)
        if as_json:
            facts = {"dry_run": True, "commands": where.shown} if asked.dry_run else done.facts
            click.echo(json.dumps({"name": asked.name, "zone": asked.zone, **facts}))
        return done.code

    return command_of(kind, called, name, epilog=examples(*lines))


def examples(*lines: str) -> str:
    """Return the end of a command's help: command lines as they are typed."""
    return "\n".join(["\b", "Examples:", *(f"  dataprep {line}" for line in lines)])


def note(text: str) -> None:
    """Print a line about the progress, on stderr."""
    click.echo(text, err=True)


MODES = ("flex-start", "calendar")
"""Provisioning modes that only some zones have."""


_ANY_PROJECT, _ANY_NAME = "PROJECT", "my-tpu"


@request
class PlanTpu(Request):
    """Show the machines, chips, services and zones of a TPU type, and the command that creates it.

    TYPE is a name such as v3-256, v5litepod-16, v4:2x2x4, tpu7x-2x2x4 or ct6e-standard-8t; xpk's names are understood.
    """

    type: str = option("Name of a TPU type.", metavar="TYPE", kw_only=False)
    zone: str | None = option(
        "Zone in the command shown.", default=None, shown="the first known zone for the generation", group=WHERE
    )
    dry_run: bool = option("Has no effect: this command never runs anything.", default=False, rare=True)


def _plan(asked: PlanTpu, *, as_json: bool) -> None:
    zone = asked.zone
    found = parse_accelerator(asked.type)
    zones = known_zones(found.generation.name)
    if zone is not None:
        command_lines.check_zone(zone, found)
    wanted = command_lines.CreateTpu(name=_ANY_NAME, zone=zone or zones[0], project=_ANY_PROJECT, type=asked.type)
    commands = [shell_words(*argv) for argv in command_lines.create_commands(wanted)]
    for line in _notes(wanted):
        note(line)
    if as_json:
        modes = {mode: known_zones(found.generation.name, mode) for mode in MODES}
        facts: dict[str, object] = {"accelerator": asdict(found), "devices": found.devices, "hbm_gib": found.hbm_gib}
        facts |= {"api": wanted.chosen_api, "zones": zones, "modes": modes, "commands": commands}
        click.echo(json.dumps(facts))
        return
    for name, value in _facts(found, wanted, zones).items():
        click.echo(f"  {name:<9} {value}")
    click.echo("\n" + "\n".join(commands))


plan_command = command_of(
    PlanTpu, _plan, "plan", epilog=examples("tpu plan v4-32", "tpu plan tpu7x-2x2x4 --zone us-central1-c --json")
)


def _create(asked: command_lines.CreateTpu, where: Where) -> Done:
    own_script, script = asked.startup_script, asked.startup_script or Path(f"{asked.name}-startup.sh")
    if own_script is not None and not own_script.is_file():
        raise UsageError(f"`startup_script` {own_script}: no such file; check its path")
    commands, gcloud = command_lines.create_commands(asked, script), where.gcloud
    for line in _notes(asked):
        note(line)
    with contextlib.ExitStack() as undo:
        if own_script is None:
            text = command_lines.startup_script(
                [command_lines.parse_share(share) for share in texts(asked.nfs)], texts(asked.package)
            )
            gcloud.show(f"cat > {shell_words(script)} <<'EOF'\n{text}EOF")
            if not asked.dry_run:
                if not script.exists():
                    undo.callback(script.unlink, missing_ok=True)
                script.write_text(text)
        for argv in commands:
            gcloud.require(argv)
        undo.pop_all()
    if not asked.dry_run:
        status = shell_words("dataprep", "tpu", "status", asked.name, "--zone", asked.zone)
        note(f"{asked.name}: requested; see its state with: {status}")
    return Done(facts={"type": asked.type, "api": asked.chosen_api, "startup_script": str(script)})


create_command = tpu_command(
    command_lines.CreateTpu,
    _create,
    "create",
    "tpu create my-tpu --type v4-32 --zone us-central2-b --dry-run",
    "tpu create my-tpu --type v5litepod-16 --zone us-west4-a --queued --valid-until 6h --spot",
    "tpu create my-tpu --type v6e-16 --zone us-east5-a --flex-start --max-run 7d",
    "tpu create my-tpu --type v3-256 --zone europe-west4-a --nfs 10.0.0.2:/vol1=/mnt/data",
)


@request
class DeleteTpu(command_lines.OnTpu):
    """Delete a TPU, its queued request, or its group of machines, with everything on its disks."""

    yes: bool = option("Do not ask for confirmation.", default=False)


def _delete(asked: DeleteTpu, where: Where) -> Done:
    commands, what = _deletion(where)
    if not asked.dry_run and not asked.yes:
        click.confirm(f"Delete {what} and everything on its disks?", abort=True, err=where.as_json)
    for argv in commands:
        where.gcloud.require(argv, missing_ok=True)
    return Done(facts={"deleted": what})


delete_command = tpu_command(DeleteTpu, _delete, "delete", "tpu delete my-tpu --zone us-central2-b")


def _deletion(where: Where) -> tuple[list[list[str]], str]:
    """Return the commands, and a description of what they delete."""
    place, gcloud = where.asked.place, where.gcloud
    if where.asked.api != "compute-engine":
        node = gcloud.read(command_lines.describe_command(place)) or {}
        wanted = gcloud.read(command_lines.queued_command(place)) or {}
        if node or wanted or gcloud.dry_run:
            target = command_lines.Target(place=place, api="tpu", instances=())
            kind = f"{node.get('acceleratorType', 'TPU')} {place.name} in {place.zone} ({node.get('state', 'queued')})"
            return command_lines.delete_commands(target, queued=bool(wanted)), kind
    machines = tuple(machine["name"] for machine in gcloud.read(command_lines.instances_command(place)) or [])
    if not machines and not where.asked.api:
        raise UsageError(f"{place.name}: no such TPU in {place.zone}; check its name, --zone and --project")
    target = command_lines.Target(
        place=place, api="compute-engine", instances=machines or ((place.name,) if gcloud.dry_run else ())
    )
    return command_lines.delete_commands(
        target, queued=False
    ), f"{place.name} in {place.zone} ({len(machines)} machines)"


def _facts(found: Accelerator, wanted: command_lines.CreateTpu, zones: list[str]) -> dict[str, str]:
    machine = found.machine
    kind = "" if machine.machine_type == machine.generation else f" {machine.machine_type}"
    made_by = {
        "tpu": "the TPU API (gcloud compute tpus)",
        "compute-engine": "Compute Engine (gcloud compute instances)",
    }
    also = found.generation.compute_engine and wanted.chosen_api == "tpu"
    return {
        "TPU": f"{found.name}: {found.chips:,} chips, {found.cores:,} cores, {found.devices:,} devices, "
        f"{found.hbm_gib:,} GiB of HBM",
        "workers": f"{found.hosts:,}{kind}, each {machine.chips} chips, {machine.vcpus or 'unknown'} vCPUs, "
        f"{machine.ram_gb} GB RAM",
        "made by": made_by[wanted.chosen_api] + (", or Compute Engine with --api compute-engine" if also else ""),
        "zones": f"{', '.join(zones)}, perhaps more",
        "modes": "; ".join(
            f"{mode} in {', '.join(known)}" for mode in MODES if (known := known_zones(found.generation.name, mode))
        )
        or "no zone with flex-start or calendar reservations is known",
    }


def _notes(wanted: command_lines.CreateTpu) -> list[str]:
    """Return notes on a name that was translated, and on a generation or a mode that is not known of the zone."""
    notes = [line for line in (wanted.accelerator.note, zone_note(wanted.accelerator, wanted.place.zone)) if line]
    generation, zone = wanted.accelerator.generation.name, wanted.place.zone
    known = known_zones(generation, "flex-start")
    if wanted.flex_start and zone not in known:
        named = f"named only {', '.join(known)}" if known else "named no zone"
        notes.append(f"flex-start of {generation} in {zone} is not confirmed: Google's pages, when last read, {named}")
    return notes


def state_of(where: Where) -> Mapping[str, Any]:
    """Look a TPU up in both services. Raises UsageError if neither has a TPU of this name."""
    place, gcloud = where.asked.place, where.gcloud
    if where.asked.api != "compute-engine":
        node = gcloud.read(command_lines.describe_command(place))
        if node:
            return {
                "api": "tpu",
                "state": node.get("state"),
                "health": node.get("health"),
                "type": node.get("acceleratorType"),
                "workers": len(node.get("networkEndpoints") or []),
            }
        wanted = gcloud.read(command_lines.queued_command(place))
        if wanted:
            return {"api": "tpu", "state": wanted.get("state", {}).get("state"), "type": "queued request", "workers": 0}
    machines = gcloud.read(command_lines.instances_command(place)) or []
    if not machines and not gcloud.dry_run:
        raise UsageError(f"{place.name}: no such TPU in {place.zone}; check its name, --zone and --project")
    states = sorted({machine.get("status", "") for machine in machines})
    types = sorted({machine.get("machineType", "").rpartition("/")[2] for machine in machines})
    return {"api": "compute-engine", "state": ", ".join(states), "type": ", ".join(types), "workers": len(machines)}
