"""Runs `gcloud`, on every worker where that is asked, and says what its errors mean."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dataprep.errors import AccessError, DataprepError, StorageError, UndecidedError, UsageError
from dataprep.tpu.gcloud import Api, Place, Target, copy_commands, describe_command, instances_command, ssh_command
from dataprep.tpu.worker import REPLY

AT_ONCE = 16
"""Processes of gcloud; each takes a second of a core and 100 MB."""
TIMEOUT_S = 900.0
_NOT_FOUND = re.compile(r"NOT_FOUND|was not found|notFound", re.IGNORECASE)
_GCLOUD_FAILED = re.compile(r"^ERROR: \(gcloud\.", re.MULTILINE)
_MEANINGS: tuple[tuple[str, type[DataprepError], str], ...] = (
    (r"active account|gcloud auth login|reauth", AccessError, 'nobody is logged in; run "gcloud auth login"'),
    (r"attribute \[project\]|core/project", UsageError, "no project is set; add --project"),
    (
        r"SERVICE_DISABLED|has not been used in project|it is disabled",
        AccessError,
        'the API is off in this project; run "gcloud services enable tpu.googleapis.com compute.googleapis.com"',
    ),
    (
        r"quota",
        AccessError,
        "the project's quota for this type and zone is used up; choose another zone or size, or ask for more",
    ),
    (
        r"no more capacity|RESOURCE_POOL_EXHAUSTED|STOCKOUT|not have enough resources|insufficient capacity",
        StorageError,
        "the zone has no capacity now; try --queued, --spot, or another zone",
    ),
    (
        r"RESOURCE_EXHAUSTED",
        AccessError,
        "quota or capacity is used up; choose another zone, or try --queued or --spot",
    ),
    (
        r"accelerator.?type.*(not (found|available|supported)|invalid)|machine type .* does not exist",
        UsageError,
        'the zone has no such type; "gcloud compute tpus accelerator-types list --zone=ZONE" lists its types',
    ),
    (
        r"(location|zone)\b.*(not found|invalid|may not exist|unknown|does not exist)",
        UsageError,
        'no such zone for TPUs; "gcloud compute tpus locations list" lists them',
    ),
    (r"ALREADY_EXISTS|already exists", UsageError, "the name is taken; choose another, or delete what has it"),
    (
        r"ssh-add|Permission denied \(publickey",
        AccessError,
        'the SSH key is not taken; run "ssh-add ~/.ssh/google_compute_engine"',
    ),
    (
        r"PERMISSION_DENIED|Required '.*' permission|HttpError 403",
        AccessError,
        "this account may not do that; ask for the role TPU Admin or Compute Instance Admin",
    ),
    (r"unrecognized arguments|Invalid choice", UsageError, 'this gcloud is too old; run "gcloud components update"'),
    (
        r"return code \[255\]|Connection (timed out|refused|closed|reset)|Could not resolve",
        UndecidedError,
        "the worker cannot be reached; it may still be starting, or try --internal-ip",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one worker said."""

    worker: int
    code: int | None
    """Exit code of the command; None where the worker was not reached."""
    out: str = ""
    trouble: str = ""
    """One line, where something went wrong."""

    @property
    def reply(self) -> dict[str, Any]:
        """Of `worker.py`; empty where there is none."""
        lines = [line for line in self.out.splitlines() if line.startswith(REPLY)]
        reply: dict[str, Any] = json.loads(lines[-1].removeprefix(REPLY)) if lines else {}
        return reply


