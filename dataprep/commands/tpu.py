"""`dataprep tpu`: TPU virtual machines through gcloud, and the programs on their workers."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from dataprep.arguments import READ, WHERE, WRITE, Texts, command_of, option, request, texts
from dataprep.cloud.tpu import jobs
from dataprep.cloud.tpu.command_lines import OnWorkers, duration_s, fetch_command, parse_share, shell_command
from dataprep.cloud.tpu.fleet import Answer, Fleet, Trace, arrange, pack, require_all
from dataprep.cloud.tpu.manifest import ManifestRequest, job_set
from dataprep.cloud.tpu.worker import Holder
from dataprep.commands import tpu_machines
from dataprep.commands.tpu_machines import Done, Where, examples, note, state_of, tpu_command
from dataprep.errors import StorageError, UsageError
from dataprep.host.piped import open_console, print_table
from dataprep.messages import printable, shell_words
from dataprep.watching import MAX_TRACE_S, PROFILE_REQUEST, TraceWait, ask_profile, profile_request

EPILOG = """\b
Examples:
  dataprep tpu plan v4-32
  dataprep tpu create my-tpu --type v4-32 --zone us-central2-b --nfs 10.0.0.2:/vol1=/mnt/data --dry-run
  dataprep tpu setup my-tpu --zone us-central2-b --code . --framework torch
  dataprep tpu run my-tpu --zone us-central2-b -- dataprep-pretrain-mae --use-xla --data-path gs://bucket/coco-dup5
  dataprep tpu status my-tpu --zone us-central2-b
  dataprep tpu delete my-tpu --zone us-central2-b

