"""Causes outside the lists of the diagnosis: each is real while it is planted, and gone afterwards in any case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from benchmarks.diagnose import _read_results
from benchmarks.situations.generate import IDS, SEED, plant, spread
from benchmarks.situations.guardian import Guardian
from benchmarks.situations.judge import RIGHT, UNDECIDED, WRONG, Truth, verdict_on
from benchmarks.situations.outside import Outside
from benchmarks.situations.planting import PREFIX, CannotPlantError, disk_of, own_group, planted
from benchmarks.situations.situation import Change, Situation, to_document
from benchmarks.tables import unseen_table
from tests.support.on_use import on_use
from tests.support.waiting import end_soon

torch = on_use("torch")

ROOT = Path(__file__).parents[2]
NAMES = "cpu", "blkio"


def can_plant() -> bool:
    """Whether this process may make control groups of version 1, and temporary files lie on a disk."""
    try:
        disk_of(Path(tempfile.gettempdir()))
        return os.geteuid() == 0 and all(os.access(own_group(name), os.W_OK) for name in NAMES)
    except (CannotPlantError, OSError):
        return False


as_root = pytest.mark.skipif(not can_plant(), reason="control groups of version 1 are made by root")


class Formula:
    """A machine of which the rates are known."""

    def loader(self, situation: Situation) -> float:
        return 1000.0 * min(2, situation.threads) / (1 + 5 * bool(situation.transform))

    def device(self, situation: Situation) -> float:
        return 20.0

    def image_bytes(self, situation: Situation) -> float:
        return 113e3


# The set


def test_the_hundred_are_reproducible_and_of_many_kinds() -> None:
    assert len(IDS) == 100
    assert spread(100) == list(IDS)
    assert len({id_.rpartition("-")[0] for id_ in spread(20)}) >= 12
    found = [plant(id_, Formula(), seed=SEED, cores=2) for id_ in IDS]
    assert found == [plant(id_, Formula(), seed=SEED, cores=2) for id_ in IDS]
    assert [situation.id for situation in found] == list(IDS)
    others = [plant(id_, Formula(), seed=SEED + 1, cores=2) for id_ in IDS]
    assert sum(situation in others for situation in found) < 10
    unlisted = [each for each in found if each.outside or "garbage" in each.transform or "lock" in each.transform]
    assert len(unlisted) == 100
    assert max(len(situation.cause) for situation in found) < 62  # the table's column
    assert max(len(situation.id) for situation in found) < 26
    assert json.loads(json.dumps(to_document(found[0]))) == to_document(found[0])


def test_every_way_of_planting_is_drawn() -> None:
    found = [plant(id_, Formula(), seed=SEED, cores=2).outside for id_ in IDS]
    for field in fields(Outside):
        if field.name != "neighbour":
            assert any(getattr(each, field.name) != field.default for each in found if each), field.name
    assert {each.neighbour for each in found if each} == {"loop", "burst", "memory"}


# Verdicts


@pytest.mark.parametrize(
    ("outside", "undecided", "best", "verdict"),
    [
        (Outside(neighbours=2), "others compute", 200.0, UNDECIDED),
        (Outside(neighbours=2), "others compute", 100.0, RIGHT),  # no change helps, none is named
        (Outside(neighbours=2), "", 200.0, WRONG),
        (Outside(cores=1.0), "rates differ", 200.0, WRONG),  # nobody else uses the cores
    ],
)
def test_only_where_others_use_the_cores_a_diagnosis_may_be_undecided(outside, undecided, best, verdict) -> None:
    truth = Truth(100.0, ((Change(name="batch", settings={}), best),))
    situation = Situation(id="", cause="", is_real=True, device="cpu", outside=outside)
    assert verdict_on(situation, truth, {"fixes": [], "undecided": undecided}) == verdict


# Results


def judged(id_: str, **other: Any) -> dict[str, Any]:
    result = {"situation": {"id": id_}, "verdict": RIGHT, "error": 0.02}
    return result | {"seed": 5, "version": "0.2.0", "commit": "abc"} | other


def test_a_results_file_is_continued_only_by_the_same_seed_and_program(tmp_path: Path) -> None:
    results = tmp_path / "unseen.jsonl"
    others = [judged("disk-00", seed=6), judged("disk-00", commit="abd"), judged("disk-00", version="0.1.0")]
    before = judged("disk-00")
    before.pop("version")  # as results were that have no version yet
    results.write_text("".join(json.dumps(each) + "\n" for each in [*others, before]))
    program = {"seed": 5, "version": "0.2.0", "commit": "abc"}
    assert _read_results(results, program) == {}
    with results.open("a") as file:
        file.write(json.dumps(judged("disk-00")) + "\n")
    assert _read_results(results, program) == {"disk-00": judged("disk-00")}


def test_each_seed_and_each_program_has_a_line_of_its_own() -> None:
    results = [
        judged("disk-00", verdict=WRONG, error=3.0),
        judged("disk-00"),  # judged again: this one counts
        judged("disk-01", verdict=UNDECIDED, error=0.2),
        judged("disk-00", seed=6, verdict=WRONG),
        judged("disk-00", commit="abd"),
        {"situation": {"id": "disk-02"}, "seed": 5, "commit": "abc", "version": "0.2.0"},  # its truth alone
    ]
    assert unseen_table(results)[2:] == [
        "| 5 | 0.2.0 abc | 2 | 2 | 1 | 1 | 11.0% | 20% |",
        "| 6 | 0.2.0 abc | 1 | 0 | 0 | 1 | 2.0% | 2% |",
        "| 5 | 0.2.0 abd | 1 | 1 | 0 | 1 | 2.0% | 2% |",
    ]


# Planting

BUSY = "import os\nwhile os.times().user < 0.2: pass"


def be_busy() -> None:
    """Let a child of this process compute."""
    subprocess.run([sys.executable, "-c", BUSY], check=True)


def figure(path: Path, name: str) -> int:
    """Return a figure of a control group."""
    return int(next(line.split()[-1] for line in path.read_text().splitlines() if name in line.split()))


def plant_here(outside: Outside, folder: Path, work: Path) -> Any:
    return planted(outside, folder, work=work, emulator_pid=0)


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Nothing that was planted is left after the test."""
    cores = os.sched_getaffinity(0)
    yield
    assert left_of(os.getpid()) == []
    assert os.sched_getaffinity(0) == cores
    for name in NAMES:
        assert PREFIX not in str(own_group(name))


