"""Kill builds and look at what they leave: the checks of Show 4, used by the tests and, at full count, by the soak."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from dataprep.storage import open_storage
from dataprep.workspace import finished_shards
from tests.support.builds import command, dataprep, digests, is_finished
from tests.support.stopping import STOPPED


class Reader:
    """Looks at a growing dataset all the while, as an impatient user would, and keeps whatever it should not see."""

    def __init__(self, output: Path, expected: dict[str, str]) -> None:
        self._output, self._sizes = output, {}
        self._expected = expected
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.wrong += unfinished_faults(self._output, self._expected)

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.wrong += unfinished_faults(self._output, self._expected, shallow=True)


def unfinished_faults(output: Path, expected: dict[str, str], *, shallow: bool = False) -> list[str]:
    """What a reader may never see, finished or not: a visible file that is not, byte for byte, one of the result's."""
    faults = []
    manifest = (output / "dataset.json").exists()
    visible = []
    for path in output.rglob("*") if output.exists() else []:
        name = str(path.relative_to(output))
        if not name.startswith("_build") and path.is_file() and not path.is_symlink():
            visible.append(name)
    missing = [name for name in expected if not name.endswith(" ->") and not (output / name).exists()]
    if manifest and missing:
        faults.append(f"a manifest stands, but {missing[:3]} do not")
    for name in visible:
        if name not in expected:
            faults.append(f"{name} is visible and no file of the result")
    if not shallow:
        found = digests(output) if output.exists() else {}
        faults += [f"{name} is partial" for name in visible if found.get(name) not in (None, expected.get(name))]
    return faults


def kill_until_done(
    rng: random.Random,
    arguments: list[object],
    output: Path,
    expected: dict[str, str],
    *,
    workers: int,
    typical_s: float,
    kills: int,
) -> tuple[int, int]:
    """Kill the build (its parent or one of its workers) at random moments up to `kills` times, rerun to the end.

    Returns:
        Kills that hit a running build, and shards that were built more than once.
    """
    hits = redone = 0
    for _ in range(kills):
        before = finished_shards(open_storage(str(output))) if output.exists() else set()
        if _kill_once(rng, [*arguments, "--workers", workers], typical_s):
            hits += 1
        assert not unfinished_faults(output, expected), unfinished_faults(output, expected)
        if is_finished(output):
            break
        assert before <= finished_shards(open_storage(str(output)))
        in_flight = _shards_in_flight(output)
        assert in_flight <= workers, f"{in_flight} shards without a receipt after a kill of {workers} workers"
        redone += in_flight
    run = dataprep(*arguments, "--workers", workers)
    assert run.returncode == 0, run.stderr[-2000:]
    assert digests(output) == expected
    return hits, redone


def _kill_once(rng: random.Random, arguments: list[object], typical_s: float) -> bool:
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(rng.uniform(0.2, typical_s))
    workers = _children(process.pid)
    if workers and rng.random() < 0.4:
        victim = rng.choice(workers)
        killed = _kill(victim)
        process.wait(timeout=120)  # a lost worker is replaced: the build goes on to its end
        assert process.returncode == 0, "a build did not survive the death of one worker"
        return killed
    killed = _kill(process.pid)
    process.wait()
    for worker in workers:
        _wait_gone(worker)
    return killed and process.returncode == -signal.SIGKILL


def _children(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        return [c for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
    except OSError:
        return []


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _wait_gone(pid: int, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"worker {pid} outlived its parent"
        time.sleep(0.01)


def _shards_in_flight(output: Path) -> int:
    """Shards begun and without a receipt: published ones and those still spooled, by their names."""
    names = {path.name for path in output.rglob("*-of-*") if path.is_file()}
    indexes = {int(name.split("-of-")[0].rsplit("-", 1)[1]) for name in names if ".tar" in name or "tfrecord" in name}
    return len(indexes - finished_shards(open_storage(str(output))))


def stop_everywhere(arguments: list[object], output: Path, expected: dict[str, str], every: int = 1) -> int:
    """Stop a fresh build before and after every n-th commit boundary, rerun, compare. Returns the stops made."""
    stops = 0
    for when in ("before", "after"):
        boundary = 1
        while True:
            run = subprocess.run(
                [sys.executable, "-m", "tests.support.stopping", str(boundary), when, *map(str, arguments)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode in (0, STOPPED), run.stderr[-2000:]
            assert not unfinished_faults(output, expected), unfinished_faults(output, expected)
            if run.returncode == 0:
                break
            stops += 1
            again = dataprep(*arguments, "--workers", 1)
            assert again.returncode == 0, again.stderr[-2000:]
            assert digests(output) == expected, f"stopped {when} boundary {boundary}"
            _remove(output)
            boundary += every
        _remove(output)
    return stops


def _remove(output: Path) -> None:
    subprocess.run(["rm", "-rf", str(output)], check=True)