The zone may be set in CLOUDSDK_COMPUTE_ZONE. With --dry-run a command shows what it would run; manifest runs nothing.
"""
_READY = ("READY", "RUNNING")
_GRACE = "Seconds that a program gets to save a checkpoint before it is killed."


@request
class RunOnTpu(OnWorkers):
    """Run a command on all workers, with the code and environment of `tpu setup`, and follow it.

    The command runs detached: it continues if connections drop, or if you press Ctrl-C here. A run is started at most
    once on each worker: if `run` names an existing run, this command follows it and needs no COMMAND.
    """

    run: str | None = option("Name of the run to start or to follow.", default=None, metavar="NAME", shown="a new name")
    framework: jobs.Framework = option("Framework to set environment variables for.", default="torch")
    env: Texts = option(
        "Environment variable for the command; may be repeated. KEY alone takes the value from this shell.",
        default=(),
        metavar="KEY[=VALUE]",
    )
    detach: bool = option("Return once the command has started.", default=False)
    keep_going: bool = option("Let the other workers continue when one fails.", default=False)
    poll_s: float = option("Seconds between requests for the workers' states.", default=30.0, low=0.05, rare=True)
    patience_s: float = option(
        "Seconds without a response from a worker after which this command ends.", default=900.0, low=1, rare=True
    )
    grace_s: float = option(_GRACE, default=60.0, low=0, rare=True)
    log_dir: Path | None = option(
        "Folder for the logs of all workers.", default=None, metavar="FOLDER", shown="logs/TPU/RUN", group=WRITE
    )
    argv: Texts = option("Command and its arguments.", default=(), rest=True, metavar="-- COMMAND…")


def _run(asked: RunOnTpu, where: Where) -> Done:
    argv, run, detach, log_dir = texts(asked.argv), asked.run, asked.detach, asked.log_dir
    if not argv and run is None:
        raise UsageError("neither a command nor `run`; give one after --, such as -- dataprep-pretrain-mae …")
    name = jobs.check_run(run or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    environment = {**jobs.FRAMEWORKS[asked.framework], **dict(map(_variable, texts(asked.env)))}
    fleet = where.fleet()
    if argv:
        jobs.start(fleet, name, argv, environment)
    if argv and not asked.dry_run:
        again = shell_words("dataprep", "tpu", "run", asked.name, "--zone", asked.zone, "--run", name)
        note(f"run {name} on {len(fleet.target.instances)} workers; to follow it again: {again}")
    if detach:
        if not where.as_json:
            click.echo("# detached" if asked.dry_run else name)
        return Done(facts={"run": name, "workers": len(fleet.target.instances)})
    watch = jobs.Watch(
        poll_s=asked.poll_s, patience_s=asked.patience_s, grace_s=asked.grace_s, keep_going=asked.keep_going
    )
    states = jobs.follow(fleet, name, watch, note=note, show=lambda text: where.say(text, nl=False))
    logs = jobs.collect_logs(fleet, name, log_dir or Path("logs") / asked.name / name)
    for worker, state in states.items():
        if jobs.has_failed(state):
            note(f"worker {worker}: {jobs.outcome(state)}")
    if logs:
        note(f"logs of {len(logs)} workers: {logs[0].parent}")
    facts: dict[str, object] = {"run": name, "by_worker": states, "logs": list(map(str, logs))}
    return Done(facts=facts, code=int(any(map(jobs.has_failed, states.values()))))


run_command = tpu_command(
    RunOnTpu,
    _run,
    "run",
    "tpu run my-tpu --zone us-central2-b -- dataprep-pretrain-mae --use-xla --data-path gs://bucket/coco-dup5",
    "tpu run my-tpu --zone us-central2-b --run night-1 --env WANDB_API_KEY --detach -- python train.py",
    "tpu run my-tpu --zone us-central2-b --run night-1",
)


@request
class ExecOnTpu(OnWorkers):
    """Run a command on all workers, many at a time, and print each worker's output.

    A one-word COMMAND is a line of shell: dataprep tpu exec my-tpu -- 'df -h | grep mnt'. gcloud may repeat a command
    whose connection dropped, so use `dataprep tpu run` for a command that must not run twice.
    """

    worker: Texts = option("Number of a worker; may be repeated.", default=(), metavar="N", shown="all", group=WHERE)
    argv: Texts = option("Command and its arguments.", rest=True, metavar="-- COMMAND…")

    def workers(self) -> tuple[int, ...]:
        """Return the numbers of the workers; none for all. Raises UsageError for another word."""
        for each in texts(self.worker):
            if not (each.isascii() and each.isdigit()):
                raise UsageError(f"`worker` {each}: expected the number of a worker, from 0")
        return tuple(map(int, texts(self.worker)))


def _exec(asked: ExecOnTpu, where: Where) -> Done:
    workers, argv = asked.workers(), texts(asked.argv)
    fleet = where.fleet()
    _check_worker(fleet, *workers)
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


def _check_worker(fleet: Fleet, *workers: int) -> None:
    """Raise UsageError for a number that no worker has; a dry run does not know how many there are."""
    count = len(fleet.target.instances)
    for worker in workers:
        if worker >= count and not fleet.gcloud.dry_run:
            raise UsageError(f"`worker` {worker}: {fleet.target.place.name} has workers 0 to {count - 1}")


exec_command = tpu_command(
    ExecOnTpu,
    _exec,
    "exec",
    "tpu exec my-tpu --zone us-central2-b -- nproc",
    "tpu exec my-tpu --zone us-central2-b --worker 0 -- 'df -h | grep mnt'",
)


@request
class TpuStatus(OnWorkers):
    """Show the TPU's state, its runs, and the processes that hold its chips."""


def _status(asked: TpuStatus, where: Where) -> Done:
    known = state_of(where)
    answers: list[Answer] = []
    if known["state"] in _READY or asked.dry_run:
        answers = where.fleet().call("status")
    if not asked.dry_run and not where.as_json:
        _print_status(where, known, answers)
    workers = {answer.worker: answer.reply or {"error": answer.trouble} for answer in answers}
    return Done(facts={**known, "by_worker": workers})


status_command = tpu_command(TpuStatus, _status, "status", "tpu status my-tpu --zone us-central2-b --json")


@request
class KillOnTpu(OnWorkers):
    """End runs and their processes; then remove libtpu's lock file if no process holds a chip.

    A run's first process gets SIGTERM and time for a checkpoint. The run's processes are that process (identified by
    its number, start time and boot), its process group, and all processes with the run's mark in their environment.
    Without `others`, no other process is ended.
    """

    run: Texts = option("Run to end; may be repeated.", default=(), metavar="NAME", shown="all unfinished runs")
    others: bool = option("Offer to end other processes that hold the chips as well.", default=False)
    yes: bool = option("Do not ask for confirmation, not even about other users' processes.", default=False)
    grace_s: float = option(_GRACE, default=60.0, low=0)


