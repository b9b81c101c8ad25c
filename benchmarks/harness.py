"""What every benchmark shares: its options, its folder, contenders that take turns, and its report.

A benchmark is a list of contenders, each a function that runs once and returns figures, and a table in `tables.py`.
`in_turns` runs them round after round, so that whatever else the machine does slows all of them alike; `report` prints
the table and writes a JSON file with the machine and the commit. `results/` keeps such files, and tests compare the
documents with them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import TABLES
from dataprep.host.processes import WORKER_ENVIRONMENT
from dataprep.host.versions import machine_document

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "benchmarks/peers"
PEERS_PYTHON = ROOT / ".bench-venv/bin/python"
DATAPREP = Path(sys.executable).with_name("dataprep")
ROUNDS = 5

Name = TypeVar("Name")
Figures = TypeVar("Figures")


def common_options(description: str | None, *, rounds: int = ROUNDS) -> argparse.ArgumentParser:
    """Return a parser with the options of most benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, help="number of images of the corpus; default: all, 4,000 of demo data")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default: {rounds}, after a warm-up")
    parser.add_argument("--no-warm-up", action="store_true", help="measure the first round, too")
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks", help="folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="file to which the figures are written as JSON")
    return parser


@contextmanager
def work_folder(options: argparse.Namespace, name: str) -> Iterator[Path]:
    """Make a folder below --work, and remove it at the end."""
    work: Path = options.work.resolve() / f"{name}-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        yield work
    finally:
        shutil.rmtree(work)


def in_turns(
    contenders: Mapping[Name, Callable[[], Figures]], rounds: int, *, warm_up: bool
) -> dict[Name, list[Figures]]:
    """Run the contenders in turns, and return the figures of each in the order of the rounds."""
    found: dict[Name, list[Figures]] = {name: [] for name in contenders}
    for number in range(0 if warm_up else 1, rounds + 1):
        print(f"round {number} of {rounds}" if number else "warm-up", file=sys.stderr)
        for name, contender in contenders.items():
            os.sync()  # no contender waits for data that another one left to be written
            figures = contender()
            if number:
                found[name].append(figures)
    return found


def levelled_environment(**more: str) -> dict[str, str]:
    """Return the environment variables of every contender, with those that some of them need.

    PYTHONDONTWRITEBYTECODE is left out: with it every process compiles modules of ours and of packages again. The
    folder of a peer's script is named, because no worker of ours imports from such a folder by itself.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "NO_GCE_CHECK": "true"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | WORKER_ENVIRONMENT | quiet | more | {"PYTHONPATH": f"{ROOT}:{PEERS}"}


def report(name: str, document: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print the table of a benchmark, and write what it measured, with the machine and the commit."""
    document = machine_facts() | document
    if name in TABLES:
        print(*TABLES[name](document), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def machine_facts() -> dict[str, Any]:
    """Return what a measurement depends on besides its input: the machine, its software, and the commit.

    It may be called after the measurement, so it does not say what other programs did before.
    """
    machine = {name: value for name, value in machine_document(0.0).items() if name != "busy_cores_before"}
    return {"machine": machine, "commit": commit()}


def commit() -> str:
    """Return the commit of this checkout, with `+` where files differ from it, other than results of benchmarks."""

    def told(*words: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = told("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results")
    return told("describe", "--always", "--exclude=*") + ("+" if changed else "")
