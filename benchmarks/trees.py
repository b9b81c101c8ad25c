"""This tree compared with another checkout: start, import, build and loader of both, in turns.

    git worktree add ../before 1f0e65d && python benchmarks/trees.py ../before --json trees.json

Every run is a process of its own, with the packages of this environment. Rounds go A B A B …, so that a slow minute of
the machine slows both trees; the table shows medians, the lowest and highest run, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]

EPOCHS = """
import sys, time
started_s = time.perf_counter()
from loaders import open_loader
with open_loader(sys.argv[1], batch_size=128, image_size=224, threads=2) as loader:
    images = 0
    for epoch in range(3):
        for batch in loader:
            if not images:
                first_s = time.perf_counter()
            images += len(batch.keys)
    rate = (images - 128) / (time.perf_counter() - first_s)
print(rate if sys.argv[2] == "rate" else first_s - started_s)
"""
"""Program that prints the images/s of three epochs after the first batch, or the seconds until the first batch."""


def python(tree: Path, *arguments: object) -> tuple[float, str]:
    """Run a Python process of a tree; return its seconds and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    return time.perf_counter() - started_s, done.stdout


def measures(originals: Path, work: Path, images: int) -> dict[str, Callable[[Path], float]]:
    """Return the functions that measure a tree, by names with units."""
    dataset = work / "dataset"

    def build(tree: Path) -> float:
        shutil.rmtree(dataset, ignore_errors=True)
        os.sync()
        words = ["build", "imagenet", "--source", originals, "--output", dataset, "--format", "webdataset"]
        elapsed_s, _ = python(tree, "-m", "dataprep", *words, "--allow-partial", "--workers", 2, "--num-shards", 2)
        return images / elapsed_s

    return {
        "dataprep --help, s": lambda tree: python(tree, "-m", "dataprep", "--help")[0],
        "import loaders, s": lambda tree: python(tree, "-c", "from loaders import open_loader")[0],
        "build imagenet, images/s": build,
        "first batch, s": lambda tree: float(python(tree, "-c", EPOCHS, dataset, "first")[1]),
        "loader, images/s": lambda tree: float(python(tree, "-c", EPOCHS, dataset, "rate")[1]),
    }


def main() -> None:
    """Measure both trees in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="checkout to compare with")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5, help="number of measured rounds, after a warm-up")
    parser.add_argument("--json", type=Path, help="file to which the figures of all runs are written as JSON")
    options = parser.parse_args()
    from originals import machine_facts

    trees = {"before": options.tree.resolve(), "now": HERE}
    for tree in trees.values():
        python(tree, "setup.py", "-q", "build_ext", "--inplace")
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="trees-") as folder:
        work = Path(folder)
        python(HERE, "-m", "dataprep", "demo-data", "imagenet", work / "originals", "--images", options.images)
        for number in range(options.rounds + 1):
            print(f"round {number} of {options.rounds}", file=sys.stderr)
            for name, measure in measures(work / "originals", work, options.images).items():
                for side, tree in trees.items():
                    figure = measure(tree)
                    if number:
                        found.setdefault(name, {}).setdefault(side, []).append(figure)
    print(f"{'':28}{'before':>30}{'now':>30}{'ratio':>8}")
    for name, sides in found.items():
        cells = [f"{statistics.median(runs):,.2f} ({min(runs):,.2f} to {max(runs):,.2f})" for runs in sides.values()]
        ratio = statistics.median(sides["now"]) / statistics.median(sides["before"])
        print(f"{name:28}{cells[0]:>30}{cells[1]:>30}{ratio:8.2f}")
    if options.json is not None:
        document = machine_facts() | {"images": options.images, "rounds": options.rounds, "runs": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
