"""`dataprep tpu run`, `exec`, `status` and `kill`: programs on the workers of a TPU."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from dataprep.arguments import StrictCommand
from dataprep.cloud.tpu.fleet import Answer, Fleet, require_all
from dataprep.cloud.tpu.jobs import FRAMEWORKS, Watch, check_run, collect_logs, follow, has_failed, outcome, start
from dataprep.cloud.tpu.worker import Holder
from dataprep.commands.options import COUNT_OR_NONE, Finite
from dataprep.commands.tpu_machines import TpuState, state_of
from dataprep.commands.tpu_options import Done, Where, examples, note, on_workers
from dataprep.errors import UsageError
from dataprep.host.piped import open_console, print_table
from dataprep.messages import printable, shell_words

_READY = ("READY", "RUNNING")
_AFTER_DASHES = {"ignore_unknown_options": True}
_grace_option = click.option(
    "--grace-s",
    type=Finite(min=0),
    default=60.0,
    show_default=True,
    help="Seconds that a program gets for a checkpoint before it is killed.",
)


@click.command(
    "run",
    cls=StrictCommand,
    context_settings=_AFTER_DASHES,
    epilog=examples(
        "tpu run my-tpu --zone us-central2-b -- dataprep-pretrain-mae --use_xla --data_path gs://bucket/coco-dup5",
        "tpu run my-tpu --zone us-central2-b --run night-1 --env WANDB_API_KEY --detach -- python train.py",
        "tpu run my-tpu --zone us-central2-b --run night-1",
    ),
)
@on_workers
@click.option("--run", metavar="NAME", help="Name of the run to start or to follow.  [default: a new name]")
@click.option(
    "--framework", type=click.Choice(list(FRAMEWORKS)), default="torch", show_default=True,
    help="Framework whose environment variables are set.",
)  # fmt: skip
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="KEY[=VALUE]",
    help="Environment variable of the command; may be repeated. KEY alone takes the value from this shell.",
)
@click.option("--detach", is_flag=True, help="Return once the command has started.")
@click.option("--keep-going", is_flag=True, help="Let the other workers continue when one fails.")
@click.option(
    "--poll-s",
    type=Finite(min=0.05),
    default=30.0,
    show_default=True,
    help="Seconds between requests for the workers' states.",
)
@click.option(
    "--patience-s",
    type=Finite(min=1),
    default=900.0,
    show_default=True,
    help="Seconds without an answer from a worker after which this command ends.",
)
@_grace_option
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the logs of all workers.  [default: logs/TPU/RUN]",
)
@click.argument("argv", nargs=-1, metavar="-- COMMAND…")
def run_command(
    where: Where,
    run: str | None,
    framework: str,
    variables: tuple[str, ...],
    detach: bool,
    log_dir: Path | None,
    argv: tuple[str, ...],
    **watching: Any,
) -> Done:
    """Run a command on all workers, in the code and environment of `tpu setup`, and follow it.

    The command runs detached: it continues if connections drop, or if you press Ctrl-C here. A run is started at most
    once on each worker: if --run names an existing one, that is followed, and then no COMMAND is needed.
    """
    if not argv and run is None:
        raise UsageError("neither a command nor --run; give one after --, such as -- dataprep-pretrain-mae …")
    name = check_run(run or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    environment = {**FRAMEWORKS[framework], **dict(map(_variable, variables))}
    fleet = where.fleet()
    if argv:
        start(fleet, name, argv, environment)
    if argv and not where.dry_run:
        again = shell_words("dataprep", "tpu", "run", where.place.name, "--zone", where.place.zone, "--run", name)
        note(f"run {name} on {len(fleet.target.instances)} workers; to follow it again: {again}")
    if detach:
        if not where.as_json:
            click.echo("# detached" if where.dry_run else name)
        return Done(facts={"run": name, "workers": len(fleet.target.instances)})
    states = follow(fleet, name, Watch(**watching), note=note, show=lambda text: where.say(text, nl=False))
    logs = collect_logs(fleet, name, log_dir or Path("logs") / where.place.name / name)
    for worker, state in states.items():
        if has_failed(state):
            note(f"worker {worker}: {outcome(state)}")
    if logs:
        note(f"logs of {len(logs)} workers: {logs[0].parent}")
    facts: dict[str, object] = {"run": name, "by_worker": states, "logs": list(map(str, logs))}
    return Done(facts=facts, code=int(any(map(has_failed, states.values()))))


@click.command(
    "exec",
    cls=StrictCommand,
    context_settings=_AFTER_DASHES,
    epilog=examples(
        "tpu exec my-tpu --zone us-central2-b -- nproc",
        "tpu exec my-tpu --zone us-central2-b --worker 0 -- 'df -h | grep mnt'",
    ),
)
@on_workers
@click.option(
    "--worker",
    "workers",
    type=COUNT_OR_NONE,
    multiple=True,
    help="Number of a worker; may be repeated.  [default: all]",
)
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND…")
def exec_command(where: Where, workers: tuple[int, ...], argv: tuple[str, ...]) -> Done:
    """Run a command on all workers, many at the same time, and print the output of each.

    A COMMAND of one word is a line of shell: dataprep tpu exec my-tpu -- 'df -h | grep mnt'. gcloud may repeat a
    command whose connection dropped, so use `dataprep tpu run` for a command that must not run twice.
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
            where.say(f"[{answer.worker}] {line}")
        if answer.code != 0:
            code = "not reached" if answer.code is None else f"exit code {answer.code}"
            note(f"[{answer.worker}] {code}: {answer.trouble}")
    facts = {answer.worker: {"code": answer.code, "out": answer.out, "error": answer.trouble} for answer in answers}
    unreached = any(answer.code is None for answer in answers)
    return Done(facts={"by_worker": facts}, code=3 if unreached else int(any(answer.code for answer in answers)))


