"""Measures a command with all its child processes: wall time, CPU time, peak memory. Linux only.

Wall time is from exec to exit of the command. CPU time covers all its processes: os.wait4 counts every descendant
that was waited for, and all others become children of this process, which waits for them. Peak memory is VmHWM, the
kernel's own high-water mark of each process, read from /proc five times a second: it never decreases, so only growth in
the last fifth of a second of a process can be missed. ru_maxrss would miss nothing, but starts at the size of the
process that forked it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dataprep.errors import DataprepError, UsageError
from dataprep.host.cpu import every_child, process_tree

SAMPLES_PER_S = 5
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER of prctl(2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Figures of one run."""

    wall_s: float
    cpu_s: float
    """User and system time of the process and its descendants."""
    largest_bytes: int
    """Peak of the largest single process."""
    sum_bytes: int
    """Sum of the peaks of all processes; pages that they share count once for each."""
    stdout: str


class CommandError(DataprepError):
    """The command failed."""

    def __init__(self, words: Sequence[str], exit_code: int, stderr: str) -> None:
        super().__init__(f"{' '.join(words)}: exit code {exit_code}\n{stderr[-2000:]}")
        self.stderr = stderr


def measure(command: Sequence[str | Path], environment: Mapping[str, str], stdin: str = "") -> Measurement:
    """Run a command to its end, and measure it. No process of the command survives this call, even if it fails.

    Raises:
        CommandError: The command failed; the error ends with its stderr.
        UsageError: This machine does not run Linux.
    """
    if sys.platform != "linux":
        raise UsageError(f"{sys.platform}: measuring processes needs /proc and prctl; run it on Linux")
    words = [str(word) for word in command]
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
        _adopted_orphans() as orphans,
    ):
        given.write(stdin)
        given.seek(0)
        started_s = time.monotonic()
        # In a session of its own, so that Ctrl-C reaches only this process, which then ends the others.
        process = subprocess.Popen(
            words, env=environment, stdin=given, stdout=stdout, stderr=stderr, start_new_session=True
        )
        with _watched(process.pid) as peaks:
            status, cpu_s = _waited(process.pid)
            wall_s = time.monotonic() - started_s
        process.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        if process.returncode != 0:
            raise CommandError(words, process.returncode, stderr.read())
        return Measurement(
            wall_s=wall_s,
            cpu_s=cpu_s + sum(_waited(pid)[1] for pid in orphans()),
            largest_bytes=max(peaks.values(), default=0),
            sum_bytes=sum(peaks.values()),
            stdout=stdout.read(),
        )


@contextmanager
def _adopted_orphans() -> Iterator[Callable[[], set[int]]]:
    """Adopt descendants that lose their parent as children of this process, and kill them at the end.

    Yields:
        Function that returns the children of this process that began inside the block.
    """
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int()
    prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before))
    prctl(_SET_CHILD_SUBREAPER, 1)
    others = every_child(os.getpid())

    def orphans() -> set[int]:
        return every_child(os.getpid()) - others

    try:
        yield orphans
    finally:
        while pids := orphans():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        prctl(_SET_CHILD_SUBREAPER, before.value)


@contextmanager
def _watched(pid: int) -> Iterator[dict[int, int]]:
    """Record the peak memory of a process and its descendants, by process id."""
    peaks: dict[int, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while True:
            for each in process_tree(pid):
                peaks[each] = max(peak_bytes(each), peaks.get(each, 0))
            if ended.wait(1 / SAMPLES_PER_S):
                break

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _waited(pid: int) -> tuple[int, float]:
    """Wait for a child; return its exit status and the CPU time of it and its waited-for descendants."""
    _, status, usage = os.wait4(pid, 0)
    return status, usage.ru_utime + usage.ru_stime


def peak_bytes(pid: int) -> int:
    """Return VmHWM of a process, its peak resident memory so far; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
