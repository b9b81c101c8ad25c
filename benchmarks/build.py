"""Images/s, CPU time and memory of `dataprep build`, compared with plain loops and three other writers: one table.

python benchmarks/build.py --corpus DIR --json build.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from originals import (
    DATAPREP,
    PEERS,
    PEERS_PYTHON,
    common_options,
    corpus_images,
    default_shards,
    image_folder,
    levelled_environment,
    machine_facts,
    write_order,
)

from dataprep.host.measure import Measurement, measure

START_IMAGES = 8
START_SHARDS = 2

HEADER = """\
Whole processes from exec to exit, input in the page cache, one disk, every file fsynced inside the timing, the same
MALLOC_* settings, the same samples in the same shuffled order. {images:,} images of {kilobytes:.0f} kB in {shards}
shards; medians of {rounds} interleaved rounds{warm_up}.

dataprep  build imagenet from train/<wnid>/: list, plan, read, check, digest; writes image, label, key, class name,
          height, width, orientation, an index with a CRC32C an image, the manifest; create-only, can be resumed
(a)       the roofline: the same reads, decodes, SHA-256, CRC32C (of image and shard), writes and fsyncs in plain
          loops in as many spawned processes
(b)       webdataset's ShardWriter: image, label and key; no digests
(c)       a TFDS GeneratorBasedBuilder: the features of our TFRecords
(d)       MosaicML's MDSWriter with its defaults: image, label and key; no digests
(e)       (a) after the start of a build: NumPy and pyarrow, the list of the originals, plan, receipts, index and
          manifest, all synced, in plain code

(a) to (d) are given the list of files. 1 process: as their documents show it. Spread: each worker a part and a folder,
forked, joined as their documents say. "decode": all run the same check.
ratio:       of dataprep, its rate to (a)'s; of the others, dataprep's rate to theirs: its webdataset to (b), its
             tfrecord to (c), the slower of both to (d)
