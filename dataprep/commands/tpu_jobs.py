"""Programs on the workers of a TPU: `dataprep tpu setup`, `run`, `exec`, `copy`, `status`, `kill`, `profile`, …"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from dataprep.arguments import Finite, StrictCommand
from dataprep.cloud.accelerators import parse_accelerator
from dataprep.cloud.tpu.command_lines import fetch_command, parse_share
from dataprep.cloud.tpu.fleet import Answer, Archive, Fleet, Trace, arrange, pack, require_all
from dataprep.cloud.tpu.jobs import (
    FRAMEWORKS,
    Watch,
    check_run,
    collect_logs,
    follow,
    has_failed,
    outcome,
    prepare,
    start,
)
from dataprep.cloud.tpu.manifest import MODES, BuildParts, ManifestRequest, job_set
from dataprep.cloud.tpu.manifest import new_queue as queue_of
from dataprep.cloud.tpu.worker import Holder
from dataprep.commands.options import COUNT, COUNT_OR_NONE, WHOLE, json_option
from dataprep.commands.tpu_machines import Done, TpuState, Where, examples, note, on_workers, state_of
from dataprep.errors import StorageError, UsageError
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
        "tpu run my-tpu --zone us-central2-b -- dataprep-pretrain-mae --use-xla --data-path gs://bucket/coco-dup5",
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


ENVIRONMENT_TIMEOUT_S = 3600.0


@click.command(
    "setup",
    cls=StrictCommand,
    epilog=examples(
        "tpu setup my-tpu --zone us-central2-b --code .",
        "tpu setup my-tpu --zone us-central2-b --framework jax --nfs 10.0.0.2:/vol1=/mnt/data",
    ),
)
@on_workers
@click.option(
    "--code",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder of code that all workers get.",
)
@click.option(
    "--framework", type=click.Choice(list(FRAMEWORKS)), default="torch", show_default=True,
    help="Framework whose packages are installed.",
)  # fmt: skip
@click.option(
    "--requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of pinned packages, instead of the framework's.",
)
@click.option(
    "--python", "python_version", default="3.13", show_default=True, help="Version of the environment's Python."
)
@click.option(
    "--nfs",
    "shares",
    multiple=True,
    metavar="SERVER:/SHARE=/FOLDER",
    help="NFS share to check, and to mount if it is not mounted; may be repeated.",
)
def setup_command(
    where: Where,
    code: Path,
    framework: str,
    requirements: Path | None,
    python_version: str,
    shares: tuple[str, ...],
) -> Done:
    """Copy code to all workers, create an environment for it, check mounts, and open /tmp/tpu_logs to all users.

    Code goes into a folder that is named by its digest, so that a running program keeps the code with which it began.
    Run setup again after every change: of the steps that are done only the copying is repeated; changed code gets a
    new environment. The frameworks need different versions of libtpu or of torch, so an environment has only one of
    them.
    """
    parsed, archive = [parse_share(share) for share in shares], pack(code)
    fleet = where.fleet()
    prepare(fleet, note)
    for share in parsed:
        answers = fleet.call("mount", share.source, share.target)
        require_all(answers, f"mount {share.source}")
        repaired = [answer.worker for answer in answers if answer.reply["mount"] != "fine"]
        if repaired:
            note(f"{share.target}: mounted on worker {', '.join(map(str, repaired))}")
    remote = f".dataprep-{archive.name}.tar.gz"
    if where.dry_run:
        fleet.gcloud.show(f"# an archive of {archive.files:,} files, which setup makes and removes:")
        fleet.copy(f"{archive.name}.tar.gz", remote)
    else:
        _copy_archive(fleet, archive, remote)
    require_all(fleet.call("unpack", remote, archive.name, archive.sha256), "stage code")
    pins = requirements or Path(str(resources.files("dataprep").joinpath("data", f"tpu-{framework}.txt")))
    remote = f".dataprep-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}.txt"
    fleet.copy(str(pins), remote)
    answers = fleet.call("environment", remote, f"--python={python_version}", timeout_s=ENVIRONMENT_TIMEOUT_S)
    require_all(answers, "make the environment")
    if not where.dry_run:
        where.say(
            f"{archive.files:,} files in ~/.dataprep/code/{archive.name} on {len(answers)} workers, with {pins.stem}"
        )
    code_facts = {"code": f"~/.dataprep/code/{archive.name}", "sha256": archive.sha256, "files": archive.files}
    return Done(facts={**code_facts, "workers": len(answers), "requirements": pins.stem})


@click.command(
    "copy", cls=StrictCommand, epilog=examples("tpu copy my-tpu --zone us-central2-b checkpoint.pth checkpoint.pth")
)
@on_workers
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("destination")
def copy_command(where: Where, source: Path, destination: str) -> Done:
    """Copy a file or a folder to all workers; a relative DESTINATION is below the home folder."""
    fleet = where.fleet()
    fleet.copy(str(source), destination, recurse=source.is_dir())
    return Done(facts={"source": str(source), "destination": destination, "workers": len(fleet.target.instances)})


@click.command(
    "profile", cls=StrictCommand, epilog=examples("tpu profile my-tpu --zone us-central2-b logs/run-1 traces")
)
@on_workers
@click.argument("log_folder", metavar="LOG_FOLDER")
@click.argument("destination", type=click.Path(file_okay=False, path_type=Path))
def profile_command(where: Where, log_folder: str, destination: Path) -> Done:
    """Collect the traces of all workers below LOG_FOLDER in DESTINATION, in the layout that TensorBoard reads.

    Traces of several hosts that began within two minutes become one run. To see them:
    tensorboard --logdir DESTINATION, or xprof --logdir DESTINATION.
    """
    if "://" in log_folder:
        raise UsageError(f"{log_folder}: traces in a bucket are in one place already; give it to xprof --logdir")
    fleet = where.fleet()
    answers = fleet.call("traces", log_folder)
    require_all(answers, "list traces")
    sizes = {(answer.worker, path): size for answer in answers for path, size in answer.reply["files"].items()}
    folders = {answer.worker: answer.reply["folder"] for answer in answers}
    if where.dry_run:
        fleet.gcloud.run(fetch_command(fleet.target, 0, f"{log_folder}/plugins/profile", "FOLDER"))
        return Done()
    if not sizes:
        raise UsageError(f"{log_folder}: no traces on any worker; train with --profile-steps A:B")
    placed = arrange(sizes)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        fetched = _fetch(fleet, folders, sizes, Path(scratch))
        for trace, target in placed.items():
            (destination / target).parent.mkdir(parents=True, exist_ok=True)
            fetched[trace].rename(destination / target)
    runs = sorted({PurePosixPath(target).parent.name for target in placed.values()})
    workers = len({worker for worker, _ in placed})
    where.say(f"{len(placed)} traces of {workers} workers in {destination}: {', '.join(runs)}")
    return Done(facts={"destination": str(destination), "traces": len(placed), "workers": workers, "runs": runs})


def _copy_archive(fleet: Fleet, archive: Archive, remote: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        packed = Path(scratch) / f"{archive.name}.tar.gz"
        packed.touch(mode=0o600)  # scp gives the copy the same mode
        packed.write_bytes(archive.data)
        fleet.copy(str(packed), remote)


def _fetch(fleet: Fleet, folders: dict[int, str], sizes: dict[Trace, int], scratch: Path) -> dict[Trace, Path]:
    """Fetch only the folders of traces, because checkpoints may be beside them, each into a folder named here."""
    sources = sorted({(worker, str(PurePosixPath(path).parent)) for worker, path in sizes})
    local = {source: scratch / str(number) for number, source in enumerate(sources)}
    for (worker, folder), target in local.items():
        fleet.gcloud.require(fetch_command(fleet.target, worker, f"{folders[worker]}/{folder}", str(target)))
    fetched = {}
    for (worker, path), size in sizes.items():
        file = fetched[worker, path] = local[worker, str(PurePosixPath(path).parent)] / PurePosixPath(path).name
        got = file.stat().st_size if file.is_file() and not file.is_symlink() else 0
        if got != size:
            raise StorageError(
                f"worker {worker}: {path} has {got:,} bytes here, {size:,} on the worker; run the same command again"
            )
    return fetched


_FOLDED_CHARACTERS = 110


@click.command(
    "manifest",
    cls=StrictCommand,
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "tpu manifest mae --type v6e-16 --image IMAGE --queue team-a -- dataprep-pretrain-mae --resume automatic",
        "tpu manifest mae --type tpu7x-2x2x4 --image IMAGE --mode flex-start --max-run 3d --queue team-a \\\n"
        "    --output mae.yaml \\\n"
        "    --build 'coco-dup5 --source gs://bucket/originals --output gs://bucket/coco-dup5 --format tfrecord' \\\n"
        "    --parts 16 -- dataprep-pretrain-mae --data-path gs://bucket/coco-dup5 --resume automatic",
    ),
)
@click.argument("name")
@click.option("--type", "accelerator", required=True, metavar="TYPE", help="TPU, such as v6e-16 or tpu7x-2x2x4.")
@click.option("--image", required=True, help="Container image with this package and the training's framework.")
@click.option("--build", "build", metavar="'DATASET …'", help="Words of a dataprep build that runs first, in parts.")
@click.option("--parts", type=COUNT, default=8, show_default=True, help="Parts of the build, each a pod.")
@click.option("--part-cpu", default="4", show_default=True, help="CPUs of a part.")
@click.option("--part-memory", default="3Gi", show_default=True, help="Memory of a part.")
@click.option("--part-disk", default="4Gi", show_default=True, help="Disk of a part.")
@click.option("--queue", metavar="NAME", help="Local queue of Kueue that admits the JobSet.  [default: no Kueue]")
@click.option(
    "--new-queue",
    is_flag=True,
    help="Write this queue, too, with quotas for exactly this JobSet; for administrators.",
)
@click.option("--namespace", help="Namespace of Kubernetes.")
@click.option("--service-account", metavar="NAME", help="Service account of Kubernetes, bound to one of Google Cloud.")
@click.option(
    "--mode", type=click.Choice(MODES), default="on-demand", show_default=True, help="How the TPU nodes are provided."
)
@click.option("--reservation", metavar="NAME", help="Reservation, with --mode reservation.")
@click.option("--max-run", metavar="DURATION", help="Time for which --queue asks for flex-start nodes.  [default: 7d]")
@click.option(
    "--max-restarts", type=WHOLE, default=10, show_default=True, help="Failures after which the JobSet starts again."
)
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    default="torch",
    show_default=True,
    help="Framework whose environment variables are set.",
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: standard output]"
)
@json_option
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND…")
def manifest_command(
    name: str,
    accelerator: str,
    build: str | None,
    framework: str,
    new_queue: bool,
    output: Path | None,
    as_json: bool,
    argv: tuple[str, ...],
    **options: Any,
) -> None:
    """Write a JobSet for GKE: with --build a build in parts, then the training on a TPU, with restarts when its nodes
    are taken away.

    Nothing is sent to a cluster: apply the file with kubectl. The cluster needs JobSet and, for --queue, Kueue.
    """
    found = parse_accelerator(accelerator)
    parts = {key: options.pop(key) for key in ("parts", "part_cpu", "part_memory", "part_disk")}
    request = ManifestRequest(
        name=name,
        accelerator=found,
        training=argv,
        environment=FRAMEWORKS[framework],
        build=None if build is None else _build_parts(build, **parts),
        **options,
    )
    documents = [*(queue_of(request) if new_queue else []), job_set(request)]
    for line in (found.note, _resume_note(argv)):
        if line:
            note(line)
    text = json.dumps({"name": name, "documents": documents}) if as_json else as_yaml(documents)
    if output is None:
        click.echo(text, nl=as_json)
        return
    try:
        output.write_text(as_yaml(documents), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written ({error.strerror}); choose another file") from error
    if as_json:
        click.echo(text)
    note(f"{output}: written; kubectl apply -f {shell_words(str(output))}")


def as_yaml(documents: Sequence[dict[str, object]]) -> str:
    """Return documents as YAML, in the order of their keys; values that occur twice are written twice."""
    import yaml

    plain = json.loads(json.dumps(documents))  # equal values are no longer one object, which YAML would refer to
    text: str = yaml.safe_dump_all(plain, sort_keys=False, width=_FOLDED_CHARACTERS, allow_unicode=True)
    return text


def _build_parts(words: str, *, parts: int, part_cpu: str, part_memory: str, part_disk: str) -> BuildParts:
    try:
        argv = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"--build {words!r}: {error}; quote it as for a shell") from None
    if not argv or argv[0].startswith("-") or any(word.split("=")[0] == "--part" for word in argv):
        raise UsageError("--build: expected the words after `dataprep build`, a dataset first, without --part")
    return BuildParts(argv=["dataprep", "build", *argv], parts=parts, cpu=part_cpu, memory=part_memory, disk=part_disk)


def _resume_note(argv: tuple[str, ...]) -> str:
    """Return a note if a training would begin anew after a restart."""
    if argv[0] != "dataprep-pretrain-mae" or any(word.split("=")[0] == "--resume" for word in argv):
        return ""
    return "the training begins anew when its nodes are taken away; add --resume automatic"
