"""`dataprep tpu run`, `exec`, `status` and `kill`."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dataprep.commands.options import json_option
from dataprep.commands.text import one_line
from dataprep.commands.tpu_machines import state_of
from dataprep.commands.tpu_options import Where, note, on_tpu
from dataprep.errors import UsageError
from dataprep.tpu.fleet import Answer, Fleet, require_all
from dataprep.tpu.jobs import FRAMEWORKS, Watch, check_run, collect_logs, follow, has_failed, outcome, start

_PIPED_COLUMNS = 120
_READY = ("READY", "RUNNING")
_AFTER_DASHES = {"ignore_unknown_options": True}
_grace_option = click.option(
    "--grace-s", type=click.FloatRange(min=0), default=60.0, show_default=True, help="For a checkpoint, before a kill."
)


@click.command("run", context_settings=_AFTER_DASHES)
@on_tpu
@click.option("--run", metavar="NAME", help="Start or follow this one. [default: a new name]")
@click.option("--framework", type=click.Choice(list(FRAMEWORKS)), default="torch", show_default=True)
@click.option("--env", "variables", multiple=True, metavar="KEY=VALUE", help="For the command; several times.")
@click.option("--detach", is_flag=True, help="Return when it has started.")
@click.option("--keep-going", is_flag=True, help="Do not end the other workers when one fails.")
@click.option("--poll-s", type=click.FloatRange(min=0.05), default=30.0, show_default=True, help="Between two looks.")
@click.option(
    "--patience-s", type=click.FloatRange(min=1), default=900.0, show_default=True, help="For a silent worker."
)
@_grace_option
@click.option("--log-dir", type=click.Path(file_okay=False, path_type=Path), help="[default: logs/TPU/RUN]")
@click.argument("argv", nargs=-1, metavar="-- COMMAND…")
@click.pass_context
def run_command(
    context: click.Context,
    /,
    where: Where,
    run: str | None,
    framework: str,
    variables: tuple[str, ...],
    detach: bool,
    log_dir: Path | None,
    argv: tuple[str, ...],
    **watching: Any,
) -> None:
    """Run a command on all workers, in the staged code and its environment, and follow it.

    It runs detached: connections may drop, and this command may be interrupted. The same --run never starts twice on a
    worker; given again it is followed, and without a COMMAND it is followed only.
    """
    if not argv and run is None:
        raise UsageError("neither a command nor --run; give one after --, such as -- python -m train.pretrain_mae …")
    name = check_run(run or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    environment = {**FRAMEWORKS[framework], **dict(map(_variable, variables))}
    fleet = where.fleet()
    if argv:
        start(fleet, name, argv, environment)
    if argv and not where.dry_run:
        again = f"dataprep tpu run {where.place.name} --zone {where.place.zone} --run {name}"
        note(f"run {name} on {len(fleet.target.instances)} workers; to follow it again: {again}")
    if detach:
        click.echo("# detached" if where.dry_run else name)
        return
    states = follow(fleet, name, Watch(**watching), note=note, show=lambda text: click.echo(text, nl=False))
    logs = collect_logs(fleet, name, log_dir or Path("logs") / where.place.name / name)
    for worker, state in states.items():
        if has_failed(state):
            note(f"worker {worker}: {outcome(state)}")
    if logs:
        note(f"logs of {len(logs)} workers: {logs[0].parent}")
    context.exit(1 if any(map(has_failed, states.values())) else 0)


@click.command("exec", context_settings=_AFTER_DASHES)
@on_tpu
@click.option(
    "--worker", "workers", type=click.IntRange(min=0), multiple=True, help="Number; several times. [default: all]"
)
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND…")
@click.pass_context
def exec_command(context: click.Context, /, where: Where, workers: tuple[int, ...], argv: tuple[str, ...]) -> None:
    """Run a command on all workers at once and print what each says.

    One word is a line of shell: dataprep tpu exec my-tpu -- 'df -h | grep mnt'. gcloud repeats what a dropped
    connection cut off; what must not happen twice belongs into dataprep tpu run.
    """
    fleet = where.fleet()
    outside = [worker for worker in workers if worker >= len(fleet.target.instances) and not where.dry_run]
    if outside:
        raise UsageError(
            f"--worker {outside[0]}: {where.place.name} has workers 0 to {len(fleet.target.instances) - 1}"
        )
    answers = fleet.shell(argv[0] if len(argv) == 1 else shlex.join(argv), workers or None)
    for answer in answers:
        for line in answer.out.splitlines():
            click.echo(f"[{answer.worker}] {line}")
        if answer.code != 0:
            code = "not reached" if answer.code is None else f"exit code {answer.code}"
            note(f"[{answer.worker}] {code}: {answer.trouble}")
    context.exit(3 if any(answer.code is None for answer in answers) else int(any(answer.code for answer in answers)))


@click.command("status")
@on_tpu
@json_option
def status_command(where: Where, as_json: bool) -> None:
    """Show the TPU's state, its runs, and who holds its chips."""
    known = state_of(where, where.gcloud)
    answers: list[Answer] = []
    if known["state"] in _READY or where.dry_run:
        answers = where.fleet().call("status")
    if where.dry_run:
        return
    if as_json:
        workers = {answer.worker: answer.reply or {"error": answer.trouble} for answer in answers}
        click.echo(json.dumps({"name": where.place.name, "zone": where.place.zone, **known, "by_worker": workers}))
        return
    _print_status(where, known, answers)