start s:     the same command on {start_images} images: imports, processes, everything that does not grow with the input
after start: images/s of what the full run took beyond that, and the same ratio of these
largest MB:  peak of the largest process; sum MB: of all its processes together"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """Program of one row, which writes the dataset."""

    group: str
    """`ours`, or the letter of its row."""
    title: str
    format: str = ""
    """Format of our own build; empty for a peer."""
    script: str = ""
    needs_own_environment: bool = False
    lists: bool = False
    """Whether it lists the originals itself, as our build does."""

    @property
    def is_roofline(self) -> bool:
        """Whether it is measured with as many processes as our build only, and rejects no image."""
        return self.group in ("a", "e")

    def command(self, run: Run, *, source: Path, order: Path, shards: int, out: Path) -> list[str | Path]:
        """Return the command line to execute."""
        if self.group == "ours":
            build = [DATAPREP, "build", "imagenet", "--source", source, "--output", out, "--format", self.format]
            build += ["--split", "train", "--allow-partial", "--max-reject-ratio", "1", "--json"]
            return [*build, "--num-shards", str(shards), "--check", run.check, "--workers", str(run.processes)]
        python = PEERS_PYTHON if self.needs_own_environment else sys.executable
        peer = [python, PEERS / self.script, "--order", order, "--out", out]
        peer += ["--source", source] if self.lists else []
        return [*peer, "--check", run.check, "--processes", str(run.processes)]


OURS = (
    Contender(group="ours", title="dataprep webdataset", format="webdataset"),
    Contender(group="ours", title="dataprep tfrecord", format="tfrecord"),
)
RIVALS = {
    "roofline": Contender(group="a", title="plain loops", script="roofline.py"),
    "webdataset": Contender(group="b", title="webdataset ShardWriter", script="with_webdataset.py"),
    "tfds": Contender(group="c", title="TFDS builder", script="with_tfds.py"),
    "listed": Contender(group="e", title="start, list, plain loops", script="roofline_listed.py", lists=True),
    "mds": Contender(group="d", title="MosaicML MDSWriter", script="with_mds.py", needs_own_environment=True),
}
ROOFLINE_TARGET = 0.85
ONE_PROCESS_TARGETS = {"b": 1.5, "c": 2.0, "d": 2.0}
"""Targets for the ratio of our rate with two or more workers to that of another writer in one process, by its row."""
SPREAD_TARGET = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run that is measured in every round."""

    contender: Contender
    check: str
    processes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Medians of one run's rounds."""

    images_per_s: float
    cpu_ms_per_image: float
    start_s: float | None
    """Time of the same command on a few images; None, and so are the fields after it, if it was not measured."""
    after_start_images_per_s: float | None
    largest_mb: float
    sum_mb: float
    wall_s: list[float]
    """Wall time of each round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    check: str
    workers: int
    name: str
    result: Result
    ratio: float | None = None
    after_start_ratio: float | None = None
    target: float | None = None

    @property
    def verdict(self) -> str:
        """`PASS` or `short`; empty if there is no target."""
        if self.ratio is None or self.target is None:
            return ""
        return "PASS" if self.ratio >= self.target else "short"


class Bench:
    """The input, as originals and as a list, and the measurements of every run."""

    def __init__(self, images: list[Path], shards: int, work: Path) -> None:
        self.num_images = len(images)
        self.num_bytes = sum(image.stat().st_size for image in images)
        self.shards = shards
        self._work = work
        self._samples: dict[str, int] = {}
        self._full = self._input("full", images, shards)
        spread = [images[len(images) * index // START_IMAGES] for index in range(min(START_IMAGES, len(images)))]
        self._start = self._input("start", spread, START_SHARDS)
        self.starts: dict[Run, list[Measurement]] = defaultdict(list)
        self.fulls: dict[Run, list[Measurement]] = defaultdict(list)

    def _input(self, name: str, images: list[Path], shards: int) -> dict[str, Any]:
        source = image_folder(images, self._work / name)
        order = self._work / f"{name}.json"
        write_order(source, order, shards)
        return {"source": source, "order": order, "shards": shards}

    def round(self, runs: Iterable[Run], *, keep: bool, with_start: bool) -> None:
        """Run every run once, one after the other."""
        for run in runs:
            full = self._once(run, self._full)
            self._refuse_other_count(run, full)
            if keep:
                self.fulls[run].append(full)
                if with_start:
                    self.starts[run].append(self._once(run, self._start))

    def _once(self, run: Run, given: dict[str, Any]) -> Measurement:
        out = self._work / "out"
        os.sync()  # no run has to wait for data that another one left to be written
        found = measure(run.contender.command(run, out=out, **given), levelled_environment())
        shutil.rmtree(out)
        return found

    def _refuse_other_count(self, run: Run, found: Measurement) -> None:
        """Refuse a contender with another number of samples than our build; the roofline rejects no image."""
        said = json.loads(found.stdout.strip().splitlines()[-1])
        samples = said["splits"][0]["samples"] if run.contender.group == "ours" else said["samples"]
        expected = self._samples.setdefault(run.check, samples)
        if run.contender.is_roofline:
            expected = self.num_images
        if samples != expected:
            raise SystemExit(f"{run.contender.title} wrote {samples} samples, expected {expected}")

    def result(self, run: Run) -> Result:
        """Return the medians of a run's measurements."""
        fulls = self.fulls[run]
        wall_s = statistics.median(full.wall_s for full in fulls)
        starts_s = [start.wall_s for start in self.starts[run]]
        start_s = statistics.median(starts_s) if starts_s else None
        left_s = None if start_s is None else max(wall_s - start_s, 1e-3)
        return Result(
            images_per_s=self.num_images / wall_s,
            cpu_ms_per_image=1e3 * statistics.median(full.cpu_s for full in fulls) / self.num_images,
            start_s=start_s,
            after_start_images_per_s=None if left_s is None else (self.num_images - START_IMAGES) / left_s,
            largest_mb=statistics.median(full.largest_bytes for full in fulls) / 1e6,
            sum_mb=statistics.median(full.sum_bytes for full in fulls) / 1e6,
            wall_s=[round(full.wall_s, 4) for full in fulls],
        )


def plan_runs(rivals: Iterable[str], workers: Iterable[int], checks: Iterable[str]) -> list[Run]:
    """Return the runs of a round; a peer in one process is measured once for all numbers of workers."""
    runs = []
    for check in checks:
        for count in workers:
            ours_and_rooflines = [*OURS, *(RIVALS[name] for name in rivals if RIVALS[name].is_roofline)]
            runs += [Run(contender=each, check=check, processes=count) for each in ours_and_rooflines]
        for name in rivals:
            if not RIVALS[name].is_roofline:
                runs += [Run(contender=RIVALS[name], check=check, processes=n) for n in sorted({1, *workers})]
    return runs


def table_rows(bench: Bench, rivals: list[str], check: str, workers: int) -> list[Row]:
    """Return one section of the table."""
    ours = [(each, bench.result(Run(contender=each, check=check, processes=workers))) for each in OURS]
    roofline = bench.result(Run(contender=RIVALS["roofline"], check=check, processes=workers))
    rows = [
        Row(
            check=check,
            workers=workers,
            name=each.title,
            result=result,
            ratio=result.images_per_s / roofline.images_per_s,
            after_start_ratio=_after_start_ratio(result, roofline),
            target=ROOFLINE_TARGET,
        )
        for each, result in ours
    ]
    rows.append(Row(check=check, workers=workers, name=f"(a) plain loops, {_processes(workers)}", result=roofline))
    for name in rivals:
        if name != "roofline":
            counts = [workers] if RIVALS[name].is_roofline else sorted({1, workers})
            rows += [_rival_row(bench, RIVALS[name], check, workers, n, ours) for n in counts]
    return rows


