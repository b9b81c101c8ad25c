"""`dataprep build` from a folder, from a tar of tars and from zips, on disk and in a slow bucket, one worker.

    python benchmarks/build_sources.py --corpus DIR --json build_sources.json

The bucket is an emulator on loopback that delays every request, and keeps originals and dataset as files. It shares the
cores with the build, and is not counted as its CPU time: `of_disk_by_cpu` leaves its share out. The plain loops
(peers/bucket_loops.py) read the same ranges and upload the images' bytes, are given the list, and commit nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import PEERS, common_options, in_turns, levelled_environment, report, work_folder
from benchmarks.originals import (
    NoProgress,
    build_command,
    build_request,
    bytes_of,
    coco_zips,
    corpus_images,
    image_folder,
    train_tar,
)
from dataprep.builder.growth import ARCHIVES
from dataprep.host.cpu import cpu_s_of
from dataprep.host.measure import Measurement, measure
from dataprep.storage.gcs_client import client
from tests.support.gcs_emulator import GCSEmulator

BUCKET = "dataprep-benchmark"
BUCKET_TARGET = 0.7
"""Target for the rate of a build from a bucket, as a share of its rate on disk."""
LAYOUTS: dict[str, tuple[str, Callable[[list[Path], Path], Path]]] = {
    "folder": ("imagenet", image_folder),
    "tar": ("imagenet", train_tar),
    "zips": ("coco-dup5", coco_zips),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One build that is measured."""

    layout: str
    in_bucket: bool
    check: str
    num_shards: int

    @property
    def target(self) -> float | None:
        """Target for the rate as a share of that on disk; None for unpacked folders and for a single shard."""
        return BUCKET_TARGET if self.in_bucket and self.layout != "folder" and self.num_shards > 1 else None


class Found(NamedTuple):
    """Figures of one run."""

    measured: Measurement
    server_cpu_s: float
    """CPU time of the emulator meanwhile."""


class Bench:
    """The originals in every layout, on disk and in the bucket."""

    def __init__(self, work: Path, images: list[Path], layouts: list[str], emulator: GCSEmulator, ms: float) -> None:
        self._work, self._emulator, self._latency_ms = work, emulator, ms
        for layout in layouts:
            upload(LAYOUTS[layout][1](images, work / layout), layout)

    def build(self, case: Case) -> Found:
        """Build a dataset, and remove it."""
        source, output = self._urls(case)
        more = ("--workers", 1, "--check", case.check)
        dataset = LAYOUTS[case.layout][0]
        return self._run(case, build_command(source, output, *more, dataset=dataset, shards=case.num_shards))

    def loops(self, case: Case) -> Found:
        """Read the ranges that a build reads for each shard, in its order, in plain loops."""
        source, output = self._urls(case)
        request = build_request(LAYOUTS[case.layout][0], source, case.num_shards, output)
        _, tables = ARCHIVES.plan_references(request, NoProgress())
        shards = [[[row["source"], row["offset"], row["num_bytes"]] for row in table.to_pylist()] for table in tables]
        ranges = self._work / "ranges.json"
        ranges.write_text(json.dumps(shards))
        words = [sys.executable, PEERS / "bucket_loops.py", ranges, source, output, case.check]
        return self._run(case, list(map(str, words)))

    def _run(self, case: Case, command: list[str]) -> Found:
        self._emulator.set_latency(self._latency_ms)
        before_s = cpu_s_of(self._emulator.pid)
        measured = measure(command, levelled_environment())
        server_cpu_s = cpu_s_of(self._emulator.pid) - before_s
        self._emulator.set_latency(0)
        if not case.in_bucket:
            shutil.rmtree(self._work / "out")
        for blob in list(client().list_blobs(BUCKET, prefix="out/")):
            blob.delete()
        return Found(measured, server_cpu_s)

    def _urls(self, case: Case) -> tuple[str, str]:
        root = f"gs://{BUCKET}" if case.in_bucket else str(self._work)
        return f"{root}/{case.layout}", f"{root}/out"