def left_of(pid: int) -> list[str]:
    """What a benchmark has left on this machine: groups, swap files, programs."""
    groups = [str(group) for name in NAMES for group in own_group(name).glob(f"{PREFIX}{pid}")]
    swaps = [line for line in Path("/proc/swaps").read_text().splitlines() if f"/{pid}/" in line]
    return groups + swaps


@as_root
def test_a_quota_limits_the_run_and_its_children(nothing_is_left, tmp_path: Path) -> None:
    group = own_group("cpu") / f"{PREFIX}{os.getpid()}"
    with plant_here(Outside(cores=0.05), tmp_path, tmp_path):  # less than a busy machine has for it anyway
        before = figure(group / "cpu.stat", "nr_throttled")
        be_busy()
        assert figure(group / "cpu.stat", "nr_throttled") > before


@as_root
def test_nothing_is_left_of_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    outside = "Outside(cores=0.5, paged_out_bytes_per_s=1e8, neighbours=1, disk_bytes_per_s=1e7, disk_neighbours=1)"
    program = f"""
import os, subprocess, sys, time
from pathlib import Path
from benchmarks.situations.outside import Outside
from benchmarks.situations.planting import planted
work = Path({str(tmp_path)!r}) / str(os.getpid())
work.mkdir()
with planted({outside}, work, work=work, emulator_pid=0) as guardian:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    guardian.ends(child.pid)
    print(guardian._process.pid, child.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        guardian, child = map(int, benchmark.stdout.readline().split())
        programs = [int(pid) for pid in Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()]
        assert len(programs) == 4
        assert len(left_of(benchmark.pid)) == 3
        benchmark.send_signal(signal.SIGKILL)
    assert end_soon([guardian])
    assert left_of(benchmark.pid) == []
    assert end_soon([*programs, child])


def test_programs_end_with_their_guardian() -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    guardian = Guardian().__enter__()
    pid = int(guardian.start([sys.executable, "-c", program]))
    guardian._process.kill()
    guardian._process.wait()
    assert end_soon([pid])
    with pytest.raises(BrokenPipeError):
        guardian.__exit__(None, None, None)
