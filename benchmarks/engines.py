"""How fast the same build is through each engine: local pool, Ray, parts, and Beam's FnApiRunner.

    python benchmarks/engines.py --corpus DIR --json engines.json

All have two cores: two workers of the pool, two processes of a Ray cluster that runs already, two parts with a worker
each, two workers of FnApiRunner. Each round also builds 32 images: what that takes counts as the start. Rounds go
A B C … A B C …; the table shows medians, and compares shards built after the start. The benchmark refuses an engine
whose shards are not those of the local pool.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from originals import DATAPREP, common_options, corpus_images, image_folder, machine_facts  # noqa: E402

FEW = 32
"""Number of images of the build that shows the start."""
SHARDS = 16
LEAST = 0.9
"""Least rate of Ray after the start, as a share of the local pool's."""
STORE_BYTES = 80 << 20

Lines = Callable[[Path, Path], list[list[str]]]
"""Returns the command lines that build originals into an output together."""


def lines_of(engine: str, options: tuple[str, ...]) -> Lines:
    """Return the command lines of an engine, options after `--` included."""

    def line(source: Path, output: Path, *more: str) -> list[str]:
        shards = ["--num-shards", str(SHARDS), "--split", "train", "--allow-partial", "--max-reject-ratio", "1"]
        words = ["build", "imagenet", "--source", str(source), "--output", str(output), "--format", "webdataset"]
        return [str(DATAPREP), *words, *shards, *more]

    def lines(source: Path, output: Path) -> list[list[str]]:
        if engine == "parts":
            return [line(source, output, "--workers", "1", "--part", f"{number}/2") for number in (1, 2)]
        if engine == "local":
            return [line(source, output, "--workers", "2")]
        if engine == "ray":
            return [line(source, output, "--runner", "ray", "--", *options)]
        return [line(source, output, "--runner", engine, "--workers", "2")]

    return lines


def seconds_of(lines: list[list[str]]) -> float:
    """Run command lines at once, and return the seconds until the last has ended."""
    os.sync()
    started_s = time.perf_counter()
    running = [
        subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for line in lines
    ]
    for process in running:
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{' '.join(process.args)}: {errors[-2000:]}")
    return time.perf_counter() - started_s


def digest_of(output: Path) -> str:
    """Return one digest of all shards."""
    shards = sorted(output.rglob("*.tar"))
    return hashlib.sha256(b"".join(hashlib.sha256(shard.read_bytes()).digest() for shard in shards)).hexdigest()


@contextmanager
def ray_cluster() -> Iterator[str]:
    """Run a cluster of one node with two CPUs; yield its address."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        yield str(cluster.address)
    finally:
        cluster.shutdown()


def measured(engines: dict[str, Lines], sources: dict[str, Path], work: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of each round, by engine and by size of the originals."""
    found: dict[str, Any] = {engine: {size: [] for size in sources} for engine in engines}
    digests: dict[str, str] = {}
    output = work / "output"
    for number in range(rounds):
        for engine, lines in engines.items():
            for size, source in sources.items():
                elapsed_s = seconds_of(lines(source, output))
                if digests.setdefault(size, digest_of(output)) != digest_of(output):
                    raise SystemExit(f"{engine}: its shards are not those of the local pool")
                found[engine][size].append(elapsed_s)
                shutil.rmtree(output)
            print(f"round {number + 1}: {engine} {found[engine]['all'][-1]:.1f} s", file=sys.stderr)
    return found


def rows_of(found: dict[str, Any], images: int) -> list[dict[str, Any]]:
    """Return a row for each engine: medians, and rates as shares of the local pool's in the same round."""

    def rates(engine: str) -> list[float]:
        pairs = zip(found[engine]["all"], found[engine]["few"], strict=True)
        return [(images - FEW) / (all_s - few_s) for all_s, few_s in pairs]

    rows = []
    for engine, seconds in found.items():
        shares = [mine / local for mine, local in zip(rates(engine), rates("local"), strict=True)]
        rows.append(
            {
                "engine": engine,
                "wall_s": seconds["all"],
                "start_s": seconds["few"],
                "images_per_s": images / statistics.median(seconds["all"]),
                "after_start_images_per_s": statistics.median(rates(engine)),
                "of_local": statistics.median(shares),
                "of_local_range": [min(shares), max(shares)],
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(f"{'':12}{'images/s':>10}{'start s':>9}{'after start':>13}{'of local':>10}{'rounds':>14}")
    for row in rows:
        low, high = row["of_local_range"]
        print(
            f"{row['engine']:12}{row['images_per_s']:10,.0f}{statistics.median(row['start_s']):9.1f}"
            f"{row['after_start_images_per_s']:13,.0f}{row['of_local']:10.2f}{f'{low:.2f} to {high:.2f}':>14}"
            + (f"  {'PASS' if row['of_local'] >= LEAST else 'short'} (>= {LEAST})" if row["engine"] == "ray" else "")
        )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = common_options(__doc__)
    engines = ("local", "ray", "parts", "FnApiRunner")
    parser.add_argument("--engines", nargs="+", choices=engines, default=engines, help="`local` is always measured")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse_options()
    work = options.work.resolve() / f"engines-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        images = corpus_images(options.corpus, work, options.images)
        size = sum(image.stat().st_size for image in images)
        sources = {"few": image_folder(images[:FEW], work / "few"), "all": image_folder(images, work / "all")}
        names = dict.fromkeys(("local", *options.engines))
        with ray_cluster() if "ray" in names else nullcontext("") as address:
            engines = {name: lines_of(name, (f"--address={address}",)) for name in names}
            if not options.no_warm_up:
                measured(engines, sources, work, 1)
            found = measured(engines, sources, work, options.rounds)
    finally:
        shutil.rmtree(work)
    rows = rows_of(found, len(images))
    print(f"{len(images):,} images, {SHARDS} shards, medians of {options.rounds} rounds, two cores\n")
    print_table(rows)
    if options.json:
        document = {"images": len(images), "bytes": size, "shards": SHARDS, "rounds": options.rounds}
        options.json.write_text(json.dumps(document | machine_facts() | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
