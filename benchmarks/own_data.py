"""Images/s of `dataprep build folder`, compared with what people pack their own pictures with: one table.

python benchmarks/own_data.py --corpus DIR --json own-data.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections import defaultdict
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

TARGET = 1.5
"""Target for our rate, divided by that of the fastest of the other Python writers, each in one process or as many."""
HEADER = """\
Whole processes from exec to exit, input in the page cache, one disk, every file fsynced inside the timing.
{images:,} pictures of {kilobytes:.0f} kB in class folders, {shards} shards; medians of {rounds} interleaved rounds
after a warm-up. ratio: rate of the slower of our two with the check, divided by this one's; unchecked: that of ours
with --check none, which leaves out what all others leave out, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """One way to pack a folder of pictures."""

    name: str
    lacks: str
    """What it leaves out of what `dataprep build folder` does."""
    format: str = ""
    """Format of our own build; empty for the others."""
    check: str = "none"
    script: str = ""
    """Script in peers/ that packs; empty for our own command and for tar."""
    needs_own_environment: bool = False
    is_python: bool = True
    is_parallel: bool = True

    def command(self, source: Path, order: Path, shards: int, out: Path, processes: int) -> list[str | Path]:
        """Return the command line."""
        if self.format:
            build = [DATAPREP, "build", "folder", "--source", source, "--output", out, "--name", "pictures"]
            build += ["--format", self.format, "--max-reject-ratio", "1", "--json", "--check", self.check]
            return [*build, "--num-shards", str(shards), "--workers", str(processes)]
        if not self.script:
            packed = out / "pictures.tar"
            return ["sh", "-c", f'mkdir "{out}" && tar cf "{packed}" -C "{source}" . && sync "{packed}"']
        python = PEERS_PYTHON if self.needs_own_environment else sys.executable
        peer = [python, PEERS / self.script, "--order", order, "--out", out, "--check", "none"]
        return [*peer, "--processes", str(processes)]


