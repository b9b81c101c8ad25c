"""Runs `gcloud`, the command line of Google Cloud, explains its errors, and finds a TPU by its name.

A TPU is looked up first in the TPU API, then among the machines of Compute Engine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dataprep.cloud.tpu import command_lines
from dataprep.dataset.documents import JsonObject
from dataprep.errors import AccessError, DataprepError, StorageError, UndecidedError, UsageError
from dataprep.messages import shell_words

TIMEOUT_S = 900.0
"""Deadline of a command; creating a TPU or copying to its workers takes minutes."""
SAID_CHARACTERS = 300
"""Maximum number of characters that a message quotes of the output of gcloud or a worker."""
_MISSING = "gcloud is not on the PATH; install the Google Cloud CLI"
_NOT_FOUND = re.compile(r"NOT_FOUND|was not found|notFound", re.IGNORECASE)
_TYPES = " ".join(command_lines.gcloud_line("compute", "tpus", "accelerator-types", "list", zone="ZONE"))
_MEANINGS: tuple[tuple[str, type[DataprepError], str], ...] = (
    (r"active account|gcloud auth login|reauth", AccessError, 'no one is logged in; run "gcloud auth login"'),
    (r"attribute \[project\]|core/project", UsageError, "no project is set; add `project`"),
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
        "the zone has no capacity now; try `queued`, `spot`, or another zone",
    ),
    (
        r"RESOURCE_EXHAUSTED",
        AccessError,
        "quota or capacity is used up; choose another zone, or try `queued` or `spot`",
    ),
    (
        r"accelerator.?type.*(not (found|available|supported)|invalid)|machine type .* does not exist",
        UsageError,
        f'the zone has no such type; "{_TYPES}" lists its types',
    ),
    (
        r"(location|zone)\b.*(not found|invalid|may not exist|unknown|does not exist)",
        UsageError,
        'no such zone for TPUs; "gcloud compute tpus locations list" lists them',
    ),
    (
        r"ALREADY_EXISTS|already exists",
        UsageError,
        "the name is taken; choose a different name, or delete what has this name",
    ),
    (
        r"ssh-add|Permission denied \(publickey",
        AccessError,
        'the SSH key is not accepted; run "ssh-add ~/.ssh/google_compute_engine"',
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
        "the worker cannot be reached; it may still be starting, or try `internal_ip`",
    ),
)
LIST_TIMEOUT_S = 120.0
"""Deadline of listing the TPUs of all zones, which takes seconds."""
MOST_LISTED = 10
"""Maximum number of TPUs that an error lists."""


class GcloudMissingError(UsageError):
    """`gcloud` is not installed on this machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Standard input of a command. It may hold secrets, which every user of the machine could see in an argument."""

    text: str = field(repr=False)
    shown: str
    """Text that a dry run prints instead, without the secrets."""


class Gcloud:
    """Runs gcloud, or in a dry run only shows the command lines.

    Args:
        echo: Called with each line of a dry run.
        dry_run: Run nothing, and show every command line, quoted for a shell.
    """

    def __init__(self, echo: Callable[[str], None], *, dry_run: bool = False) -> None:
        self.echo = echo
        self.dry_run = dry_run

    def show(self, text: str) -> None:
        """Print a line in a dry run, and nothing otherwise."""
        if self.dry_run:
            self.echo(text)

    def run(
        self, argv: Sequence[str], *, timeout_s: float = TIMEOUT_S, sent: Sent | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and return its result, also after a failure; a dry run returns exit code 0 and no output.

        Raises:
            GcloudMissingError: gcloud is not installed.
            UndecidedError: The command did not end in time.
        """
        self.show(shell_words(*argv) + (f" <<< {shell_words(sent.shown)}" if sent else ""))
        if self.dry_run:
            return subprocess.CompletedProcess(list(argv), 0, "", "")
        try:
            return subprocess.run(
                argv,
                env=_environment(),
                input=sent.text if sent else "",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise GcloudMissingError(_MISSING) from None
        except subprocess.TimeoutExpired:
            raise UndecidedError(
                f"{_shown(argv)}: no response in {timeout_s:.0f} s; run the same command again"
            ) from None

    def attach(self, argv: Sequence[str]) -> int:
        """Run a command on this terminal, and return its exit code; 0 in a dry run.

        Raises:
            GcloudMissingError: gcloud is not installed.
        """
        self.show(shell_words(*argv))
        try:
            return 0 if self.dry_run else subprocess.run(argv, env=_environment(), check=False).returncode
        except FileNotFoundError:
            raise GcloudMissingError(_MISSING) from None

    def require(self, argv: Sequence[str], *, missing_ok: bool = False) -> None:
        """Run a command, and raise an error that explains a failure.

        Args:
            missing_ok: Ignore the error that a resource does not exist, because then there is nothing to delete.
        """
        ran = self.run(argv)
        if ran.returncode and not (missing_ok and _NOT_FOUND.search(ran.stderr)):
            raise meaning(argv, ran.stderr)

    def read(self, argv: Sequence[str]) -> Any:
        """Return the JSON that a command prints; None if the resource does not exist, and in a dry run."""
        ran = self.run(argv)
        if ran.returncode and _NOT_FOUND.search(ran.stderr):
            return None
        return _answer(argv, ran)

    def entries(self, argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> list[JsonObject]:
        """Return the JSON objects that a command lists.

        Raises:
            DataprepError: gcloud failed.
            UndecidedError: The answer is not a list.
        """
        listed = _answer(argv, self.run(argv, timeout_s=timeout_s))
        if listed is None:
            return []
        if not isinstance(listed, list):
            raise UndecidedError(f"{_shown(argv)}: its output is not a JSON list; run it by hand")
        return [entry for entry in listed if isinstance(entry, dict)]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}  # gcloud is in Python


def meaning(argv: Sequence[str], said: str) -> DataprepError:
    """Return the error for an output of gcloud: one line with its meaning and the next step."""
    for pattern, kind, advice in _MEANINGS:
        if re.search(pattern, said, re.IGNORECASE | re.DOTALL):
            return kind(f"{_shown(argv)}: {advice} ({_first_line(said)})")
    return StorageError(f"{_shown(argv)}: {_first_line(said)}; fix that, and run the same command again")


def _answer(argv: Sequence[str], ran: subprocess.CompletedProcess[str]) -> Any:
    if ran.returncode:
        raise meaning(argv, ran.stderr)
    try:
        return json.loads(ran.stdout) if ran.stdout.strip() else None
    except ValueError:
        raise UndecidedError(f"{_shown(argv)}: its output is not JSON; run it by hand") from None


def _shown(argv: Sequence[str]) -> str:
    """Return the beginning of a command line, without its flags."""
    return " ".join([word for word in argv if not word.startswith("-")][:6])


def _first_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    line = (errors or lines or ["no output"])[0]
    return re.sub(r"^ERROR: \(gcloud[^)]*\) ", "", line)[:SAID_CHARACTERS]


def find_target(
    gcloud: Gcloud, place: command_lines.Place, api: command_lines.Api | None, *, internal_ip: bool = False
) -> command_lines.Target:
    """Find a TPU whose zone is known, with its workers.

    Args:
        gcloud: Runs the commands. A dry run only prints them and assumes a TPU with one worker.
        place: The TPU's name and zone.
        api: Service to search; None tries the TPU API, then Compute Engine.
        internal_ip: Reach the workers by their internal addresses.

    Raises:
        UsageError: There is no such TPU, or it is not ready.
    """
    target = partial(command_lines.Target, place=place, internal_ip=internal_ip)
    if api != "compute-engine":
        node = gcloud.read(command_lines.describe_command(place))
        if gcloud.dry_run:
            gcloud.show("# then the same for every worker: 0, 1, …")
            return target(api="tpu", instances=("0",))
        if node is not None:
            if node.get("state") != "READY":
                raise UsageError(
                    f"{place.name} is {node.get('state')}, expected READY; wait, and see dataprep tpu status"
                )
            numbers = tuple(map(str, range(len(node.get("networkEndpoints") or [{}]))))
            return target(api="tpu", instances=numbers)
    machines = gcloud.read(command_lines.instances_command(place)) or []
    if gcloud.dry_run:
        return target(api="compute-engine", instances=(place.name,))
    if not machines:
        raise UsageError(f"{place.name}: no such TPU in {place.zone}; check its name, `zone` and `project`")
    waiting = [machine["name"] for machine in machines if machine.get("status") != "RUNNING"]
    if waiting:
        raise UsageError(f"{place.name}: {', '.join(waiting)} not RUNNING; wait, and see dataprep tpu status")
    return target(api="compute-engine", instances=tuple(sorted(machine["name"] for machine in machines)))


def find_zone(name: str, zone: str | None = None) -> str:
    """Return the zone of a TPU.

    Args:
        name: The TPU's name.
        zone: Zone to search; needed if there are several TPUs of this name.

    Raises:
        UsageError: There is no `gcloud`, or no TPU or several of this name.
        UndecidedError: `gcloud` could not answer.
    """
    command_lines.check_name(name)
    listed = _entries("compute", "tpus", "tpu-vm", "list", zone=zone or "-")
    # A name is projects/P/locations/ZONE/nodes/NAME.
    names: list[list[str]] = [node.get("name", "").split("/") for node in listed]
    found = [words[-3] for words in names if words[-1] == name]
    if not found:
        vms = _entries("compute", "instances", "list", filter=f"name={name}", zones=zone)
        found = [vm.get("zone", "").rpartition("/")[2] for vm in vms if vm.get("name") == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"`tpu` {name}: TPUs of this name are in {', '.join(found)}; add `zone`")
    known = ", ".join(sorted(words[-1] for words in names)[:MOST_LISTED]) or "none"
    raise UsageError(f"`tpu` {name}: no such TPU; gcloud lists {known}: check the name and the project, or give `zone`")


def _entries(*words: str, **flags: str | None) -> list[JsonObject]:
    gcloud = Gcloud(lambda _line: None)
    try:
        return gcloud.entries(
            command_lines.gcloud_line(*words, **flags, format="json", quiet=True), timeout_s=LIST_TIMEOUT_S
        )
    except GcloudMissingError as error:
        raise UsageError(f"`tpu`: {error}, or give `zone`") from None
    except DataprepError as error:
        raise UndecidedError(f"`tpu`: {error}, or give `zone`") from error
