"""How fast the same build is through each engine: local pool, Ray, parts, and Beam's FnApiRunner.

    python benchmarks/engines.py --corpus DIR --json engines.json

All have two cores: two workers of the pool, two processes of a Ray cluster that runs already, two parts with a worker
each, two workers of FnApiRunner. Each round also builds 32 images: what that takes counts as the start, and rates after
it are compared. The benchmark refuses an engine whose shards are not those of the local pool.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import common_options, in_turns, report, work_folder
from benchmarks.originals import build_command, bytes_of, corpus_images, image_folder

FEW = 32
"""Number of images of the build that shows the start."""
SHARDS = 16
LEAST = 0.9
"""Least rate of Ray after the start, as a share of the local pool's."""
STORE_BYTES = 80 << 20
ENGINES = ("local", "ray", "parts", "FnApiRunner")


def lines_of(engine: str, source: Path, output: Path, address: str) -> list[list[str]]:
    """Return the command lines that build originals into an output together."""
    line = partial(build_command, source, output, shards=SHARDS)
    if engine == "parts":
        return [line("--workers", 1, "--part", f"{number}/2") for number in (1, 2)]
    if engine == "local":
        return [line("--workers", 2)]
    if engine == "ray":
        return [line("--runner", "ray", "--", f"--address={address}")]
    return [line("--runner", engine, "--workers", 2)]


def seconds_of(lines: list[list[str]]) -> float:
    """Run command lines at once, and return the seconds until the last has ended."""
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


class Bench:
    """The originals, many and few, and the digests of their shards."""

    def __init__(self, images: list[Path], work: Path, address: str) -> None:
        self._output, self._address = work / "output", address
        self._sources = {"few": image_folder(images[:FEW], work / "few"), "all": image_folder(images, work / "all")}
        self._digests: dict[str, str] = {}

    def run(self, engine: str) -> dict[str, float]:
        """Return the seconds of a build of few and of all images."""
        found = {}
        for size, source in self._sources.items():
            found[size] = seconds_of(lines_of(engine, source, self._output, self._address))
            shards = sorted(self._output.rglob("*.tar"))
            digest = hashlib.sha256(b"".join(hashlib.sha256(each.read_bytes()).digest() for each in shards)).hexdigest()
            if self._digests.setdefault(size, digest) != digest:
                raise SystemExit(f"{engine}: its shards are not those of the local pool")
            shutil.rmtree(self._output)
        return found


def rows_of(found: dict[str, list[dict[str, float]]], images: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each engine: medians, and rates as shares of the local pool's in the same round."""
    rates = {
        engine: [(images - FEW) / (each["all"] - each["few"]) for each in rounds] for engine, rounds in found.items()
    }
    for engine, rounds in found.items():
        shares = [mine / local for mine, local in zip(rates[engine], rates["local"], strict=True)]
        wall_s = [each["all"] for each in rounds]
        yield {
            "engine": engine,
            "wall_s": wall_s,
            "start_s": [each["few"] for each in rounds],
            "images_per_s": images / statistics.median(wall_s),
            "after_start_images_per_s": statistics.median(rates[engine]),
            "of_local": statistics.median(shares),
            "of_local_range": [min(shares), max(shares)],
        }


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="`local` is always measured")
    options = parser.parse_args()
    names = list(dict.fromkeys(("local", *options.engines)))
    with (
        work_folder(options, "engines") as work,
        ray_cluster() if "ray" in names else nullcontext("") as address,
    ):
        images = corpus_images(options.corpus, work, options.images)
        size = bytes_of(images)
        bench = Bench(images, work, address)
        runs = {name: partial(bench.run, name) for name in names}
        found = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
    facts = {"images": len(images), "bytes": size, "shards": SHARDS, "rounds": options.rounds}
    report("engines", facts | {"rows": list(rows_of(found, len(images)))}, options)


if __name__ == "__main__":
    main()
