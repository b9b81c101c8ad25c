"""Hostile values for every option and argument of every command: a normal end, or one line that says what is wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests.attacks import Attack
from tests.support.adoption import adopt_here
from tests.support.flags import EXIT_CODES, Call, all_calls

REPOSITORY = Path(__file__).parents[2]
SAMPLE = 8
"""Calls of `dataprep` that `make test` makes; others each time that the list of parameters changes."""


def every_flag(folder: Path, count: int | None = None) -> str:
    """Make all calls, or some of them."""
    _prepare(folder)
    calls = list(all_calls(folder) if count is None else all_calls(folder, ()))
    if count is not None:  # without builds that write originals first, each of which takes as long as all others
        quick = [call for call in calls if "imagenet-fake" not in call.arguments]
        calls = random.Random(len(calls)).sample(quick, count)
    (folder / "calls.json").write_text(json.dumps([(call.program, call.arguments) for call in calls]))
    environment = {"HOME": folder / "work", "XDG_CACHE_HOME": folder / "work" / "cache", "PYTHONPATH": REPOSITORY}
    before = _names(folder)
    subprocess.run(
        [sys.executable, "-m", "tests.support.flags", str(folder / "calls.json"), str(folder / "report.json")],
        cwd=folder / "work",
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        check=True,
    )
    ends = [json.loads(line) for line in (folder / "report.json").read_text().splitlines()]
    wrong = [fault for call, end in zip(calls, ends, strict=True) if (fault := _fault(call, *end))]
    assert not wrong, f"{len(wrong)} of {len(calls)} calls\n" + "\n".join(wrong)
    assert _names(folder) - before <= {"report.json"}, "something was written that no call was told to write"
    return f"{len(calls):,} calls, each with a normal end"


def _prepare(folder: Path) -> None:
    """A file, a folder, a dataset of two images, and the folder in which the calls are made."""
    (folder / "file").write_text("not what you think")
    for name in ("folder", "work", "data/train/a", "data/train/b"):
        (folder / name).mkdir(parents=True)
    for name in "ab":
        Image.new("RGB", (40, 30), "grey").save(folder / f"data/train/{name}/{name}.jpg")
    adopt_here(folder / "data")


def _names(folder: Path) -> set[str]:
    """Everything but what lies in the folder of the calls, or in the one that some calls are told to write to."""
    theirs = {folder / "work", folder / "folder"}
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not theirs & set(path.parents)}


def _fault(call: Call, how: int | str, out: str, err: str) -> str:
    """What is wrong with the end of a call; nothing where it is as it should."""
    lines = [line for line in err.strip().splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "no word"
    if how not in EXIT_CODES or "Traceback" in err:
        return f"{call}: {how}: {last}"
    if how == 2 and not any(line.startswith((f"{call.program}: ", "Error: ")) for line in lines):
        return f"{call}: exit code 2, and no line that says why: {last}"
    return "" if how == 0 or lines or out else f"{call}: exit code {how} without a word"


ATTACKS = [
    Attack("hostile values of some flags", lambda folder: every_flag(folder, SAMPLE), sampled=True),
    Attack("hostile values of every flag", every_flag),
]
