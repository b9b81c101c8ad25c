"""`dataprep map` killed at random moments and run again: for the tests and, at full count, for the soak."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dataprep.storage import open_storage
from tests.support.builds import command, digests
from tests.support.crashes import workers_of
from tests.support.mapped import SLOW_S

COLUMN = "size"
WORKERS_KILLED = 0.4
"""Share of the kills that hit a worker, whose run goes on to its end."""
FUNCTION = "tests.support.mapped:sizes"


def map_words(root: Path, *more: object) -> list[object]:
    """Words of the command that makes the column."""
    return ["map", root, "--column", f"{COLUMN}={FUNCTION}", *more]


def column_digests(root: Path) -> dict[str, str]:
    """Digests of the files of the column, and of what a run has left."""
    return {
        name: digest for name, digest in digests(root).items() if name.split("/")[0] in ("columns", "_map", "_build")
    }


def kill_a_worker(pid: int) -> None:
    """Kill a worker of the pool of a run."""
    for worker in workers_of(pid)[:1]:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def kill_maps(
    rng: random.Random,
    root: Path,
    expected: dict[str, str],
    kills: int,
    runs: Sequence[Sequence[object]],
    kill_worker: Callable[[int], object] = kill_a_worker,
) -> int:
    """Kill runs, or a worker of one, at random moments until `kills` have hit; let them finish, and compare the column.

    Args:
        root: The dataset, without the column.
        expected: `column_digests` of an undisturbed run.
        runs: More words for each of the runs that are there at the same time, such as the parts.
        kill_worker: Kills a worker of the run with this process.

    Returns:
        How often the column was complete, and begun again.
    """
    finished, longest_s = 0, 4.0
    environment = {**os.environ, SLOW_S: "0.05"}
    while kills > 0:
        started_s = time.monotonic()
        processes = [
            subprocess.Popen(
                command(*map_words(root, *more)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True, env=environment,
            )
            for more in runs
        ]  # fmt: skip
        victim, is_killed = rng.choice(processes), False
        with suppress(subprocess.TimeoutExpired):
            victim.wait(timeout=rng.uniform(0.3, longest_s))
        if victim.poll() is None:
            kills -= 1
            if rng.random() < WORKERS_KILLED:
                kill_worker(victim.pid)
            else:
                is_killed = True
                os.killpg(victim.pid, signal.SIGKILL)
        for process in processes:
            _, said = process.communicate(timeout=300)
            assert (is_killed and process is victim) or process.returncode == 0, said.decode()[-2000:]
        if victim.returncode == 0:
            longest_s = time.monotonic() - started_s
        seen = column_digests(root)
        assert {name for name in seen if name.startswith("columns/")} <= expected.keys()
        if f"columns/{COLUMN}/column.json" in seen:
            _run_to_the_end(root, runs[0])
            assert column_digests(root) == expected
            finished += 1
            open_storage(str(root)).delete_tree("columns")
    _run_to_the_end(root, runs[0])
    assert column_digests(root) == expected
    return finished


def _run_to_the_end(root: Path, more: Sequence[object]) -> None:
    run = subprocess.run(command(*map_words(root, *more)), capture_output=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr.decode()[-2000:]
