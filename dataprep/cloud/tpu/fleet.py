"""Runs shell lines and actions of `worker.py` on all workers of a TPU, copies files to them, and fetches their traces.

Code goes there as an archive: the same files give the same bytes, so the archive is named by its digest. Traces of all
workers become a run that TensorBoard shows, `plugins/profile/<run>/<host>.xplane.pb`: every host names its folder by
the start time on its own clock, and some tools leave out `plugins/profile`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shlex
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path, PurePosixPath

from dataprep.cloud.gcloud import SAID_CHARACTERS, TIMEOUT_S, Gcloud, Sent, meaning
from dataprep.cloud.tpu.command_lines import Target, copy_commands, ssh_command
from dataprep.cloud.tpu.worker import REPLY, Holder, RunState
from dataprep.dataset.documents import decode
from dataprep.errors import StorageError, UndecidedError, UsageError
from dataprep.storage.base import check_name

AT_ONCE = 16
"""Maximum number of concurrent gcloud processes; each takes a second of CPU time and 100 MB."""
_GCLOUD_FAILED = re.compile(r"^ERROR: \(gcloud\.", re.MULTILINE)
MAX_BYTES = 256 * 2**20
"""Maximum size of all files together. Larger folders contain data, which would be copied to every worker."""
_LEFT_OUT = {
    ".git",
    ".hg",
    ".venv",
    "venv",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}
_DIGEST_CHARACTERS = 12
ONE_RUN_S = 120.0
"""Longest time between the first folder of a run and its other folders."""
_FORMAT = "%Y_%m_%d_%H_%M_%S"
Trace = tuple[int, str]
"""Number of a worker, and a path below its folder of logs."""


class Reply(RunState, total=False):
    """Reply of an action of `worker.py`; which fields there are depends on the action."""

    runs: dict[str, RunState]
    holders: list[Holder]
    complete: bool
    ended: list[int]
    lock: str
    startup: str
    logs: str
    staged: str
    environment: str
    mount: str
    folder: str
    path: str
    files: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Answer of one worker."""

    worker: int
    code: int | None
    """Exit code of the command; None if the worker was not reached."""
    out: str = ""
    trouble: str = ""
    """One line about a failure; empty if there was none."""

    @property
    def reply(self) -> Reply:
        """The reply of `worker.py` in the output; empty if there is none. Raises StorageError for a malformed one."""
        lines = [line for line in self.out.splitlines() if line.startswith(REPLY)]
        where, advice = f"worker {self.worker}: its response", "run the same command again"
        data = lines[-1].removeprefix(REPLY).encode() if lines else b"{}"
        return decode(data, Reply, where=where, advice=advice, error=StorageError)


class Fleet:
    """All workers of a TPU."""

    def __init__(self, gcloud: Gcloud, target: Target) -> None:
        self.gcloud = gcloud
        self.target = target
        self._connected = self._shown = False

    def shell(
        self,
        line: str,
        workers: Iterable[int] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        sent: Callable[[int], Sent] | None = None,
    ) -> list[Answer]:
        """Run a line of shell on workers, by default on all.

        The line must be safe to run twice, because gcloud repeats it after a dropped connection.

        Args:
            workers: Numbers of the workers.
            timeout_s: Deadline for each worker.
            sent: Function that returns a worker's stdin, by its number.
        """
        chosen = list(range(len(self.target.instances)) if workers is None else workers)
        if self.gcloud.dry_run:
            self.gcloud.run(ssh_command(self.target, 0, line), sent=sent and sent(0))
            return []

        def ask(worker: int) -> Answer:
            argv = ssh_command(self.target, worker, line)
            try:
                ran = self.gcloud.run(argv, timeout_s=timeout_s, sent=sent and sent(worker))
            except UndecidedError as error:
                return Answer(worker=worker, code=None, trouble=str(error))
            if ran.returncode and (ran.returncode == 255 or _GCLOUD_FAILED.search(ran.stderr)):
                return Answer(worker=worker, code=None, trouble=str(meaning(argv, ran.stderr)))
            trouble = _last_line(ran.stderr) if ran.returncode else ""
            return Answer(worker=worker, code=ran.returncode, out=ran.stdout, trouble=trouble)

        # The first connection may have to publish the SSH key, which fails for two at the same time.
        alone = 0 if self._connected else 1
        answers = [ask(worker) for worker in chosen[:alone]]
        self._connected = True
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return answers + list(pool.map(ask, chosen[alone:]))

    def call(
        self,
        *words: str,
        workers: Iterable[int] | None = None,
        timeout_s: float = TIMEOUT_S,
        sent: Callable[[int], Sent] | None = None,
    ) -> list[Answer]:
        """Run an action of `worker.py`, which is first copied to the workers that do not have it yet."""
        source, name = worker_program()
        line = shlex.join(["python3", "-I", name, *words])
        if self.gcloud.dry_run and not self._shown:
            self.gcloud.show("# for a worker that does not have it yet:")
            self.copy(str(source), name)
            self._shown = True
        answers = self.shell(line, workers, timeout_s=timeout_s, sent=sent)
        without = [answer.worker for answer in answers if answer.code == 2 and "can't open file" in answer.trouble]
        if without:
            self.copy(str(source), name)
            again = {answer.worker: answer for answer in self.shell(line, without, timeout_s=timeout_s, sent=sent)}
            answers = [again.get(answer.worker, answer) for answer in answers]
        return [_judged(answer, replies=words[0] != "log") for answer in answers]

    def copy(self, source: str, destination: str, *, recurse: bool = False) -> None:
        """Copy a file or a folder to all workers.

        Raises:
            DataprepError: Some workers did not get the copy.
        """
        for argv in copy_commands(self.target, source, destination, recurse=recurse):
            self.gcloud.require(argv)