def upload(folder: Path, prefix: str) -> None:
    """Upload originals to the bucket."""

    def put(path: Path) -> None:
        name = f"{prefix}/{path.relative_to(folder).as_posix()}"
        client().bucket(BUCKET).blob(name).upload_from_filename(path)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, [path for path in folder.rglob("*") if path.is_file()]))


def plan_cases(layouts: list[str], checks: list[str], num_shards: int) -> list[Case]:
    """Return every layout in both places, and for memory one huge shard in each place."""
    shapes = [(layout, num_shards) for layout in layouts] + ([("tar", 1)] if "tar" in layouts else [])
    return [
        Case(layout=layout, in_bucket=in_bucket, check=check, num_shards=shards)
        for check in checks
        for in_bucket in (False, True)
        for layout, shards in shapes
    ]


def rows_of(found: dict[tuple[Case, str], list[Found]]) -> Iterator[dict[str, Any]]:
    """Yield the medians of every case, and their ratios to the same originals on disk."""

    def figures(case: Case, what: str = "build") -> tuple[float, float, float]:
        """Return images/s, CPU milliseconds an image, and the emulator's CPU time."""
        rounds = found[case, what]
        said = json.loads(rounds[0].measured.stdout)
        samples = said["splits"][0]["samples"] if what == "build" else said["samples"]
        wall_s, cpu_s = (
            statistics.median(getattr(each.measured, name) for each in rounds) for name in ("wall_s", "cpu_s")
        )
        return samples / wall_s, 1e3 * cpu_s / samples, statistics.median(each.server_cpu_s for each in rounds)

    for case, what in found:
        if what == "loops":
            continue
        (rate, cpu_ms, server_cpu_s), rounds = figures(case), found[case, "build"]
        disk, disk_ms, _ = figures(replace(case, in_bucket=False))
        loops = figures(case, "loops")[0] if (case, "loops") in found else None
        peak_mb = statistics.median(each.measured.largest_bytes for each in rounds) / 1e6
        yield {
            "case": asdict(case),
            "images_per_s": rate,
            "of_disk": rate / disk if case.in_bucket else None,
            "target": case.target,
            "loops_images_per_s": loops,
            "loops_of_disk": None if loops is None else loops / disk,
            "cpu_ms_per_image": cpu_ms,
            "of_disk_by_cpu": disk_ms / cpu_ms if case.in_bucket else None,
            "server_cpu_s": server_cpu_s,
            "peak_mb": peak_mb,
            "wall_s": [round(each.measured.wall_s, 4) for each in rounds],
        }


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__)
    parser.add_argument("--shards", type=int, default=8, help="number of shards; most should follow on another one")
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS), help="default: all")
    parser.add_argument("--checks", nargs="+", choices=["decode", "none"], default=["decode", "none"])
    parser.add_argument("--latency-ms", type=float, default=50)
    options = parser.parse_args()
    with work_folder(options, "build-sources") as work, GCSEmulator(root=work / "bucket") as emulator:
        os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
        emulator.create_bucket(BUCKET)
        images = corpus_images(options.corpus, work, options.images)
        size = bytes_of(images)
        bench = Bench(work, images, options.layouts, emulator, options.latency_ms)
        runs: dict[tuple[Case, str], Callable[[], Found]] = {}
        for case in plan_cases(options.layouts, options.checks, options.shards):
            runs[case, "build"] = partial(bench.build, case)
            if case.target is not None:
                runs[case, "loops"] = partial(bench.loops, case)
        found = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
    facts = {"images": len(images), "bytes": size, "rounds": options.rounds, "latency_ms": options.latency_ms}
    report("build-sources", facts | {"rows": list(rows_of(found))}, options)


if __name__ == "__main__":
    main()
