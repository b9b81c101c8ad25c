"""Kill builds and look at what they leave: used by the tests and, at full count, by the soak."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from dataprep.builder.output import open_build, read_claim
from dataprep.builder.receipts import finished_shards
from dataprep.builder.references import references_of, shard_plan
from dataprep.builder.shard import image_names
from dataprep.dataset.paths import CARDS
from dataprep.formats import FORMATS
from dataprep.host.cpu import children
from dataprep.storage import open_storage
from tests.support import stopping
from tests.support.builds import command, dataprep, digests, is_finished
from tests.support.stopping import STOPPED
from tests.support.waiting import end_soon


class Reader:
    """Looks at a growing dataset all the while, as a reader might, and keeps whatever it should not see."""

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
    manifest = output / "dataset.json"
    stood = manifest.exists()
    visible = [name for name in _visible_files(output) if name not in CARDS]  # of no digest
    missing = [name for name in expected if not name.endswith(" ->") and not (output / name).exists()]
    if stood and missing and manifest.exists():
        faults.append(f"a manifest stands, but {missing[:3]} do not")
    faults += [f"{name} is visible and no file of the result" for name in visible if name not in expected]
    if not shallow:
        found = digests(output) if output.exists() else {}
        faults += [f"{name} is partial" for name in visible if found.get(name) not in (None, expected.get(name))]
    return faults


def _visible_files(output: Path) -> Iterator[str]:
    """Names of what a reader may open: links and `_build/` aside. Folders may go while they are walked."""
    for folder, folders, names in os.walk(output):
        if "_build" in folders:
            folders.remove("_build")
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                yield str(path.relative_to(output))


def receipts_of(url: object) -> set[int]:
    """Indexes of the shards that the build under way has receipts for."""
    storage = open_storage(str(url))
    claim = read_claim(storage)
    return set() if claim is None else finished_shards(storage, claim.root)


def kill_often(
    rng: random.Random, arguments: list[object], output: Path, expected: dict[str, str], *, workers: int, kills: int
) -> tuple[int, int]:
    """Kill the build, its parent or one of its workers, at random moments and run it again, until `kills` have hit.

    A build that reaches its end is compared, and begun anew from nothing while there are kills left.

    Returns:
        Builds that reached their end, and the most shards that one kill left to do again.
    """
    command_line = [*arguments, "--workers", workers]
    longest_s, left, finished, most_redone = 4.0, kills, 0, 0
    while left > 0:
        before = receipts_of(output)
        hit, wall_s = _kill_once(rng, command_line, longest_s)
        left -= hit
        assert not unfinished_faults(output, expected), unfinished_faults(output, expected)
        if is_finished(output):
            if hit:  # maybe between the manifest and the end of tidying up: a rerun does what is left of that
                again = dataprep(*command_line)
                assert again.returncode == 0, again.stderr[-2000:]
            found = digests(output)
            assert found == expected, sorted(found.items() ^ expected.items())[:6]
            if not hit and not before:
                longest_s = wall_s
            finished += 1
            if left > 0:
                _remove(output)
            continue
        assert before <= receipts_of(output)
        in_flight = _shards_in_flight(output)
        assert in_flight <= workers, f"{in_flight} shards without a receipt after a kill of {workers} workers"
        most_redone = max(most_redone, in_flight)
    run = dataprep(*command_line)
    assert run.returncode == 0, run.stderr[-2000:]
    assert digests(output) == expected
    return finished + 1, most_redone


def _kill_once(rng: random.Random, arguments: list[object], longest_s: float) -> tuple[bool, float]:
    """Whether a running process was hit, and how long the build ran."""
    started_s = time.monotonic()
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=rng.uniform(0.2, longest_s))
    workers = workers_of(process.pid)
    if workers and rng.random() < 0.4:
        killed = _kill(rng.choice(workers))
        process.wait(timeout=800)  # a lost worker is replaced: the build goes on to its end
        assert process.returncode == 0, "a build did not survive the death of one worker"
    elif process.poll() is None:
        process.kill()
        killed = process.wait() == -signal.SIGKILL
        for worker in workers:
            assert end_soon([worker]), f"worker {worker} outlived its parent"
    else:
        assert process.returncode == 0, "a build failed that nobody had killed"
        killed = False
    return killed, time.monotonic() - started_s


def workers_of(pid: int) -> list[int]:
    """Return the worker processes of a build: the children of its fork server."""
    return [worker for child in children(pid) if _is_server(child) for worker in children(child)]


def _is_server(pid: int) -> bool:
    try:
        return b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _shards_in_flight(output: Path) -> int:
    """Shards of which anything stands, published or spooled, and no receipt."""
    claim = read_claim(open_storage(str(output)))
    if claim is None:
        return 0
    plan, build = claim.plan, open_build(str(output), claim.root)
    standing = "\n".join(str(path) for path in output.rglob("*") if path.is_file())
    shard_format = FORMATS[plan.options.format]
    begun = set()
    for index in range(plan.num_shards):
        shard, (split, _) = shard_plan(build, index), plan.locate(index)
        if shard_format.one_file_per_image:  # with the split and the folder: both have files of the same name
            names = [f"/{name}" for name in image_names(plan, split, references_of(build, index))]
        else:
            named = shard_format.shard_file(plan.options.name, split.name, shard.split_index, len(split.shard_samples))
            names = [Path(named).name]
        if any(name in standing for name in names):
            begun.add(index)
    return len(begun - receipts_of(output))


def stop_everywhere(
    arguments: list[object],
    output: Path,
    expected: dict[str, str],
    every: int = 1,
    *,
    faults: Callable[[], list[str]] | None = None,
    start_over: Callable[[], object] | None = None,
) -> int:
    """Stop a command before and after every n-th commit boundary, rerun, compare. Returns the stops made.

    Args:
        arguments: The command; by default it builds `output`, which is not there.
        output: The dataset.
        expected: `digests` of what an undisturbed run leaves.
        every: Distance between two stops.
        faults: What a reader sees and may not, by default `unfinished_faults`.
        start_over: Makes `output` what the command begins with, by default nothing.
    """
    stops = 0
    faults = faults or partial(unfinished_faults, output, expected)
    start_over = start_over or partial(_remove, output)
    for when in ("before", "after"):
        for boundary in itertools.count(1, every):
            run = stopping.run(arguments, boundary=boundary, when=when)
            assert run.code in (0, STOPPED), run.stderr[-2000:]
            assert not (found := faults()), f"stopped {when} boundary {boundary}: {found}"
            if run.code == 0:
                break
            stops += 1
            again = stopping.run(arguments)
            assert again.code == 0, again.stderr[-2000:]
            assert digests(output) == expected, f"stopped {when} boundary {boundary}"
            start_over()
        start_over()
    return stops


def _remove(output: Path) -> None:
    """At once for whoever looks at it."""
    removed = output.with_name(f"{output.name}.removed")
    output.rename(removed)
    shutil.rmtree(removed)