@click.command("status", cls=StrictCommand, epilog=examples("tpu status my-tpu --zone us-central2-b --json"))
@on_workers
def status_command(where: Where) -> Done:
    """Show the TPU's state, its runs, and the processes that hold its chips."""
    known = state_of(where, where.gcloud)
    answers: list[Answer] = []
    if known["state"] in _READY or where.dry_run:
        answers = where.fleet().call("status")
    if not where.dry_run and not where.as_json:
        _print_status(where, known, answers)
    workers = {answer.worker: answer.reply or {"error": answer.trouble} for answer in answers}
    return Done(facts={**known, "by_worker": workers})


@click.command(
    "kill",
    cls=StrictCommand,
    epilog=examples(
        "tpu kill my-tpu --zone us-central2-b --run night-1", "tpu kill my-tpu --zone us-central2-b --others"
    ),
)
@on_workers
@click.option(
    "--run",
    "runs",
    multiple=True,
    metavar="NAME",
    help="Run to end; may be repeated.  [default: all that have not ended]",
)
@click.option("--others", is_flag=True, help="Offer to end other processes that hold the chips as well.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation, not even about other users' processes.")
@_grace_option
def kill_command(where: Where, runs: tuple[str, ...], others: bool, yes: bool, grace_s: float) -> Done:
    """End runs and their processes; then remove libtpu's lock file where no process holds a chip.

    A run's first process gets SIGTERM and time for a checkpoint. A process of the run is recognised by its number,
    start time and boot, by the process group of that one, or by the run's mark in its environment, so that without
    --others no other process is ended.
    """
    fleet = where.fleet()
    ended: dict[str, int] = {}
    for run in map(check_run, runs or _running(fleet)):
        answers = fleet.call("kill", run, f"--grace-s={grace_s}", timeout_s=grace_s + 120)
        require_all(answers, f"end {run}")
        if where.dry_run:
            continue
        ended[run] = sum(len(answer.reply["ended"]) for answer in answers)
        where.say(f"run {run}: {ended[run]} processes ended on {len(answers)} workers")
    if others:
        _end_others(where, fleet, yes=yes, grace_s=grace_s)
    answers = fleet.call("release")
    require_all(answers, "release the chips")
    held = [answer for answer in answers if answer.reply["lock"] == "kept"]
    for answer in held:
        for holder in answer.reply["holders"]:
            where.say(f"worker {answer.worker}: held by {_holder(holder)}")
        if not answer.reply["complete"]:
            where.say(
                f"worker {answer.worker}: other users' processes cannot be seen without sudo; its lock file stays"
            )
    removed = sum(answer.reply["lock"] == "removed" for answer in answers)
    if removed:
        where.say(f"lock file removed on {removed} workers")
    facts = {"ended": ended, "held_by": {answer.worker: answer.reply["holders"] for answer in held}}
    return Done(facts={**facts, "lock_files_removed": removed}, code=int(bool(held)))


