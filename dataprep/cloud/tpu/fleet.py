"""Runs shell lines and actions of `worker.py` on all workers of a TPU, and copies files to them."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dataprep.cloud.gcloud import SAID_CHARACTERS, TIMEOUT_S, Gcloud, Sent, meaning
from dataprep.cloud.tpu.command_lines import Target, copy_commands, ssh_command
from dataprep.cloud.tpu.worker import REPLY, Holder, RunState
from dataprep.dataset.documents import decode
from dataprep.errors import StorageError, UndecidedError

AT_ONCE = 16
"""Maximum number of concurrent gcloud processes; each takes a second of CPU time and 100 MB."""
_GCLOUD_FAILED = re.compile(r"^ERROR: \(gcloud\.", re.MULTILINE)


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
        where, advice = f"worker {self.worker}: its answer", "run the same command again"
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
            line: The line.
            workers: Numbers of the workers.
            timeout_s: Deadline for each worker.
            sent: Function that returns what a worker gets on stdin, by its number.
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
        return Answer(worker=answer.worker, code=None, trouble="its answer was lost")
    said = answer.reply.get("error")
    return Answer(worker=answer.worker, code=answer.code, out=answer.out, trouble=said) if said else answer


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:SAID_CHARACTERS] if lines else "it said nothing"
