"""Processor time of this process, its children, and the machine, from /proc; zero without /proc (macOS).

A capacity plan needs the CPU seconds that an image costs, including the seconds of other processes that work for this
one: the machine's busy time, minus the time that was busy before.

psutil is not used, for two reasons. It does not tell which processor a row of /proc/stat belongs to, so with an offline
processor the rows of this process's processors are unknown. And it finds descendants by reading every process of the
machine, which takes 7 ms for 140 processes; /proc/PID/task/*/children takes 0.6 ms.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_IDLE_S = 0.3
"""Time for which the machine is observed while this process sleeps: 30 of the kernel's ticks."""


@dataclass(slots=True)
class CPUTime:
    """Processor time used during a `with` block; set when the block ends."""

    elapsed_s: float = 0.0
    own_s: float = 0.0
    """Time of this process and its children."""
    machine_s: float = 0.0
    """Time of all processes."""

    @property
    def cores_of_others(self) -> float:
        """Number of cores that were busy for other processes; 0 if unknown."""
        return max(0.0, self.machine_s - self.own_s) / self.elapsed_s if self.elapsed_s else 0.0

    def cores_used(self, background: float) -> float:
        """Return the number of cores that were busy for the block, in this process and in others that worked for it.

        Args:
            background: Number of cores that were busy before.
        """
        if not self.elapsed_s:
            return 0.0
        return max(self.own_s, self.machine_s - background * self.elapsed_s) / self.elapsed_s


@contextmanager
def cpu_time() -> Iterator[CPUTime]:
    """Measure the processor time used while the block runs."""
    used = CPUTime()
    started_s, own_s, machine_s = time.perf_counter(), own_cpu_s(), machine_cpu_s()
    yield used
    used.elapsed_s = time.perf_counter() - started_s
    used.own_s, used.machine_s = own_cpu_s() - own_s, machine_cpu_s() - machine_s


def background_cores() -> float:
    """Measure how many cores are busy while this process sleeps."""
    with cpu_time() as used:
        time.sleep(_IDLE_S)
    return used.cores_of_others


def own_cpu_s() -> float:
    """Return the CPU time of this process, its living descendants, and ended ones that were waited for.

    The kernel counts the time of descendants in ticks of 10 ms.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(map(cpu_s_of, children(os.getpid())))
    return time.process_time() + ended.ru_utime + ended.ru_stime + living


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process, its living descendants, and ended ones that were waited for, in ticks."""
    return sum(map(_process_cpu_s, process_tree(pid)))


def machine_cpu_s() -> float:
    """Return the CPU time of all processes since boot, on the cores that this one may use; 0 if unknown.

    Programs with a nice value above 0 do not count, because they give way to this one. If this process has such a value
    itself they do not give way, so all count, its own time included.
    """
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return 0.0
    with_niced = os.nice(0) > 0
    ticks = 0
    for words in lines:
        if words[0] in ours:
            user, niced, system, _idle, _iowait, irq, softirq = map(int, words[1:8])
            ticks += user + system + irq + softirq + (niced if with_niced else 0)
    return ticks / os.sysconf("SC_CLK_TCK")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the CPU seconds that this process may use in a second because of its control groups, as in a container
    with a limit; infinity without one.

    Args:
        groups: File that lists this process's control groups.
        mounted: Folder at which they are mounted.
    """
    found = [math.inf]
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):  # version 2 names no controllers
                root = mounted / controllers
                # A container may see the path on the host, although only its own group is mounted.
                own = root / path.lstrip("/")
                found += [_quota_of(folder) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return min(found)


def _quota_of(folder: Path) -> float:
    """Return the cores that one control group allows, of version 2 or 1."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join((folder / name).read_text().strip() for name in names).split()
            if quota not in ("max", "-1"):
                return int(quota) / int(period)
    return math.inf


def cores_of_rank() -> int:
    """Return this process's share of the cores that it may use, if torchrun says how many ranks share the host."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, available_cores() // max(1, int(ranks) if ranks.isdecimal() else 1))


def memory_bytes() -> int:
    """Return the size of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _process_cpu_s(pid: int) -> float:
    try:
        # From field 3 on, after the name, which may hold blanks; 14 to 17 are times, of ended children too.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def process_tree(pid: int) -> list[int]:
    """Return a process and its living descendants."""
    return [pid, *(each for child in children(pid) for each in process_tree(child))]


def children(pid: int) -> list[int]:
    """Return the living children of a process; none if it has ended.

    Quick, but may miss a child while another one ends.
    """
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # this thread has just ended
                found += map(int, (thread / "children").read_text().split())
    return found


def every_child(pid: int) -> set[int]:
    """Return the living children of a process, and ended ones that were not waited for, by examining all processes."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    found.add(int(folder.name))
    return found
