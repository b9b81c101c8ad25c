"""Cores, memory and processor time of this machine and of a block."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dataprep.host.cpu import (
    CPUTime,
    available_cores,
    cores_of_rank,
    cpu_quota,
    cpu_time,
    machine_cpu_s,
    memory_bytes,
)


def test_cores_are_counted_by_the_affinity_of_this_process():
    assert available_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("ranks", "expected"), [(None, 32), ("1", 32), ("8", 4), ("100", 1), ("0", 32), ("", 32)])
def test_ranks_that_torchrun_starts_on_a_host_share_its_cores(monkeypatch, ranks, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(32))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert cores_of_rank() == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {}, math.inf),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/pod/box", {"pod/cpu.max": "50000 100000", "pod/box/cpu.max": "max 100000"}, 0.5),
        ("0::/not/mounted/here", {"cpu.max": "70000 100000"}, 0.7),
        (
            "4:memory:/m\n1:cpu:/job\n0::/",
            {"cpu/job/cpu.cfs_quota_us": "53000", "cpu/job/cpu.cfs_period_us": "100000"},
            0.53,
        ),
        (
            "2:cpu,cpuacct:/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            math.inf,
        ),
        ("0::/", {"cpu.max": "damaged"}, math.inf),
    ],
)
def test_the_smallest_quota_of_the_control_groups_counts(tmp_path, groups, files, expected):
    for name, text in files.items():
        (tmp_path / "mounted" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounted" / name).write_text(text + "\n")
    (tmp_path / "cgroup").write_text(groups + "\n")
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "mounted") == pytest.approx(expected)


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cpu_quota(tmp_path / "absent", tmp_path) == math.inf


def test_memory_is_that_of_the_machine():
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")]
    assert memory_bytes() == int(line.split()[1]) * 1024


def test_a_block_that_works_uses_processor_time_of_its_own():
    with cpu_time() as used:
        start_s = time.process_time()
        while time.process_time() - start_s < 0.05:
            pass
    assert used.own_s >= 0.05
    assert used.elapsed_s > 0


def test_cores_used_are_the_machines_less_the_background_but_no_less_than_our_own():
    used = CPUTime(elapsed_s=10.0, own_s=5.0, machine_s=30.0)
    assert used.cores_used(background=1.0) == pytest.approx(2.0)
    assert used.cores_used(background=3.0) == pytest.approx(0.5)
    assert CPUTime().cores_used(background=1.0) == 0


def test_cores_of_others_are_the_machines_less_our_own_and_none_where_the_machine_tells_nothing():
    assert CPUTime(elapsed_s=10.0, own_s=5.0, machine_s=30.0).cores_of_others == pytest.approx(2.5)
    assert CPUTime(elapsed_s=10.0, own_s=5.0).cores_of_others == 0
    assert CPUTime().cores_of_others == 0


def kernel_cpu_s(*, with_niced):
    """CPU time that the kernel shows of this process's cores."""
    rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ours = [list(map(int, row[1:])) for row in rows if row[0] in {f"cpu{each}" for each in os.sched_getaffinity(0)}]
    ticks = sum(row[0] + row[1] * with_niced + row[2] + row[5] + row[6] for row in ours)
    return ticks / os.sysconf("SC_CLK_TCK")


def counts_niced_programs(*, with_niced):
    before_s, found_s, after_s = (
        kernel_cpu_s(with_niced=with_niced),
        machine_cpu_s(),
        kernel_cpu_s(with_niced=with_niced),
    )
    return before_s <= found_s <= after_s


def test_programs_that_give_way_to_this_one_do_not_count():
    assert counts_niced_programs(with_niced=os.nice(0) > 0)


def test_niced_programs_count_beside_a_run_that_is_niced_itself():
    words = "import os; os.nice(5); from tests.dataprep.host.test_cpu import counts_niced_programs as counts; "
    code = f"{words} raise SystemExit(not counts(with_niced=True))"
    spin = "import os, time; os.nice(5); end = time.process_time() + 0.05\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)  # niced time that the kernel has to show
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
