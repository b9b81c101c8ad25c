"""Two builds at one place, suspended and resumed at random: what stands in the end is one whole dataset of one plan."""

from __future__ import annotations

import atexit
import random
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

from dataprep.demo.make import write_demo
from dataprep.storage import open_storage
from tests.support import stopping
from tests.support.builds import FORMATS, build_arguments, digests
from tests.support.finished import verify_here
from tests.support.picture_web import laion_arguments, picture_web
from tests.support.stopping import ENDED, RUNNING, SUSPENDED, Ended, Running, Stops

PLANS: dict[str, tuple[object, ...]] = {"seed 0": (), "seed 1": ("--seed", 1), "smaller": ("--resize", 64)}
LAION_PLANS: dict[str, tuple[object, ...]] = {"as it is": (), "smaller": ("--image-size", 32)}
KINDS = (*FORMATS, *FORMATS, "laion webdataset", "laion tfrecord")
"""What is built; the formats alone from archives."""
BOUNDARIES = 130
"""About as many as most of these builds have."""
SLICE_S = 1.5
"""One that waits for the other, which is suspended, runs no longer before that one has its turn."""
LONGEST_S = 800
_for_all = ExitStack()
"""What all schedules of this process share; it ends with the process."""
atexit.register(_for_all.close)


@dataclass(frozen=True, slots=True)
class Line:
    """One command line of a schedule."""

    kind: str
    plan: str
    output: str
    overwrite: bool

    def words(self, *more: object) -> list[object]:
        return [*_words(self.kind, self.plan, self.output), *(["--overwrite"] if self.overwrite else []), *more]


def schedule(number: int, folder: Path, bucket: str | None) -> str:
    """Run one schedule; a line that says how it ended.

    Args:
        number: Decides all of it but how fast the machine is.
        folder: Empty.
        bucket: URL of a bucket, for every second schedule; None for the disk alone.
    """
    rng = random.Random(f"two builds {number}")
    kind = rng.choice(KINDS)
    in_bucket = bucket is not None and number % 2 == 1
    output = f"{bucket}/{uuid4().hex}" if in_bucket else str(folder / "out")
    plans = list(PLANS if kind in FORMATS else LAION_PLANS)
    lines = [Line(kind, rng.choice(plans), output, rng.random() < share) for share in (0.3, 0.7)]
    expected = {line.plan: reference(kind, line.plan) for line in lines}
    ends = _run(rng, lines)
    told = "; ".join(
        f"{line.plan}{' --overwrite' if line.overwrite else ''}: {end.code} {end.last_line[:160]}"
        for line, end in zip(lines, ends, strict=True)
    )
    ended = f"{kind}, {'bucket' if in_bucket else 'disk'}; {told}"
    for end in ends:
        assert "Traceback" not in end.stderr, f"{ended}\n{end.stderr[-3000:]}"
        assert end.code in (0, 1, 2, -signal.SIGKILL), ended
        assert end.code <= 0 or end.last_line.startswith("dataprep: "), f"{ended}\n{end.stderr[-2000:]}"
    again = _finish(lines, ends, expected, ended)
    if in_bucket:
        open_storage(output.rpartition("/")[0]).delete_tree(output.rpartition("/")[2])
    return f"{ended}{again}"


@cache
def reference(kind: str, plan: str) -> dict[str, str]:
    """Digests of a dataset that was built alone, and verified."""
    output = Path(tempfile.mkdtemp(prefix="two-builds-")) / "out"
    alone = stopping.run(_words(kind, plan, str(output)))
    assert alone.code == 0, alone.stderr
    assert not verify_here(output, deep=True).findings
    return digests(output)


def _finish(lines: list[Line], ends: list[Ended], expected: dict[str, dict[str, str]], ended: str) -> str:
    """Compare what stands; where it is no whole dataset, a clear error must have said so, and a rerun must make one."""
    standing = digests(lines[0].output)
    if standing in expected.values():
        return ""
    if "dataset.json" in standing:
        left = {name: digest for name, digest in standing.items() if not name.startswith("_build/")}
        held = [line for line in lines if left == expected[line.plan]]
        assert held, f"{ended}: no dataset of one plan: {sorted(left)}"
        line, words = held[0], _words(held[0].kind, held[0].plan, held[0].output)
    else:
        overwriting = [end for line, end in zip(lines, ends, strict=True) if line.overwrite and end.code]
        assert overwriting or all(end.code for end in ends), f"{ended}: no dataset, and one said that it is whole"
        line = lines[1]
        words = line.words()
    again = stopping.run(words)
    if again.code and "--overwrite" in again.stderr:
        again = stopping.run([*words, "--overwrite"])
    assert again.code == 0, f"{ended}; again: {again.stderr[-1500:]}"
    found, due = digests(line.output), expected[line.plan]
    assert found == due, f"{ended}; again, another dataset: {sorted(found.items() ^ due.items())[:6]}"
    return f"; {'leftovers' if 'dataset.json' in standing else 'nothing whole'}, whole after a rerun"


def _run(rng: random.Random, lines: list[Line]) -> list[Ended]:
    """Let them run in turns, each to one of its boundaries or to a random moment."""
    running = [_start(rng, lines[0])]
    try:
        _turn(rng, running[0])
        running.append(_start(rng, lines[1]))
        while any(each.state() != ENDED for each in running):
            suspended = [each for each in running if each.state() == SUSPENDED]
            awake = [each for each in running if each.state() == RUNNING]
            if awake and (not suspended or rng.random() < 0.7):
                _turn(rng, rng.choice(awake))
            if suspended and (not awake or rng.random() < 0.3):
                rng.choice(suspended).send(signal.SIGCONT)
    finally:
        for each in running:
            each.send(signal.SIGKILL)
    return [each.ended() for each in running]


def _turn(rng: random.Random, running: Running) -> None:
    """Wait for its next boundary, or suspend or, now and then, kill it at any moment."""
    chance = rng.random()
    state = running.wait(SLICE_S if chance < 0.6 else rng.uniform(0, 0.4))
    if state == RUNNING and 0.6 <= chance < 0.9:
        running.send(signal.SIGSTOP)
    elif state != ENDED and chance >= 0.97:
        running.send(signal.SIGKILL)
        running.wait(LONGEST_S)


def _start(rng: random.Random, line: Line) -> Running:
    boundaries = sorted(rng.sample(range(1, BOUNDARIES), rng.choice((0, 1, 2, 4))))
    stops = Stops(boundaries, rng.choice(("before", "after")), suspend=True, requests="://" in line.output)
    return stopping.start(line.words(), stops)


def _words(kind: str, plan: str, output: str) -> list[object]:
    if kind in FORMATS:
        return build_arguments("coco-dup5", _originals(), output, kind, "--num-shards", 3, *PLANS[plan])
    return laion_arguments(_table(), output, kind.removeprefix("laion "), "--workers", 1, *LAION_PLANS[plan])


@cache
def _originals() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="two-builds-"))
    write_demo("coco", folder / "coco", images=12, odd=False)
    return folder / "coco"


@cache
def _table() -> Path:
    web = _for_all.enter_context(picture_web())
    web.faults = {3: 404}
    return web.write_table(Path(tempfile.mkdtemp(prefix="two-builds-")) / "urls.parquet", 25)
