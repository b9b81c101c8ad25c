"""`dataprep build` from a folder, from a tar of tars and from zips, on disk and in a slow bucket: one table.

    python benchmarks/build_sources.py --corpus DIR --json build_sources.json

The bucket is an emulator on loopback that delays every request. Its proxy and server share the cores with the build,
and neither is counted as its CPU time. It keeps all objects in memory: with 24 GB, 4,000 images fit, 16,000 do not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from originals import (
    DATAPREP,
    NoProgress,
    coco_zips,
    corpus_images,
    image_folder,
    levelled_environment,
    machine_facts,
    train_tar,
)

from dataprep.builder.archives import ARCHIVES
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.host.cpu import cpu_s_of
from dataprep.host.measure import Measurement, measure
from dataprep.storage.gcs_client import client
from tests.support.gcs_emulator import GCSEmulator

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ROOT / "benchmarks/peers/bucket_loops.py"
BUCKET = "dataprep-benchmark"
UPLOADS_IN_FLIGHT = 16
BUCKET_TARGET = 0.7
"""Target for the rate of a build from a bucket, as a share of its rate on disk."""
MEMORY_TARGET_MB = 400
COLUMN = 14
"""Characters of a column of figures."""
LAYOUTS = {
    "folder": ("imagenet", "train/<wnid>/*.JPEG", image_folder),
    "tar": ("imagenet", "ILSVRC2012_img_train.tar, a tar of tars", train_tar),
    "zips": ("coco-dup5", "train2017.zip, unlabeled2017.zip, stored", coco_zips),
}

HEADER = """\
dataprep build --format webdataset, 1 worker, whole processes; {images:,} images of {kilobytes:.0f} kB, medians of
{rounds} interleaved rounds after a warm-up. Bucket: originals and dataset are in it, and {latency_ms:g} ms are added
to every request.
list s:   enumerating and planning alone, nothing stored
of disk:  images/s relative to the same originals on disk
of loops: images/s relative to plain loops over the same ranges and uploads (peers/bucket_loops.py), at most 128 images
          at a time, the list given to them
loops of disk: images/s of these loops relative to the build on disk: what the requests leave to a program that
          lists, plans and commits nothing
CPU ms:   processor time of the build and its children, per image
by CPU:   processor time of the build on disk relative to this one: what a build that never waits, whose server takes
          none of its cores, and that uses as many cores at a time as on disk has of its rate there