def _running(fleet: Fleet) -> list[str]:
    answers = fleet.call("status")
    require_all(answers, "list runs")
    states = [item for answer in answers for item in answer.reply["runs"].items()]
    return sorted({run for run, state in states if state["state"] in ("running", "starting", "lost")})


def _end_others(where: Where, fleet: Fleet, *, yes: bool, grace_s: float) -> None:
    answers = fleet.call("holders")
    require_all(answers, "list the processes that hold the chips")
    for answer in answers:
        for holder in answer.reply["holders"]:
            if not yes and not click.confirm(f"worker {answer.worker}: end {_holder(holder)}?", err=where.as_json):
                continue
            words = ("end", str(holder["pid"]), str(holder["start_ticks"]), f"--grace-s={grace_s}")
            ended = fleet.call(*words, workers=[answer.worker], timeout_s=grace_s + 120)
            require_all(ended, f"end process {holder['pid']}")
            where.say(f"worker {answer.worker}: {_holder(holder)}: ended")


def _holder(holder: Holder) -> str:
    by = f"run {holder['run']}" if holder["run"] else f"user {holder['user']}"
    return printable(f"process {holder['pid']} of {by}: {holder['command']}")


def _print_status(where: Where, known: TpuState, answers: list[Answer]) -> None:
    health = f", {known['health']}" if known.get("health") else ""
    state = f"{known['state']}{health}, {known['type']}, {known['workers']} workers"
    click.echo(f"{where.place.name} in {where.place.zone}: {state}")
    table = Table(box=None, padding=(0, 2), show_header=bool(answers))
    for title in ("worker", "what", "state", "pid", "command"):
        table.add_column(title, overflow="fold")
    for answer in answers:
        if answer.code != 0:
            table.add_row(str(answer.worker), "", Text(printable(answer.trouble), style="red"))
        for run, found in answer.reply.get("runs", {}).items():
            words = Text(printable(shlex.join(found["argv"])))
            table.add_row(str(answer.worker), f"run {run}", outcome(found), str(found.get("pid", "")), words)
        for holder in answer.reply.get("holders", []):
            who = Text(printable(f"{holder['user']} holds {', '.join(holder['devices'])}"))
            table.add_row(str(answer.worker), "chips", who, str(holder["pid"]), Text(printable(holder["command"])))
        if answer.reply and not answer.reply["complete"]:
            table.add_row(str(answer.worker), "chips", "not all processes can be seen without sudo")
    if answers:
        print_table(open_console(), table)


def _variable(text: str) -> tuple[str, str]:
    """Parse a variable. No message repeats the text, which may be a secret."""
    key, equals, value = text.partition("=")
    if not key.isidentifier() or not key.isascii():
        raise UsageError("--env: a value is not KEY=VALUE, or KEY alone; give a name of letters, digits and _ first")
    if not equals and key not in os.environ:
        raise UsageError("--env: a KEY without a VALUE is not set here; export it, or give KEY=VALUE")
    return key, value if equals else os.environ[key]