def _kill(asked: KillOnTpu, where: Where) -> Done:
    fleet, grace_s = where.fleet(), asked.grace_s
    ended: dict[str, int] = {}
    unfinished = ("running", "starting", "lost")
    runs = texts(asked.run) or sorted({run for run, state in _runs(fleet) if state["state"] in unfinished})
    for run in map(jobs.check_run, runs):
        answers = fleet.call("kill", run, f"--grace-s={grace_s}", timeout_s=grace_s + 120)
        require_all(answers, f"end {run}")
        if asked.dry_run:
            continue
        ended[run] = sum(len(answer.reply["ended"]) for answer in answers)
        where.say(f"run {run}: {ended[run]} processes ended on {len(answers)} workers")
    if asked.others:
        _end_others(where, fleet, yes=asked.yes, grace_s=grace_s)
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


kill_command = tpu_command(
    KillOnTpu,
    _kill,
    "kill",
    "tpu kill my-tpu --zone us-central2-b --run night-1",
    "tpu kill my-tpu --zone us-central2-b --others",
)


def _runs(fleet: Fleet) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the runs of all workers, each with its state."""
    answers = fleet.call("status")
    require_all(answers, "list runs")
    return [item for answer in answers for item in answer.reply["runs"].items()]


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


def _print_status(where: Where, known: Mapping[str, Any], answers: list[Answer]) -> None:
    health = f", {known['health']}" if known.get("health") else ""
    state = f"{known['state']}{health}, {known['type']}, {known['workers']} workers"
    click.echo(f"{where.asked.name} in {where.asked.zone}: {state}")
    table = Table(box=None, padding=(0, 2), show_header=bool(answers))
    for title in ("worker", "what", "state", "pid", "command"):
        table.add_column(title, overflow="fold")
    for answer in answers:
        if answer.code != 0:
            table.add_row(str(answer.worker), "", Text(printable(answer.trouble), style="red"))
        for run, found in answer.reply.get("runs", {}).items():
            words = Text(printable(shlex.join(found["argv"])))
            table.add_row(str(answer.worker), f"run {run}", jobs.outcome(found), str(found.get("pid", "")), words)
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
        raise UsageError("`env`: a value is not KEY=VALUE, or KEY alone; give a name of letters, digits and _ first")
    if not equals and key not in os.environ:
        raise UsageError("`env`: a KEY without a VALUE is not set here; export it, or give KEY=VALUE")
    return key, value if equals else os.environ[key]


ENVIRONMENT_TIMEOUT_S = 3600.0


@request
class SetUpTpu(OnWorkers):
    """Copy code to all workers, create an environment for it, check mounts, and open /tmp/tpu_logs to all users.

    Code goes into a folder named after its digest, so that a running program keeps the code that it started with. Run
    setup again after every change: of the finished steps, only the copying is repeated; changed code gets a new
    environment. The frameworks need different versions of libtpu or torch, so an environment has only one framework.
    """

    code: Path = option("Folder of code to copy to all workers.", default=Path(), metavar="FOLDER", group=READ)
    framework: jobs.Framework = option("Framework to install packages for.", default="torch")
    requirements: Path | None = option(
        "File of pinned packages, instead of the framework's.", default=None, metavar="FILE", group=READ
    )
    python: str = option("Version of the environment's Python.", default="3.13", metavar="VERSION")
    nfs: Texts = option(
        "NFS share to check, and to mount if it is not mounted; may be repeated.",
        default=(),
        metavar="SERVER:/SHARE=/FOLDER",
    )

    def __post_init__(self) -> None:
        """Check the values, and that the files exist."""
        super().__post_init__()
        if not self.code.is_dir():
            raise UsageError(f"`code` {self.code}: no such folder; check its path")
        if self.requirements is not None and not self.requirements.is_file():
            raise UsageError(f"`requirements` {self.requirements}: no such file; check its path")


def _setup(asked: SetUpTpu, where: Where) -> Done:
    parsed, archive = [parse_share(share) for share in texts(asked.nfs)], pack(asked.code)
    fleet = where.fleet()
    jobs.prepare(fleet, note)
    for share in parsed:
        answers = fleet.call("mount", share.source, share.target)
        require_all(answers, f"mount {share.source}")
        repaired = [answer.worker for answer in answers if answer.reply["mount"] != "fine"]
        if repaired:
            note(f"{share.target}: mounted on worker {', '.join(map(str, repaired))}")
    remote = f".dataprep-{archive.name}.tar.gz"
    if asked.dry_run:
        fleet.gcloud.show(f"# an archive of {archive.files:,} files, which setup makes and removes:")
        fleet.copy(f"{archive.name}.tar.gz", remote)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            packed = Path(scratch) / f"{archive.name}.tar.gz"
            packed.touch(mode=0o600)  # scp gives the copy the same mode
            packed.write_bytes(archive.data)
            fleet.copy(str(packed), remote)
    require_all(fleet.call("unpack", remote, archive.name, archive.sha256), "stage code")
    pins = asked.requirements or Path(str(resources.files("dataprep") / "data" / f"tpu-{asked.framework}.txt"))
    remote = f".dataprep-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}.txt"
    fleet.copy(str(pins), remote)
    answers = fleet.call("environment", remote, f"--python={asked.python}", timeout_s=ENVIRONMENT_TIMEOUT_S)
    require_all(answers, "make the environment")
    if not asked.dry_run:
        where.say(
            f"{archive.files:,} files in ~/.dataprep/code/{archive.name} on {len(answers)} workers, with {pins.stem}"
        )
    code_facts = {"code": f"~/.dataprep/code/{archive.name}", "sha256": archive.sha256, "files": archive.files}
    return Done(facts={**code_facts, "workers": len(answers), "requirements": pins.stem})


setup_command = tpu_command(
    SetUpTpu,
    _setup,
    "setup",
    "tpu setup my-tpu --zone us-central2-b --code .",
    "tpu setup my-tpu --zone us-central2-b --framework jax --nfs 10.0.0.2:/vol1=/mnt/data",
)


@request
class CopyToTpu(OnWorkers):
    """Copy a file or a folder to all workers; a relative DESTINATION is relative to the home folder."""

    source: Path = option("File or folder on this machine.", kw_only=False)
    destination: str = option("Path on the workers.", kw_only=False)

    def __post_init__(self) -> None:
        """Check the values, and that there is something to copy."""
        super().__post_init__()
        if not self.source.exists():
            raise UsageError(f"{self.source}: no such file or folder; check its path")


def _copy(asked: CopyToTpu, where: Where) -> Done:
    fleet, source = where.fleet(), str(asked.source)
    fleet.copy(source, asked.destination, recurse=asked.source.is_dir())
    return Done(facts={"source": source, "destination": asked.destination, "workers": len(fleet.target.instances)})


copy_command = tpu_command(
    CopyToTpu, _copy, "copy", "tpu copy my-tpu --zone us-central2-b checkpoint.pth checkpoint.pth"
)


@request
class ProfileTpu(OnWorkers):
    """Collect all workers' traces from LOG_FOLDER into DESTINATION, in the layout that TensorBoard reads.

    With `now`, first request a trace from the running training job, and collect only that trace. LOG_FOLDER is the
    folder that the job's command names, unless you give a different folder; traces in a bucket stay there, and
    DESTINATION is not needed.

    Traces of several hosts that started within two minutes become one run. To view them: tensorboard --logdir
    DESTINATION, or xprof --logdir DESTINATION.
    """

    log_folder: str | None = option("Log folder of the training job on the workers.", default=None, kw_only=False)
    destination: Path | None = option("Folder on this machine.", default=None, kw_only=False)
    now: str | None = option(
        "Trace the running training job for this long, such as 5s.", default=None, metavar="DURATION"
    )
    run: str | None = option("Run to trace with `now`.", default=None, metavar="NAME", shown="the run in progress")
    poll_s: float = option("Seconds between checks for traces on the workers.", default=10.0, low=0.05, rare=True)

    def __post_init__(self) -> None:
        """Check the values, and that there is something to collect or to ask for."""
        super().__post_init__()
        if self.now is None and (self.log_folder is None or self.destination is None):
            raise UsageError("give LOG_FOLDER and DESTINATION, or `now` to trace a running training job")
        if self.now is not None and not 0 < self.seconds <= MAX_TRACE_S:
            raise UsageError(f"`now` {self.now}: expected 1s to {MAX_TRACE_S:.0f}s")

    @property
    def seconds(self) -> int:
        """Seconds of the trace to ask for; 0: none."""
        return 0 if self.now is None else duration_s(self.now)


def _profile(asked: ProfileTpu, where: Where) -> Done:
    folder, destination, seconds = asked.log_folder, asked.destination, asked.seconds
    fleet, run = where.fleet(), ""
    if seconds and (folder is None or "://" not in folder):
        run, named = _logging_run(fleet, asked.run)
        folder = folder or named
    if folder is None and asked.dry_run:
        fleet.gcloud.show(f"# then write {PROFILE_REQUEST} into its log folder, and wait for the traces")
        return Done()
    if folder is None:
        raise UsageError(f"run {run}: its command names no log folder; give LOG_FOLDER")
    if "://" in folder:
        return _profile_in_bucket(fleet, folder, seconds, where)
    if destination is None:
        raise UsageError(f"{folder} is on the workers; give it and a folder here, as LOG_FOLDER and DESTINATION")
    request = profile_request(seconds).decode() if seconds else ""
    if asked.dry_run:
        if request:
            fleet.call("put", run, f"{folder}/{PROFILE_REQUEST}", request)
        fleet.gcloud.run(fetch_command(fleet.target, 0, f"{folder}/plugins/profile", "FOLDER"))
        return Done()
    folders: dict[int, str] = {}

    def look() -> dict[Trace, int]:
        answers = fleet.call("traces", folder, f"--run={run}")
        require_all(answers, "list traces")
        folders.update((answer.worker, answer.reply["folder"]) for answer in answers)
        return {(answer.worker, path): size for answer in answers for path, size in answer.reply["files"].items()}

    def ask() -> None:
        require_all(fleet.call("put", run, f"{folder}/{PROFILE_REQUEST}", request), "ask for a trace")

    wait = TraceWait(seconds=seconds, hosts=len(fleet.target.instances), tell=note, poll_s=asked.poll_s)
    sizes = wait.traces(folder, look, ask) if seconds else look()
    if not sizes:
        raise UsageError(f"{folder}: no traces on any worker; train with --profile-steps A:B, or give `now`")
    placed = _collect(fleet, folders, sizes, destination)
    runs = sorted({PurePosixPath(target).parent.name for target in placed.values()})
    workers = len({worker for worker, _ in placed})
    where.say(f"{len(placed)} traces of {workers} workers in {destination}: {', '.join(runs)}")
    return Done(facts={"destination": str(destination), "traces": len(placed), "workers": workers, "runs": runs})


profile_command = tpu_command(
    ProfileTpu,
    _profile,
    "profile",
    "tpu profile my-tpu --zone us-central2-b --now 5s",
    "tpu profile my-tpu --zone us-central2-b logs/run-1 traces",
)


def _profile_in_bucket(fleet: Fleet, url: str, seconds: int, where: Where) -> Done:
    if not seconds:
        raise UsageError(f"{url}: traces in a bucket are already in one place; give it to xprof --logdir")
    if where.asked.dry_run:
        fleet.gcloud.show(f"# then write {url}/{PROFILE_REQUEST}, and wait for the traces in {url}/plugins/profile")
        return Done()
    traces = ask_profile(url, seconds, hosts=len(fleet.target.instances), tell=note)
    where.say("\n".join(traces))
    return Done(facts={"log_folder": url, "traces": traces})


_LOG_OPTIONS = (("--log-dir", "--log_dir", "--logdir"), ("--output-dir", "--output_dir", "--workdir"))
"""Options of the trainings for the folder of their logs; the second ones apply where none of the first is given."""


def _logging_run(fleet: Fleet, name: str | None) -> tuple[str, str | None]:
    """Return the run that is running, and the folder of logs that its command names, if any."""
    running = {run: state["argv"] for run, state in _runs(fleet) if state["state"] == "running"}
    if fleet.gcloud.dry_run:
        return name or "RUN", None
    if name is None and len(running) == 1:
        (name,) = running
    if name not in running:
        raise UsageError(f"`run` {name or '(not given)'}: expected a run in progress: {', '.join(running) or 'none'}")
    words = [part for word in running[name] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for options in _LOG_OPTIONS:
        given = [value for option, value in pairwise(words) if option in options]
        if given:
            return name, given[-1]
    return name, None


def _collect(fleet: Fleet, folders: dict[int, str], sizes: dict[Trace, int], destination: Path) -> Mapping[Trace, str]:
    """Fetch traces into a folder; return their paths in it."""
    placed = arrange(sizes)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        fetched = _fetch(fleet, folders, sizes, Path(scratch))
        for trace, target in placed.items():
            (destination / target).parent.mkdir(parents=True, exist_ok=True)
            fetched[trace].rename(destination / target)
    return placed


@request
class SshToTpu(OnWorkers):
    """Open a shell on one worker; `dataprep tpu exec` runs a command on all.

    The ports given with `forward` are forwarded to the worker while the shell is open: with 6006, a TensorBoard that
    you start there is at http://localhost:6006 here.
    """

    worker: int = option("Number of the worker.", default=0, low=0, metavar="N", group=WHERE)
    forward: Texts = option(
        "Port of this machine to forward to the worker; may be repeated.",
        default=(),
        metavar="PORT[:PORT]",
        also=("-L",),
    )


def _ssh(asked: SshToTpu, where: Where) -> Done:
    fleet = where.fleet()
    _check_worker(fleet, asked.worker)
    # Only the TPU API numbers its workers; a dry run does not know the names of several machines.
    worker = asked.worker if fleet.target.api == "tpu" or not asked.dry_run else 0
    code = fleet.gcloud.attach(shell_command(fleet.target, worker, texts(asked.forward)))
    return Done(facts={"worker": asked.worker, "code": code}, code=code)


ssh_command = tpu_command(
    SshToTpu,
    _ssh,
    "ssh",
    "tpu ssh my-tpu --zone us-central2-b",
    "tpu ssh my-tpu --zone us-central2-b --worker 3 -L 6006",
)


def _fetch(fleet: Fleet, folders: dict[int, str], sizes: dict[Trace, int], scratch: Path) -> dict[Trace, Path]:
    """Fetch only the folders of traces, because checkpoints may be next to them, each into a folder named here."""
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


def _manifest(asked: ManifestRequest, *, as_json: bool) -> None:
    output = asked.output
    documents = [job_set(asked)]
    if asked.accelerator.note:
        note(asked.accelerator.note)
    program, *words = texts(asked.argv)
    if program == "dataprep-pretrain-mae" and not any(word.split("=")[0] == "--resume" for word in words):
        note("when its nodes are taken away, the training starts again from the first step; add --resume automatic")
    text = json.dumps({"name": asked.name, "documents": documents}) if as_json else as_yaml(documents)
    if output is None:
        click.echo(text, nl=as_json)
        return
    try:
        output.write_text(as_yaml(documents), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"`output` {output}: cannot be written ({error.strerror}); choose another file") from error
    if as_json:
        click.echo(text)
    note(f"{output}: written; kubectl apply -f {shell_words(str(output))}")


manifest_command = command_of(
    ManifestRequest,
    _manifest,
    "manifest",
    epilog=examples(
        "tpu manifest mae --type v6e-16 --image IMAGE --queue team-a -- dataprep-pretrain-mae --resume automatic",
        "tpu manifest mae --type tpu7x-2x2x4 --image IMAGE --mode flex-start --max-run 3d --queue team-a \\\n"
        "    --output mae.yaml \\\n"
        "    --build 'coco-dup5 --source gs://bucket/originals --output gs://bucket/coco-dup5 --format tfrecord' \\\n"
        "    --parts 16 -- dataprep-pretrain-mae --data-path gs://bucket/coco-dup5 --resume automatic",
    ),
)


def as_yaml(documents: Sequence[dict[str, object]]) -> str:
    """Return documents as YAML, in the order of their keys; values that occur twice are written twice."""
    import yaml

    plain = json.loads(json.dumps(documents))  # equal values are no longer one object, which YAML would refer to
    text: str = yaml.safe_dump_all(plain, sort_keys=False, width=_FOLDED_CHARACTERS, allow_unicode=True)
    return text


class _InOrder(click.Group):
    """Lists its commands in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("tpu", cls=_InOrder, epilog=EPILOG)
def command() -> None:
    """Create, set up and delete TPU VMs, and run programs on all their workers; manifests for GKE."""


for _each in (
    tpu_machines.plan_command,
    tpu_machines.create_command,
    setup_command,
    run_command,
    status_command,
    kill_command,
    exec_command,
    copy_command,
    profile_command,
    ssh_command,
    tpu_machines.delete_command,
    manifest_command,
):
    command.add_command(_each)
