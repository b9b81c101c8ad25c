"""Makes the causes of `outside` real while a context lasts; needs root, and control groups of version 1.

- A slow or shared disk: `blkio.throttle.read_*_device` of the run's own control group, and a program that drops the
  dataset from the page cache.
- Too little memory: a swap file, and a program that moves the run's memory there by `process_madvise(MADV_PAGEOUT)`.
- A quota: `cpu.cfs_quota_us` of the run's own control group.
- Pinned cores: `sched_setaffinity` of all threads of the run.
- Threads of OpenMP: `torch.set_num_threads` in the judge's loop, `OMP_NUM_THREADS` and `MKL_DYNAMIC` for the diagnosis.
- Stolen time: a process of real-time priority (SCHED_FIFO) on every core.
- Neighbours: processes at a nice value, on the same cores.
- A proxy: a process between loader and bucket.

The benchmark itself joins the control groups, because the judge's loop runs in it, and leaves them afterwards.
The memory controller is left alone: a group of its own would take the run out of limits that others have set for it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.situations.guardian import Guardian, remove_swap
from benchmarks.situations.outside import Outside

GROUPS = Path("/sys/fs/cgroup")
PREFIX = "dataprep-situation-"
PERIOD_US = 100_000
"""Period of a CPU quota, which is also the usual one of containers."""
SWAP_BYTES = 2 << 30
SHARED_FILE_BYTES = 256 << 20
"""Size of the file that neighbours read from the same disk."""
EMULATOR = "STORAGE_EMULATOR_HOST"


class CannotPlantError(Exception):
    """This machine cannot be put into a situation; the message says what is missing."""


@contextmanager
def planted(outside: Outside, folder: Path | None, *, work: Path, emulator_pid: int) -> Iterator[Guardian]:
    """Put this machine into a situation; yield the guardian that undoes it.

    Args:
        folder: Folder of the dataset; None: it is in the bucket.
        work: Folder on the same disk for a swap file and temporary files.
        emulator_pid: Process of the bucket, which is not slowed down.
    """
    with ExitStack() as stack, Guardian() as guardian:
        _start_neighbours(outside, guardian)
        if outside.connection_bytes_per_s or outside.proxy_bytes_per_s:
            stack.enter_context(_proxy(outside, guardian))
        if outside.omp_threads is not None:
            stack.enter_context(_omp_threads(outside.omp_threads))
        if outside.pinned_to is not None:
            stack.enter_context(_pinned(outside.pinned_to))
        if outside.is_disk_slow:
            stack.enter_context(_temporary_folder(work / "temporary"))
            _limit_disk(outside, folder or work, guardian, work)
        if outside.paged_out_bytes_per_s is not None:
            _page_out(outside.paged_out_bytes_per_s, guardian, work / "paging.swap", emulator_pid)
        if outside.cores is not None:
            group = _group("cpu", guardian)
            _write(group / "cpu.cfs_period_us", str(PERIOD_US))
            _write(group / "cpu.cfs_quota_us", str(round(outside.cores * PERIOD_US)))
            _join(group)
        yield guardian


def _start_neighbours(outside: Outside, guardian: Guardian) -> None:
    for _ in range(outside.neighbours):
        guardian.start(_program(outside.neighbour, outside.neighbour_nice))
    if outside.stolen_share is not None:
        for core in sorted(os.sched_getaffinity(0)):
            guardian.start(_program("steal", core, outside.stolen_share, outside.stolen_period_ms))


def _program(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.situations.neighbours", name, *map(str, arguments)]


@contextmanager
def _proxy(outside: Outside, guardian: Guardian) -> Iterator[None]:
    there = urlsplit(os.environ[EMULATOR])
    limits = outside.connection_bytes_per_s or 0, outside.proxy_bytes_per_s or 0
    port = guardian.start(_program("proxy", there.hostname, there.port, *limits))
    with _environment(EMULATOR, f"http://127.0.0.1:{port}"):
        yield


@contextmanager
def _omp_threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        # MKL, and PyTorch with it, would take no more threads than there are cores.
        with _environment("OMP_NUM_THREADS", str(count)), _environment("MKL_DYNAMIC", "FALSE"):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _pinned(count: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    _pin(set(sorted(before)[:count]))
    try:
        yield
    finally:
        _pin(before)


def _pin(cores: set[int]) -> None:
    """Pin all threads of this process, and so the threads and processes that they start."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    """Let the diagnosis keep its samples where they are dropped from the page cache as well."""
    folder.mkdir(parents=True, exist_ok=True)
    with _environment("TMPDIR", str(folder)):
        yield


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _limit_disk(outside: Outside, folder: Path, guardian: Guardian, work: Path) -> None:
    group, disk = _group("blkio", guardian), disk_of(folder)
    for name, limit in (("bps", outside.disk_bytes_per_s), ("iops", outside.disk_reads_per_s)):
        if limit is not None:
            _write(group / f"blkio.throttle.read_{name}_device", f"{disk} {max(1, round(limit))}")
    guardian.start(_program("evict", folder, work / "temporary"))
    if outside.disk_neighbours:
        shared = work / "shared.bin"
        if not shared.exists() or shared.stat().st_size != SHARED_FILE_BYTES:
            with shared.open("wb") as file:
                for _ in range(SHARED_FILE_BYTES >> 20):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        for _ in range(outside.disk_neighbours):
            guardian.start(_program("read", shared, group))
    _join(group)


def disk_of(folder: Path) -> str:
    """Return the numbers of the whole disk that holds a folder, as control groups name it: `254:0`."""
    device = folder.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not entry.exists():
        raise CannotPlantError(f"{folder} is on no block device; choose another --work")
    disk = entry.resolve().parent if (entry / "partition").exists() else entry
    return (disk / "dev").read_text().strip()


def _page_out(bytes_per_s: float, guardian: Guardian, swap: Path, emulator_pid: int) -> None:
    remove_swap(str(swap))  # of a benchmark that was killed together with its guardian
    guardian.undoes("remove_swap", str(swap))
    with swap.open("wb") as file:
        swap.chmod(0o600)
        os.posix_fallocate(file.fileno(), 0, SWAP_BYTES)
    for command in ("mkswap", "swapon"):
        done = subprocess.run([f"/usr/sbin/{command}", str(swap)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotPlantError(f"{command}: {done.stderr.strip()}")
    guardian.start(_program("page_out", os.getpid(), bytes_per_s, emulator_pid))


def _group(controller: str, guardian: Guardian) -> Path:
    """Make a control group below this process' own, and remove those of benchmarks that were killed."""
    above = own_group(controller)
    for stale in above.glob(f"{PREFIX}*"):
        if not Path("/proc", stale.name.removeprefix(PREFIX)).exists():
            guardian.undoes("remove_group", str(stale))
    group = above / f"{PREFIX}{os.getpid()}"
    guardian.undoes("remove_group", str(group))
    try:
        group.mkdir(exist_ok=True)
    except OSError as error:
        raise CannotPlantError(f"no control group {group}: {error.strerror}; run it as root") from None
    return group


def own_group(controller: str) -> Path:
    """Return the folder of this process' group of a controller of control groups, version 1."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return GROUPS / controller / path.lstrip("/")
    raise CannotPlantError(f"no controller {controller} of control groups, version 1; Linux must be booted with them")


def _join(group: Path) -> None:
    _write(group / "cgroup.procs", str(os.getpid()))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise CannotPlantError(f"{path}: cannot write {text!r}: {error.strerror}") from None