def _rival_row(
    bench: Bench, rival: Contender, check: str, workers: int, processes: int, ours: list[tuple[Contender, Result]]
) -> Row:
    result = bench.result(Run(contender=rival, check=check, processes=processes))
    like = {"b": ["webdataset"], "c": ["tfrecord"]}.get(rival.group, ["webdataset", "tfrecord"])
    beside = [own for each, own in ours if each.format in like]
    spread = workers > 1 and processes == workers and not rival.is_roofline
    target = SPREAD_TARGET if spread else ONE_PROCESS_TARGETS.get(rival.group) if workers > 1 else None
    return Row(
        check=check,
        workers=workers,
        name=f"({rival.group}) {rival.title}, {'spread over ' if spread else ''}{_processes(processes)}",
        result=result,
        ratio=min(own.images_per_s for own in beside) / result.images_per_s,
        after_start_ratio=min((_after_start_ratio(own, result) for own in beside), key=lambda ratio: ratio or 0.0),
        target=target,
    )


def _after_start_ratio(result: Result, other: Result) -> float | None:
    if result.after_start_images_per_s is None or other.after_start_images_per_s is None:
        return None
    return result.after_start_images_per_s / other.after_start_images_per_s


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def print_table(rows: Iterable[Row]) -> None:
    """Print a section for each check and number of workers."""
    section = None
    for row in rows:
        if (row.check, row.workers) != section:
            section = (row.check, row.workers)
            print(f"\n--check {row.check}, {row.workers} worker{'s' if row.workers > 1 else ''}")
            print(
                f"{'':52}{'images/s':>9}{'CPU ms/image':>14}{'largest MB':>12}{'sum MB':>8}{'ratio':>7}"
                f"{'target':>9}{'':>7}{'start s':>9}{'after start':>14}{'ratio':>7}"
            )
        found = row.result
        print(
            f"{row.name:52}{found.images_per_s:9,.0f}{found.cpu_ms_per_image:14.3f}{found.largest_mb:12.0f}"
            f"{found.sum_mb:8.0f}{_number(row.ratio):>7}{'>= ' + format(row.target, 'g') if row.target else '':>9}"
            f"{row.verdict:>7}{_number(found.start_s):>9}{_number(found.after_start_images_per_s, 0):>14}"
            f"{_number(row.after_start_ratio):>7}"
        )


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def main() -> None:
    """Measure and print."""
    options = parse_options()
    work = options.work.resolve() / f"build-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        images = corpus_images(options.corpus, work, options.images)
        bench = Bench(images, options.shards or default_shards(images), work)
        runs = plan_runs(options.rivals, options.workers, options.checks)
        if not options.no_warm_up:
            bench.round(runs, keep=False, with_start=False)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            bench.round(runs, keep=True, with_start=not options.no_start)
    finally:
        shutil.rmtree(work)
    print(
        HEADER.format(
            rounds=options.rounds,
            images=bench.num_images,
            kilobytes=bench.num_bytes / bench.num_images / 1e3,
            shards=bench.shards,
            start_images=START_IMAGES,
            warm_up="" if options.no_warm_up else " after a warm-up",
        )
    )
    rows = [
        row
        for check in options.checks
        for workers in options.workers
        for row in table_rows(bench, options.rivals, check, workers)
    ]
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(document(bench, rows, options.rounds), indent=1) + "\n")


def document(bench: Bench, rows: list[Row], rounds: int) -> dict[str, Any]:
    """Return the table, and facts about the input and the machine, as JSON values."""
    return {
        "images": bench.num_images,
        "bytes": bench.num_bytes,
        "shards": bench.shards,
        "rounds": rounds,
        **machine_facts(),
        "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
    }


def parse_options() -> argparse.Namespace:
    """Parse the command line; leave out peers that are not installed, with a message."""
    parser = common_options(__doc__)
    parser.add_argument("--shards", type=int, help="number of shards; default: as `dataprep build` cuts, at least 2")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--checks", nargs="+", choices=["decode", "none"], default=["decode", "none"])
    parser.add_argument("--rivals", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--no-start", action="store_true", help="leave out the runs on a few images")
    options = parser.parse_args()
    options.rivals = ["roofline", *(name for name in options.rivals if name != "roofline")]
    if "mds" in options.rivals and not PEERS_PYTHON.exists():
        print("(d) is left out: it is not installed; run: make setup", file=sys.stderr)
        options.rivals.remove("mds")
    return options


if __name__ == "__main__":
    main()
