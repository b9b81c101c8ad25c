"""Planted mistakes, each of which the tests that are named beside it must find: `python tests/mutants.py`.

Every mutant is planted alone in a copy of the tree, and its tests run until the first fails. What was judged is kept in
build/mutants.jsonl, so an interrupted run continues; `--anew` starts over, and words choose the files that contain one.
It exits with 1 where a mutant was not found, and with 2 where its text is not in the file exactly once.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/mutants.csv"
TREE = ROOT / "build/mutants"
JUDGED = ROOT / "build/mutants.jsonl"
LONGEST_S = 100
"""A mutant that hangs for so long is found, too."""
IMPORTED = (
    "pytest",
    "hypothesis",
    "google.cloud.storage",
    "numpy",
    "pyarrow.parquet",
    "pyarrow.compute",
    "PIL.Image",
    "simplejpeg",
    "rich.progress",
    "yaml",
    "jinja2",
)
"""Libraries that are imported once, before a process is forked for each mutant."""


class Mutant(NamedTuple):
    """A mistake in one place of a file."""

    file: str
    right: str
    wrong: str
    test: str = ""
    """Empty: the test of the module's own path and name."""

    @property
    def tests(self) -> str:
        path = Path(self.file)
        return self.test or f"tests/{path.parent}/test_{path.stem.lstrip('_')}.py"

    @property
    def fault(self) -> str:
        """Why the mutant cannot be planted; empty if it can."""
        if not (ROOT / self.file).exists():
            return f"{self.file}: there is no such file"
        count = (ROOT / self.file).read_text().count(self.right)
        if count != 1:
            return f"{self.file}: {self.right!r} is {count} times in it, expected once"
        missing = not (ROOT / self.tests.partition("::")[0]).exists()
        return f"{self.file}: its tests {self.tests} do not exist" if missing else ""


def mutants() -> list[Mutant]:
    """Read the table."""
    with TABLE.open(newline="") as file:
        return [Mutant(*row) for row in csv.reader(file)][1:]


def copy_tree() -> None:
    """Copy what git tracks, and the extensions that were compiled beside it."""
    shutil.rmtree(TREE, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    compiled = [str(path.relative_to(ROOT)) for room in ("dataprep", "loaders") for path in (ROOT / room).rglob("*.so")]
    for name in filter(None, [*listed, *compiled]):
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, TREE / name, follow_symlinks=False)


def is_found(mutant: Mutant) -> bool:
    """Plant a mutant, run its tests, and take it out again."""
    path = TREE / mutant.file
    right = path.read_text()
    path.write_text(right.replace(mutant.right, mutant.wrong))
    try:
        code = run_tests(mutant.tests)
    finally:
        path.write_text(right)
    if code not in (0, 1, 2, 3):
        raise RuntimeError(f"{mutant}: pytest ended with {code}")
    return code != 0


def run_tests(tests: str) -> int:
    """Run tests in a process forked from this one; return pytest's exit code, 3 where they hung."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        os.chdir(TREE)
        sys.path[0] = str(TREE)
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]  # its programs would run the code that was not changed
        with open(TREE / "log.txt", "w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        code = 4
        try:
            import pytest

            words = [
                "-n",
                "0",
                "-x",
                "-q",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                "-p",
                "no:cacheprovider",
                "--no-header",
                "--tb=line",
                "--durations=1",
            ]
            code = int(pytest.main([*words, tests]))
        finally:
            os._exit(code)
    ends_s = time.monotonic() + LONGEST_S
    while time.monotonic() < ends_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return max(os.waitstatus_to_exitcode(status), -1) % 256
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 3


def main(words: list[str]) -> int:
    """Judge every mutant that was not judged before."""
    files = [word for word in words if word != "--anew"]
    chosen = [each for each in mutants() if not files or any(file in each.file for file in files)]
    if faults := list(filter(None, (each.fault for each in chosen))):
        print("\n".join(faults), file=sys.stderr)
        return 2
    if "--anew" in words:
        JUDGED.unlink(missing_ok=True)
    judged = {}
    if JUDGED.exists():
        judged = {Mutant(*each["mutant"]): each["found"] for each in map(json.loads, JUDGED.read_text().splitlines())}
    copy_tree()
    os.environ.update(OPENBLAS_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false")  # fork has one thread
    for name in IMPORTED:
        importlib.import_module(name)
    for number, mutant in enumerate(chosen, 1):
        if mutant not in judged:
            judged[mutant] = is_found(mutant)
            with JUDGED.open("a") as file:
                file.write(json.dumps({"mutant": mutant, "found": judged[mutant]}) + "\n")
        print(f"[{number}/{len(chosen)}] {'found' if judged[mutant] else 'NOT FOUND'}: {mutant.file}", flush=True)
    missed = [each for each in chosen if not judged[each]]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutants were found", *missed, sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