def worker_program() -> tuple[Path, str]:
    """Return the local path of `worker.py`, and the name of this version in the home folder of a worker."""
    path = Path(str(resources.files("dataprep.cloud.tpu").joinpath("worker.py")))
    return path, f".dataprep-worker-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}.py"


def require_all(answers: Sequence[Answer], what: str) -> None:
    """Raise the first worker's error unless every worker succeeded.

    Raises:
        UndecidedError: None of the failed workers was reached.
        StorageError: A worker was reached, and failed.
    """
    bad = [answer for answer in answers if answer.code != 0]
    if bad:
        kind = UndecidedError if all(answer.code is None for answer in bad) else StorageError
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise kind(f"{what}: worker {bad[0].worker}: {bad[0].trouble}{more}; fix that, and run the same command again")


def _judged(answer: Answer, *, replies: bool) -> Answer:
    """Put the error in the reply of `worker.py` into an answer. Without a reply the state of the worker is unknown."""
    if answer.code == 0 and replies and not answer.reply:
        return Answer(worker=answer.worker, code=None, trouble="its response was lost")
    said = answer.reply.get("error")
    return Answer(worker=answer.worker, code=answer.code, out=answer.out, trouble=said) if said else answer


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:SAID_CHARACTERS] if lines else "no output"


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """A `.tar.gz` of a folder."""

    name: str
    """Unique name, made of the folder's name and the beginning of the digest."""
    data: bytes
    sha256: str
    files: int


def pack(folder: Path) -> Archive:
    """Pack all files that git does not ignore; outside a repository, all except environments and caches.

    Raises:
        UsageError: The folder has no files or more than MAX_BYTES, a link points outside it, or a file is unreadable or
            disappears while packing.
    """
    try:
        return _packed(folder, _in_git(folder) or _in_folder(folder))
    except OSError as error:
        raise UsageError(
            f"{error.filename}: {error.strerror} while packing {folder}; files must not change during packing: run "
            "again, or list in .gitignore the files that other programs write"
        ) from None


def _packed(folder: Path, paths: list[str]) -> Archive:
    sizes = {path: (folder / path).lstat().st_size for path in paths}
    if not sizes:
        raise UsageError(f"{folder}: no files; expected a folder of code")
    if sum(sizes.values()) > MAX_BYTES:
        largest = max(sizes, key=lambda path: sizes[path])
        raise UsageError(
            f"{folder}: {sum(sizes.values()) / 2**20:,.0f} MiB, expected code of at most {MAX_BYTES >> 20} MiB; the "
            f"largest is {largest} ({sizes[largest] / 2**20:,.0f} MiB): name data in .gitignore, put them in a bucket"
        )
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in paths:
            _add(tar, folder, path)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.resolve().name).strip("-.") or "code"
    return Archive(
        name=f"{stem}-{digest[:_DIGEST_CHARACTERS]}", data=buffer.getvalue(), sha256=digest, files=len(paths)
    )


def _in_git(folder: Path) -> list[str]:
    command = ["git", "-C", str(folder), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return []
    names = set(os.fsdecode(listed.stdout).split("\0")) - {""} if listed.returncode == 0 else set()
    return sorted(name for name in names if _is_packed(folder / name))


def _in_folder(folder: Path) -> list[str]:
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        found += [path.relative_to(folder).as_posix() for name in files if _is_packed(path := Path(root) / name)]
    return sorted(found)


def _is_packed(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _add(tar: tarfile.TarFile, folder: Path, path: str) -> None:
    source = folder / path
    member = tarfile.TarInfo(path)
    if source.is_symlink():
        if not source.resolve().is_relative_to(folder.resolve()) or source.readlink().is_absolute():
            raise UsageError(f"{source}: a link to {source.readlink()}, outside the folder; expected no such links")
        member.type, member.linkname = tarfile.SYMTYPE, str(source.readlink())
        tar.addfile(member)
        return
    content = source.read_bytes()
    member.size, member.mode = len(content), 0o755 if os.access(source, os.X_OK) else 0o644
    tar.addfile(member, io.BytesIO(content))


def arrange(traces: Iterable[Trace]) -> dict[Trace, str]:
    """Return the path of each trace below TensorBoard's log folder.

    Raises:
        UsageError: A trace is in a folder whose name is not a time, or its path leaves the folder of logs.
    """
    by_time = sorted((_time_of(path), worker, path) for worker, path in traces)
    runs: dict[Trace, str] = {}
    first: datetime | None = None
    for time, worker, path in by_time:
        if first is None or time - first > timedelta(seconds=ONE_RUN_S):
            first = time
        runs[worker, path] = first.strftime(_FORMAT)
    named = Counter((run, PurePosixPath(path).name) for (_, path), run in runs.items())
    placed = {}
    for (worker, path), run in runs.items():
        name = PurePosixPath(path).name
        if named[run, name] > 1:  # hosts of the same name, or two traces of one host within the time
            name = f"worker-{worker:02d}.{PurePosixPath(path).parent.name}.{name}"
        placed[worker, path] = f"plugins/profile/{run}/{name}"
    return placed


def _time_of(path: str) -> datetime:
    folder = PurePosixPath(check_name(path)).parent.name
    try:
        return datetime.strptime(folder, _FORMAT)
    except ValueError:
        raise UsageError(f"{path}: expected a trace in a folder such as plugins/profile/2026_11_21_12_30_00") from None