@click.command("kill")
@on_tpu
@click.option("--run", "runs", multiple=True, metavar="NAME", help="Several times. [default: all that still run]")
@click.option("--others", is_flag=True, help="Then offer to end what else holds the chips.")
@click.option("--yes", is_flag=True, help="Do not ask, not even about other users' processes.")
@_grace_option
@click.pass_context
def kill_command(
    context: click.Context, /, where: Where, runs: tuple[str, ...], others: bool, yes: bool, grace_s: float
) -> None:
    """End runs, and nothing that is not theirs; then remove libtpu's lock file where nobody holds a chip.

    A run's first process gets SIGTERM and time for a checkpoint. Processes are known by number, start time and boot.
    """
    fleet = where.fleet()
    for run in map(check_run, runs or _running(fleet)):
        answers = fleet.call("kill", run, f"--grace-s={grace_s}", timeout_s=grace_s + 120)
        require_all(answers, f"end {run}")
        if where.dry_run:
            continue
        ended = sum(len(answer.reply["ended"]) for answer in answers)
        click.echo(f"run {run}: {ended} processes ended on {len(answers)} workers")
    if others:
        _end_others(fleet, yes=yes, grace_s=grace_s)
    answers = fleet.call("release")
    require_all(answers, "release the chips")
    held = [answer for answer in answers if answer.reply["lock"] == "kept"]
    for answer in held:
        for holder in answer.reply["holders"]:
            click.echo(f"worker {answer.worker}: held by {_holder(holder)}")
        if not answer.reply["complete"]:
            click.echo(
                f"worker {answer.worker}: other users' processes cannot be seen without sudo; its lock file stays"
            )
    removed = sum(answer.reply["lock"] == "removed" for answer in answers)
    if removed:
        click.echo(f"lock file removed on {removed} workers")
    context.exit(1 if held else 0)


def _running(fleet: Fleet) -> list[str]:
    answers = fleet.call("status")
    require_all(answers, "list runs")
    states = [item for answer in answers for item in answer.reply["runs"].items()]
    return sorted({run for run, state in states if state["state"] in ("running", "starting", "lost")})


def _end_others(fleet: Fleet, *, yes: bool, grace_s: float) -> None:
    answers = fleet.call("holders")
    require_all(answers, "list who holds the chips")
    for answer in answers:
        for holder in answer.reply["holders"]:
            if not yes and not click.confirm(f"worker {answer.worker}: end {_holder(holder)}?"):
                continue
            words = ("end", str(holder["pid"]), str(holder["start_ticks"]), f"--grace-s={grace_s}")
            ended = fleet.call(*words, workers=[answer.worker], timeout_s=grace_s + 120)
            require_all(ended, f"end process {holder['pid']}")
            click.echo(f"worker {answer.worker}: {_holder(holder)}: ended")


def _holder(holder: dict[str, Any]) -> str:
    by = f"run {holder['run']}" if holder["run"] else f"user {holder['user']}"
    return one_line(f"process {holder['pid']} of {by}: {holder['command']}")


def _print_status(where: Where, known: dict[str, Any], answers: list[Answer]) -> None:
    health = f", {known['health']}" if known.get("health") else ""
    state = f"{known['state']}{health}, {known['type']}, {known['workers']} workers"
    click.echo(f"{where.place.name} in {where.place.zone}: {state}")
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPED_COLUMNS)
    table = Table(box=None, padding=(0, 2), show_header=bool(answers))
    for title in ("worker", "what", "state", "pid", "command"):
        table.add_column(title, overflow="fold")
    for answer in answers:
        if answer.code != 0:
            table.add_row(str(answer.worker), "", Text(one_line(answer.trouble), style="red"))
        for run, state in answer.reply.get("runs", {}).items():
            words = Text(one_line(shlex.join(state["argv"])))
            table.add_row(str(answer.worker), f"run {run}", outcome(state), str(state.get("pid", "")), words)
        for holder in answer.reply.get("holders", []):
            who = Text(one_line(f"{holder['user']} holds {', '.join(holder['devices'])}"))
            table.add_row(str(answer.worker), "chips", who, str(holder["pid"]), Text(one_line(holder["command"])))
        if answer.reply and not answer.reply["complete"]:
            table.add_row(str(answer.worker), "chips", "not all processes can be seen without sudo")
    if answers:
        console.print(table)


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UsageError(f"--env {text!r}: expected KEY=VALUE")
    return key, value