WRITERS = (
    Writer(name="dataprep webdataset", format="webdataset", check="decode", lacks=""),
    Writer(name="dataprep tfrecord", format="tfrecord", check="decode", lacks=""),
    Writer(name="dataprep webdataset, no check", format="webdataset", lacks="check"),
    Writer(
        name="webdataset ShardWriter",
        lacks="check, shuffle (is given it), digests, index, resumption",
        script="with_webdataset.py",
    ),
    Writer(
        name="litdata.optimize",
        lacks="check, shuffle (is given it), digests, class names",
        script="with_litdata.py",
        needs_own_environment=True,
    ),
    Writer(
        name="datasets, parquet",
        lacks="check, shuffle, digests, resumption",
        script="with_parquet.py",
    ),
    Writer(
        name="tar cf",
        lacks="check, shuffle, digests, labels, shards, resumption",
        is_python=False,
        is_parallel=False,
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    writer: str
    processes: int
    images_per_s: float
    cpu_ms_per_image: float
    sum_mb: float
    wall_s: list[float]
    """Wall time of each round."""
    ratio: float | None
    """Our rate with the check, divided by this one's; None for our own."""
    unchecked_ratio: float | None
    """The same of our rate without the check."""
    lacks: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Our rate, divided by that of the fastest other writer in Python."""

    processes: int
    check: str
    ratio: float


class Bench:
    """The pictures, as a folder and as a list, and the measurements of every writer."""

    def __init__(self, images: list[Path], shards: int, work: Path) -> None:
        self.num_images = len(images)
        self.num_bytes = sum(image.stat().st_size for image in images)
        self.shards = shards
        self._work = work
        self._source = image_folder(images, work / "pictures")
        self._order = work / "order.json"
        write_order(self._source, self._order, shards)
        self.found: dict[tuple[Writer, int], list[Measurement]] = defaultdict(list)

    def round(self, writers: list[tuple[Writer, int]], *, keep: bool) -> None:
        """Run every writer once, one after the other."""
        for writer, processes in writers:
            out = self._work / "out"
            os.sync()  # no run has to wait for data that another one left to be written
            command = writer.command(self._source / "train", self._order, self.shards, out, processes)
            found = measure(command, levelled_environment())
            self._refuse_other_count(writer, found, out)
            shutil.rmtree(out)
            if keep:
                self.found[writer, processes].append(found)

    def _refuse_other_count(self, writer: Writer, found: Measurement, out: Path) -> None:
        """Refuse a writer that left pictures out."""
        if not writer.is_python:
            packed = (out / "pictures.tar").stat().st_size
            if packed < self.num_bytes:
                raise SystemExit(f"{writer.name} wrote {packed:,} bytes, expected {self.num_bytes:,} or more")
            return
        said = json.loads(found.stdout.strip().splitlines()[-1])
        samples = said["splits"][0]["samples"] if writer.format else said["samples"]
        if samples != self.num_images:
            raise SystemExit(f"{writer.name} wrote {samples} pictures, expected {self.num_images}")

    def rows(self) -> list[Row]:
        """Return the table, the fastest first for each number of processes."""
        rate = {
            run: self.num_images / statistics.median(each.wall_s for each in found) for run, found in self.found.items()
        }
        rows = []
        for (writer, processes), found in self.found.items():
            ours = {
                check: min(rate[own, n] for own, n in rate if own.format and (own.check, n) == (check, processes))
                for check in ("decode", "none")
            }
            ratio, unchecked = (None if writer.format else ours[each] / rate[writer, processes] for each in ours)
            rows.append(
                Row(
                    writer=writer.name,
                    processes=processes,
                    images_per_s=rate[writer, processes],
                    cpu_ms_per_image=1e3 * statistics.median(each.cpu_s for each in found) / self.num_images,
                    sum_mb=statistics.median(each.sum_bytes for each in found) / 1e6,
                    wall_s=[round(each.wall_s, 4) for each in found],
                    ratio=ratio,
                    unchecked_ratio=unchecked,
                    lacks=writer.lacks,
                )
            )
        return sorted(rows, key=lambda row: (row.processes, -row.images_per_s))


def verdicts(rows: list[Row]) -> list[Verdict]:
    """Return the smallest ratios to a writer in Python, for each number of processes, with and without our check."""
    python = {writer.name for writer in WRITERS if writer.is_python}
    found = []
    for processes in sorted({row.processes for row in rows}):
        others = [row for row in rows if row.ratio is not None and row.processes == processes and row.writer in python]
        for check, ratios in (
            ("decode", [row.ratio for row in others]),
            ("none", [row.unchecked_ratio for row in others]),
        ):
            found.append(Verdict(processes=processes, check=check, ratio=min(each for each in ratios if each)))
    return found


def print_table(rows: list[Row], found: list[Verdict]) -> None:
    """Print a line for each writer and number of processes, then whether the target is met."""
    print(
        f"\n{'':30}{'processes':>10}{'images/s':>10}{'CPU ms/image':>14}{'sum MB':>8}{'ratio':>7}{'unchecked':>11}"
        "  leaves out"
    )
    for row in rows:
        ratios = ["" if each is None else f"{each:.2f}" for each in (row.ratio, row.unchecked_ratio)]
        print(
            f"{row.writer:30}{row.processes:10}{row.images_per_s:10,.0f}{row.cpu_ms_per_image:14.3f}{row.sum_mb:8.0f}"
            f"{ratios[0]:>7}{ratios[1]:>11}  {row.lacks}"
        )
    for each in found:
        verdict = "PASS" if each.ratio >= TARGET else "short"
        print(
            f"{each.processes} processes, --check {each.check}: {each.ratio:.2f} times the fastest other writer in "
            f"Python, target {TARGET}: {verdict}"
        )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = common_options(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse_options()
    work = options.work.resolve() / f"own-data-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        images = corpus_images(options.corpus, work, options.images)
        bench = Bench(images, default_shards(images), work)
        writers = [
            (writer, processes)
            for writer in WRITERS
            for processes in options.processes
            if (processes == 1 or writer.is_parallel)
        ]
        if not options.no_warm_up:
            bench.round(writers, keep=False)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            bench.round(writers, keep=True)
    finally:
        shutil.rmtree(work)
    kilobytes = bench.num_bytes / bench.num_images / 1e3
    print(HEADER.format(images=bench.num_images, kilobytes=kilobytes, shards=bench.shards, rounds=options.rounds))
    rows = bench.rows()
    print_table(rows, verdicts(rows))
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
        "rows": [asdict(row) for row in rows],
        "to_the_fastest_in_python": [asdict(each) for each in verdicts(rows)],
    }


if __name__ == "__main__":
    main()