server s: CPU time of the emulator during the build, on the same cores; and during the loops
peak MB:  of the largest process, worker or parent"""


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

    @property
    def name(self) -> str:
        where = "bucket" if self.in_bucket else "disk"
        shards = "1 shard" if self.num_shards == 1 else f"{self.num_shards} shards"
        return f"{where:7}{LAYOUTS[self.layout][1]}, {shards}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    case: Case
    images_per_s: float
    of_disk: float | None
    loops_images_per_s: float | None
    loops_of_disk: float | None
    cpu_ms_per_image: float
    of_disk_by_cpu: float | None
    loops_cpu_ms_per_image: float | None
    server_cpu_s: float
    """CPU time of the emulator during the build."""
    loops_server_cpu_s: float | None
    """CPU time of the emulator during the plain loops."""
    enumeration_s: float
    peak_mb: float
    wall_s: list[float]

    @property
    def verdict(self) -> str:
        """`PASS`, or the name of the target that was missed."""
        short = []
        if self.of_disk is not None and self.case.target is not None and self.of_disk < self.case.target:
            short.append("rate short")
        if self.peak_mb >= MEMORY_TARGET_MB:
            short.append("memory short")
        return ", ".join(short) or "PASS"


class Bench:
    """The originals in every layout, on disk and in the bucket, and the measurements of the builds."""

    def __init__(
        self, work: Path, images: list[Path], layouts: list[str], emulator: GCSEmulator, latency_ms: float
    ) -> None:
        self._work, self._emulator, self._latency_ms = work, emulator, latency_ms
        self.builds: dict[Case, list[Measurement]] = defaultdict(list)
        self.loops: dict[Case, list[Measurement]] = defaultdict(list)
        self.enumerations_s: dict[Case, list[float]] = defaultdict(list)
        self.server_cpu_s: dict[Case, list[float]] = defaultdict(list)
        self.loops_server_cpu_s: dict[Case, list[float]] = defaultdict(list)
        for layout in layouts:
            upload(LAYOUTS[layout][2](images, work / layout), layout)

    def round(self, cases: list[Case], *, keep: bool) -> None:
        """Run every case once."""
        for case in cases:
            with self._requests_delayed():
                before_s = cpu_s_of(self._emulator.pid)
                found = self._build(case)
                server_cpu_s = cpu_s_of(self._emulator.pid) - before_s
                enumeration_s = self._enumerate(case)
            self._clear(case)
            if keep:
                self.builds[case].append(found)
                self.enumerations_s[case].append(enumeration_s)
                self.server_cpu_s[case].append(server_cpu_s)
            if case.target is not None:
                ranges = self._ranges(case)
                with self._requests_delayed():
                    before_s = cpu_s_of(self._emulator.pid)
                    loops = self._run_loops(case, ranges)
                    server_cpu_s = cpu_s_of(self._emulator.pid) - before_s
                self._clear(case)
                if keep:
                    self.loops[case].append(loops)
                    self.loops_server_cpu_s[case].append(server_cpu_s)

    @contextmanager
    def _requests_delayed(self) -> Iterator[None]:
        os.sync()  # no case has to wait for data that another one left to be written
        self._emulator.set_latency(self._latency_ms)
        yield
        self._emulator.set_latency(0)

    def _build(self, case: Case) -> Measurement:
        dataset = LAYOUTS[case.layout][0]
        source, output = self._urls(case)
        command = [DATAPREP, "build", dataset, "--source", source, "--output", output, "--format", "webdataset"]
        command += ["--split", "train", "--allow-partial", "--max-reject-ratio", "1", "--json", "--workers", "1"]
        command += ["--num-shards", str(case.num_shards), "--check", case.check]
        return measure(command, levelled_environment())

    def _ranges(self, case: Case) -> Path:
        """Write the ranges that our build reads for each shard, in its order; return the file."""
        _, tables = ARCHIVES.plan_references(self._request(case), NoProgress())
        shards = [[[row["source"], row["offset"], row["num_bytes"]] for row in table.to_pylist()] for table in tables]
        path = self._work / "ranges.json"
        path.write_text(json.dumps(shards))
        return path

    def _run_loops(self, case: Case, ranges: Path) -> Measurement:
        source, output = self._urls(case)
        return measure([sys.executable, LOOPS, ranges, source, output, case.check], levelled_environment())

    def _enumerate(self, case: Case) -> float:
        request = self._request(case)
        started_s = time.monotonic()
        ARCHIVES.plan_references(request, NoProgress())
        return time.monotonic() - started_s

    def _request(self, case: Case) -> BuildRequest:
        dataset = LAYOUTS[case.layout][0]
        options = BuildOptions(
            dataset=dataset, format="webdataset", splits=("train",), num_shards=case.num_shards, allow_partial=True
        )
        source, output = self._urls(case)
        return BuildRequest(options=options, source_url=source, output_url=output, max_reject_ratio=1)

    def _urls(self, case: Case) -> tuple[str, str]:
        root = f"gs://{BUCKET}" if case.in_bucket else str(self._work)
        return f"{root}/{case.layout}", f"{root}/out"

    def _clear(self, case: Case) -> None:
        if not case.in_bucket:
            shutil.rmtree(self._work / "out")
            return
        for blob in list(client().list_blobs(BUCKET, prefix="out/")):
            blob.delete()

    def row(self, case: Case) -> Row:
        """Return the medians of one case."""
        disk, loops, ours = self._on_disk(case), self._loops_images_per_s(case), self._samples(case)
        loops_cpu_s = median_or_none([found.cpu_s for found in self.loops[case]])
        return Row(
            case=case,
            images_per_s=self._images_per_s(case),
            of_disk=None if disk is None else self._images_per_s(case) / disk,
            loops_images_per_s=loops,
            loops_of_disk=None if disk is None or loops is None else loops / disk,
            cpu_ms_per_image=self._cpu_ms_per_image(case),
            of_disk_by_cpu=self._of_disk_by_cpu(case),
            loops_cpu_ms_per_image=None if loops_cpu_s is None else loops_cpu_s * 1000 / ours,
            server_cpu_s=statistics.median(self.server_cpu_s[case]),
            loops_server_cpu_s=median_or_none(self.loops_server_cpu_s[case]),
            enumeration_s=statistics.median(self.enumerations_s[case]),
            peak_mb=statistics.median(found.largest_bytes for found in self.builds[case]) / 1e6,
            wall_s=[round(found.wall_s, 4) for found in self.builds[case]],
        )

    def _on_disk(self, case: Case) -> float | None:
        """Return the images/s of the build of the same originals on disk; None for a case that is on disk itself."""
        if not case.in_bucket:
            return None
        return self._images_per_s(replace(case, in_bucket=False))

    def _of_disk_by_cpu(self, case: Case) -> float | None:
        if not case.in_bucket:
            return None
        return self._cpu_ms_per_image(replace(case, in_bucket=False)) / self._cpu_ms_per_image(case)

    def _loops_images_per_s(self, case: Case) -> float | None:
        """Return the images/s of the plain loops, which also count images that a build decodes and rejects."""
        if not self.loops[case]:
            return None
        samples = json.loads(self.loops[case][0].stdout)["samples"]
        return float(samples / statistics.median(found.wall_s for found in self.loops[case]))

    def _images_per_s(self, case: Case) -> float:
        return self._samples(case) / statistics.median(found.wall_s for found in self.builds[case])

    def _cpu_ms_per_image(self, case: Case) -> float:
        return statistics.median(found.cpu_s for found in self.builds[case]) * 1000 / self._samples(case)

    def _samples(self, case: Case) -> int:
        return int(json.loads(self.builds[case][0].stdout)["splits"][0]["samples"])


def median_or_none(values: list[float]) -> float | None:
    """Return the median; None where nothing was measured."""
    return statistics.median(values) if values else None


def upload(folder: Path, prefix: str) -> None:
    """Upload originals to the bucket."""
    files = [path for path in folder.rglob("*") if path.is_file()]

    def put(path: Path) -> None:
        name = f"{prefix}/{path.relative_to(folder).as_posix()}"
        client().bucket(BUCKET).blob(name).upload_from_filename(path)

    with ThreadPoolExecutor(UPLOADS_IN_FLIGHT) as pool:
        list(pool.map(put, files))


def plan_cases(layouts: list[str], checks: list[str], num_shards: int) -> list[Case]:
    """Return every layout in both places, and for memory one huge shard in each place."""
    shapes = [(layout, num_shards) for layout in layouts] + ([("tar", 1)] if "tar" in layouts else [])
    return [
        Case(layout=layout, in_bucket=in_bucket, check=check, num_shards=shards)
        for check in checks
        for in_bucket in (False, True)
        for layout, shards in shapes
    ]


def print_table(rows: list[Row]) -> None:
    """Print a section for each check."""
    check = None
    for row in rows:
        if row.case.check != check:
            check = row.case.check
            print(f"\n--check {check}")
            titles = ("images/s", "of disk", "target", "of loops", "loops of disk", "CPU ms", "by CPU", "list s")
            _print_cells("", titles, ("server s", "loops", "peak MB", "target", " verdict"))
        loops = row.loops_images_per_s
        _print_cells(
            row.case.name,
            (
                f"{row.images_per_s:,.0f}",
                _ratio(row.of_disk),
                "" if row.case.target is None else f">= {row.case.target:g}",
                _ratio(None if loops is None else row.images_per_s / loops),
                _ratio(row.loops_of_disk),
                f"{row.cpu_ms_per_image:.2f}",
                _ratio(row.of_disk_by_cpu),
                f"{row.enumeration_s:.2f}",
            ),
            (
                f"{row.server_cpu_s:.1f}",
                _seconds(row.loops_server_cpu_s),
                f"{row.peak_mb:.0f}",
                f"< {MEMORY_TARGET_MB}",
                f" {row.verdict}",
            ),
        )


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _print_cells(name: str, *groups: Sequence[str]) -> None:
    cells = [cell for group in groups for cell in group]
    print(f"{name:60}" + "".join(f"{cell:>{COLUMN}}" for cell in cells[:-1]) + cells[-1])


def main() -> None:
    """Measure and print."""
    options = parse_options()
    work = options.work.resolve() / f"build-sources-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        with GCSEmulator() as emulator:
            os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
            emulator.create_bucket(BUCKET)
            images = corpus_images(options.corpus, work, options.images)
            num_bytes = sum(image.stat().st_size for image in images)
            bench = Bench(work, images, options.layouts, emulator, options.latency_ms)
            cases = plan_cases(options.layouts, options.checks, options.shards)
            for number in range(options.rounds + 1):
                print(f"round {number} of {options.rounds}" if number else "warm-up", file=sys.stderr)
                bench.round(cases, keep=number > 0)
    finally:
        shutil.rmtree(work)
    rows = [bench.row(case) for case in cases]
    facts: dict[str, Any] = {"images": len(images), "rounds": options.rounds, "latency_ms": options.latency_ms}
    print(HEADER.format(kilobytes=num_bytes / len(images) / 1e3, **facts))
    print_table(rows)
    if options.json:
        facts["rows"] = [{**asdict(row), "verdict": row.verdict} for row in rows]
        options.json.write_text(json.dumps(machine_facts() | facts, indent=1) + "\n")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, help="number of images of the corpus; default: all, 4,000 of demo data")
    parser.add_argument("--shards", type=int, default=8, help="number of shards; most should follow on another one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS), help="default: all")
    parser.add_argument("--checks", nargs="+", choices=["decode", "none"], default=["decode", "none"])
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks", help="folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="file to which the table is written as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
