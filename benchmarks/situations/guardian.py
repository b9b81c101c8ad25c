"""Process that starts the programs of a situation, and undoes what was planted, however the benchmark ends.

    with Guardian() as guardian:
        guardian.start([sys.executable, …])       # ended at the end
        guardian.undoes("remove_group", path)     # undone at the end, the last first

It is in a session of its own, waits for the end of its standard input, and then undoes everything. So there is one way
to undo, whether the benchmark leaves the context, is interrupted or is killed. If this process is killed as well, its
programs end with it, and the next planting removes what else is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, cast

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
GROUP_DEADLINE_S = 5.0
"""Time in which the processes of a control group have to be gone."""
SWAPOFF = "/usr/sbin/swapoff"


class Guardian:
    """Guardian of one planted situation, as a context."""

    def __enter__(self) -> Guardian:
        command = [sys.executable, "-m", "benchmarks.situations.guardian"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._ask("leaving")
            _pipes(self._process)[0].close()

    def start(self, command: Sequence[str]) -> str:
        """Start a program, and return the first line that it prints."""
        return self._ask("start", *command)

    def undoes(self, what: str, argument: str) -> None:
        """Promise to undo something at the end; a name of `UNDO`."""
        self._ask("undo", what, argument)

    def ends(self, pid: int) -> None:
        """Promise to kill a child of the benchmark if the benchmark is killed."""
        self._ask("end", str(pid))

    def _ask(self, *words: str) -> str:
        requests, answers = _pipes(self._process)
        requests.write(json.dumps(words) + "\n")
        requests.flush()
        if not (answer := answers.readline()):
            raise RuntimeError(f"the guardian ended while it was asked to {' '.join(words)}")
        return answer.strip()


def main() -> None:
    """Do what the lines of the standard input say, and undo it at their end."""
    programs: list[subprocess.Popen[str]] = []
    to_undo: list[tuple[str, str]] = []
    to_end: list[int] = []
    is_leaving = False
    for line in sys.stdin:
        verb, *words = json.loads(line)
        answer = ""
        if verb == "start":
            programs.append(_started(words))
            answer = _pipes(programs[-1])[1].readline().strip()
        elif verb == "undo":
            to_undo.append((words[0], words[1]))
        elif verb == "end":
            to_end.append(os.pidfd_open(int(words[0])))  # a descriptor: a number may be given to another process
        else:
            is_leaving = True
        print(answer, flush=True)
    for descriptor in () if is_leaving else to_end:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    for program in programs:
        program.kill()
    for program in programs:
        program.wait()
    for what, argument in reversed(to_undo):
        UNDO[what](argument, is_leaving)


def remove_group(path: str, is_leaving: bool) -> None:
    """Remove a control group. Its processes return to the group above, or are killed if the benchmark was."""
    group, deadline_s = Path(path), time.monotonic() + GROUP_DEADLINE_S
    while group.exists() and time.monotonic() < deadline_s:
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                if is_leaving:
                    (group.parent / "cgroup.procs").write_text(str(pid))
                else:
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):  # a process that is ending is still a member
            group.rmdir()
        time.sleep(0.01)


def remove_swap(path: str, is_leaving: bool = True) -> None:
    """Stop using a swap file, and remove it."""
    subprocess.run([SWAPOFF, path], capture_output=True, check=False)
    Path(path).unlink(missing_ok=True)


UNDO: dict[str, Callable[[str, bool], None]] = {"remove_group": remove_group, "remove_swap": remove_swap}


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=_end_with_parent)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    return cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)


if __name__ == "__main__":
    main()