class Gcloud:
    """Runs it, or only shows what would be run.

    Args:
        dry_run: Nothing is run; every command line goes to `echo`, as a shell takes it.
    """

    def __init__(self, echo: Callable[[str], None], *, dry_run: bool = False) -> None:
        self.echo = echo
        self.dry_run = dry_run

    def show(self, text: str) -> None:
        """A line for the dry run alone."""
        if self.dry_run:
            self.echo(text)

    def run(self, argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Its exit code may be any; in a dry run it is 0, and there is no output.

        Raises:
            UsageError: There is no gcloud.
            UndecidedError: It did not end in time.
        """
        self.show(shlex.join(argv))
        if self.dry_run:
            return subprocess.CompletedProcess(list(argv), 0, "", "")
        try:
            return subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise UsageError("gcloud is not on the PATH; install the Google Cloud CLI") from None
        except subprocess.TimeoutExpired:
            raise UndecidedError(
                f"{_shown(argv)}: no answer in {timeout_s:.0f} s; run the same command again"
            ) from None

    def require(self, argv: Sequence[str], *, missing_ok: bool = False) -> None:
        """Run it; an error is raised in our words. `missing_ok`: what is not there need not be deleted."""
        ran = self.run(argv)
        if ran.returncode and not (missing_ok and _NOT_FOUND.search(ran.stderr)):
            raise meaning(argv, ran.stderr)

    def read(self, argv: Sequence[str]) -> Any:
        """Its JSON; None where what was asked for does not exist, and in a dry run."""
        ran = self.run(argv)
        if ran.returncode:
            if _NOT_FOUND.search(ran.stderr):
                return None
            raise meaning(argv, ran.stderr)
        try:
            return json.loads(ran.stdout) if ran.stdout.strip() else None
        except ValueError:
            raise UndecidedError(f"{_shown(argv)}: its answer is no JSON; run it by hand") from None


class Fleet:
    """All workers of a TPU."""

    def __init__(self, gcloud: Gcloud, target: Target) -> None:
        self.gcloud = gcloud
        self.target = target
        self._connected = self._shown = False

    def shell(self, line: str, workers: Iterable[int] | None = None, *, timeout_s: float = TIMEOUT_S) -> list[Answer]:
        """Run a line of shell on the workers, by default on all.

        gcloud repeats what a dropped connection cut off: the line must bear that.
        """
        chosen = list(range(len(self.target.instances)) if workers is None else workers)
        if self.gcloud.dry_run:
            self.gcloud.run(ssh_command(self.target, 0, line))
            return []

        def ask(worker: int) -> Answer:
            argv = ssh_command(self.target, worker, line)
            try:
                ran = self.gcloud.run(argv, timeout_s=timeout_s)
            except UndecidedError as error:
                return Answer(worker=worker, code=None, trouble=str(error))
            if ran.returncode and (ran.returncode == 255 or _GCLOUD_FAILED.search(ran.stderr)):
                return Answer(worker=worker, code=None, trouble=str(meaning(argv, ran.stderr)))
            trouble = _last_line(ran.stderr) if ran.returncode else ""
            return Answer(worker=worker, code=ran.returncode, out=ran.stdout, trouble=trouble)

        # The first connection may have to publish the SSH key, which two at once refuse each other.
        alone = 0 if self._connected else 1
        answers = [ask(worker) for worker in chosen[:alone]]
        self._connected = True
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return answers + list(pool.map(ask, chosen[alone:]))

    def call(self, *words: str, workers: Iterable[int] | None = None, timeout_s: float = TIMEOUT_S) -> list[Answer]:
        """An action of `worker.py`, which is copied to workers that do not have it yet."""
        source, name = worker_program()
        line = shlex.join(["python3", name, *words])
        if self.gcloud.dry_run and not self._shown:
            self.gcloud.show("# where a worker does not have it yet:")
            self.copy(str(source), name)
            self._shown = True
        answers = self.shell(line, workers, timeout_s=timeout_s)
        without = [answer.worker for answer in answers if answer.code == 2 and "can't open file" in answer.trouble]
        if without:
            self.copy(str(source), name)
            again = {answer.worker: answer for answer in self.shell(line, without, timeout_s=timeout_s)}
            answers = [again.get(answer.worker, answer) for answer in answers]
        return [_judged(answer, replies=words[0] != "log") for answer in answers]

    def copy(self, source: str, destination: str, *, recurse: bool = False) -> None:
        """Copy a file or a folder to all workers.

        Raises:
            DataprepError: It did not reach all of them.
        """
        for argv in copy_commands(self.target, source, destination, recurse=recurse):
            self.gcloud.require(argv)


def worker_program() -> tuple[Path, str]:
    """Where `worker.py` is here, and its name below a worker's home: another version has another one."""
    path = Path(str(resources.files("dataprep.tpu").joinpath("worker.py")))
    return path, f".dataprep-worker-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}.py"


def require_all(answers: Sequence[Answer], what: str) -> None:
    """Every worker did it.

    Raises:
        UndecidedError: Some were not reached.
        StorageError: Some could not do it.
    """
    bad = [answer for answer in answers if answer.code != 0]
    if bad:
        kind = UndecidedError if all(answer.code is None for answer in bad) else StorageError
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise kind(
            f"{what}: worker {bad[0].worker}: {bad[0].trouble}{more}; when that is mended, run the same command again"
        )


def find_target(gcloud: Gcloud, place: Place, api: Api | None, *, internal_ip: bool = False) -> Target:
    """A TPU that is there, from the TPU API or, where that has none of this name, from Compute Engine.

    Raises:
        UsageError: There is none, or it is not ready.
    """
    if api != "compute-engine":
        node = gcloud.read(describe_command(place))
        if gcloud.dry_run:
            gcloud.show("# then the same for every worker: --worker=0, --worker=1, …")
            return Target(place=place, api="tpu", instances=("0",), internal_ip=internal_ip)
        if node is not None:
            if node.get("state") != "READY":
                raise UsageError(
                    f"{place.name} is {node.get('state')}, expected READY; wait, and see dataprep tpu status"
                )
            numbers = tuple(map(str, range(len(node.get("networkEndpoints") or [{}]))))
            return Target(place=place, api="tpu", instances=numbers, internal_ip=internal_ip)
    machines = gcloud.read(instances_command(place)) or []
    if gcloud.dry_run:
        return Target(place=place, api="compute-engine", instances=(place.name,), internal_ip=internal_ip)
    if not machines:
        raise UsageError(f"{place.name}: no such TPU in {place.zone}; check its name, --zone and --project")
    waiting = [machine["name"] for machine in machines if machine.get("status") != "RUNNING"]
    if waiting:
        raise UsageError(f"{place.name}: {', '.join(waiting)} not RUNNING; wait, and see dataprep tpu status")
    names = tuple(sorted(machine["name"] for machine in machines))
    return Target(place=place, api="compute-engine", instances=names, internal_ip=internal_ip)


def meaning(argv: Sequence[str], said: str) -> DataprepError:
    """What gcloud said, in one line with the next step."""
    for pattern, kind, advice in _MEANINGS:
        if re.search(pattern, said, re.IGNORECASE | re.DOTALL):
            return kind(f"{_shown(argv)}: {advice} ({_first_line(said)})")
    return StorageError(f"{_shown(argv)}: {_first_line(said)}; mend that, and run the same command again")


def _judged(answer: Answer, *, replies: bool) -> Answer:
    """With the error that `worker.py` told, if it did; without its reply nothing is known."""
    if answer.code == 0 and replies and not answer.reply:
        return Answer(worker=answer.worker, code=None, trouble="its answer was lost")
    said = answer.reply.get("error")
    return Answer(worker=answer.worker, code=answer.code, out=answer.out, trouble=said) if said else answer


def _shown(argv: Sequence[str]) -> str:
    return " ".join([word for word in argv if not word.startswith("-")][:6])


def _first_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    line = (errors or lines or ["it said nothing"])[0]
    return re.sub(r"^ERROR: \(gcloud[^)]*\) ", "", line)[:300]


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
