"""CPU time that an image costs each loader, by delivered and stored size: a table for `dataprep plan-input`.

    python benchmarks/input_costs.py --corpus DIR     # measures, and writes results/input-costs.json after every run
    python benchmarks/input_costs.py --csv            # writes dataprep/data/input_costs.csv from that file

Every run is a process that takes batches as fast as they come, as in loader_arena.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DOCUMENT = ROOT / "benchmarks/results/input-costs.json"
TABLE = ROOT / "dataprep/data/input_costs.csv"
ORIGINALS = "originals"
STORED = (ORIGINALS, "256", "320", "512")
"""Copies of the images: as they are, and at most so large at the shorter side."""
IMAGE_SIZES = (224, 448)
LOADERS = {
    "dataprep": ("ours", "crop"),
    "tf.data": ("tf.data", "crop"),
    "torchvision": ("torchvision", "whole"),
    "grain": ("Grain", "whole"),
    "mosaic": ("MosaicML", "whole"),
    "webdataset": ("webdataset", "whole"),
}
"""Name in loader_arena.py, and the part of an image that is decoded, by the name in the table."""
FIELDS = (
    "loader",
    "decodes",
    "image_size",
    "cpu_ms_per_image",
    "stored_ms_per_image",
    "bytes_per_image",
    "date",
    "machine",
)
HEADER = """\
# CPU time of one training image: random-resized crop (area 0.2 to 1), flip, uint8; user and system time of all
# processes. Written by `benchmarks/input_costs.py --csv` from benchmarks/results/input-costs.json: medians of
# {rounds} rounds, batches of {batch_size}, {workers} workers, bicubic (tf.data: bilinear), commit {commits}.
# stored_ms_per_image: the part that grows with the stored pixels, by a straight line through the originals and the
# same images stored at shorter sides of {sides}.
# Machine: {cores} cores, {cpu}.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """What one run measures."""

    loader: str
    stored: str
    image_size: int
    round: int


def cases(rounds: int) -> Iterator[Case]:
    """Yield the runs in their order: a round measures every case once."""
    for number in range(rounds):
        for stored in STORED:
            for image_size in IMAGE_SIZES:
                for loader in LOADERS:
                    yield Case(loader, stored, image_size, number)


def case_of(run: dict[str, Any]) -> Case:
    """Return what a recorded run measured."""
    return Case(run["loader"], run["stored"], run["image_size"], run["round"])


def table_of(document: dict[str, Any]) -> str:
    """Return the CSV file that the recorded runs give.

    Raises:
        ValueError: A run is missing: every round that was begun must be whole.
    """
    runs = {case_of(run): run["cpu_ms_per_image"] for run in document["runs"]}
    rounds = 1 + max((case.round for case in runs), default=-1)
    missing = next((case for case in cases(max(1, rounds)) if case not in runs), None)
    if missing is not None:
        raise ValueError(f"no run of {missing}; measure again")
    machine, images = document["machine"], document["images"]
    text = io.StringIO()
    sides = ", ".join(STORED[1:-1]) + f" and {STORED[-1]}"
    text.write(
        HEADER.format(
            rounds=rounds,
            batch_size=document["batch_size"],
            workers=document["workers"],
            commits=" and ".join(dict.fromkeys(run["commit"] for run in document["runs"])),
            sides=sides,
            cores=machine["cores"],
            cpu=machine["processor"],
        )
    )
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for loader, (_, decodes) in LOADERS.items():
        for image_size in IMAGE_SIZES:
            cpu_ms = {
                stored: statistics.median(runs[Case(loader, stored, image_size, number)] for number in range(rounds))
                for stored in STORED
            }
            pixels = {stored: images[stored]["pixels_per_image"] for stored in STORED}
            row = (
                *(loader, decodes, image_size, f"{cpu_ms[ORIGINALS]:.2f}", f"{stored_ms(cpu_ms, pixels):.2f}"),
                *(round(images[ORIGINALS]["bytes_per_image"]), machine["measured"][:10], machine["processor"]),
            )
            writer.writerow(row)
    return text.getvalue()


def stored_ms(cpu_ms: dict[str, float], pixels: dict[str, float]) -> float:
    """Return the part of the originals' CPU time that grows with their pixels: the slope of the straight line through
    all copies (least squares) times the originals' pixels, at least 0 and at most all of the time."""
    if len(set(pixels.values())) == 1:
        raise ValueError("all copies have the same number of pixels; take larger originals")
    slope, _ = statistics.linear_regression([pixels[stored] for stored in STORED], [cpu_ms[s] for s in STORED])
    return min(max(0.0, slope * pixels[ORIGINALS]), cpu_ms[ORIGINALS])


class Bench:
    """The copies in every layout that is needed, and the document with the runs."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        from benchmarks.harness import commit
        from benchmarks.loader_arena import CONTENDERS, write_layout
        from benchmarks.originals import corpus_images, image_folder
        from dataprep.host.cpu import background_cores
        from dataprep.host.versions import machine_document

        busy_cores = background_cores()
        self._options, self._entries, self._commit, self._work = options, CONTENDERS, commit(), work
        source = work / "images"
        shutil.rmtree(source, ignore_errors=True)
        image_folder(corpus_images(options.corpus, work, options.images), source)
        layouts = dict.fromkeys(["imagefolder", *(CONTENDERS[name].layout for name, _ in LOADERS.values())])
        for stored in STORED:
            resize = () if stored == ORIGINALS else ("--resize", stored)
            for layout in layouts:
                if error := write_layout(source, work / stored, layout, *resize):
                    raise SystemExit(error)
        self.document: dict[str, Any] = {
            "machine": dict(machine_document(busy_cores)),
            "batch_size": options.batch_size,
            "workers": options.workers,
            "taken": options.taken,
            "images": {stored: self._facts(stored) for stored in STORED},
            "runs": [],
        }

    def _facts(self, stored: str) -> dict[str, float]:
        """Return count, mean bytes and mean pixels of a copy's images."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        rows = pq.read_table(self._work / stored / "webdataset/index/train.parquet")
        pixels = pc.multiply(rows["height"].cast("int64"), rows["width"].cast("int64"))
        return {
            "count": rows.num_rows,
            "bytes_per_image": round(pc.mean(rows["image_bytes"]).as_py(), 1),
            "pixels_per_image": round(pc.mean(pixels).as_py(), 1),
        }

    def measure(self) -> None:
        """Make all runs; the document is written after each."""
        from benchmarks.loader_arena import run_entry

        options, runs = self._options, list(cases(self._options.rounds))
        for number, case in enumerate(runs, start=1):
            print(f"{number} of {len(runs)}: {case.loader}, {case.stored}, {case.image_size}", file=sys.stderr)
            settings = (case.image_size, options.batch_size, options.workers, options.taken)
            found = run_entry(self._entries[LOADERS[case.loader][0]], self._work / case.stored, *settings)
            self.document["runs"].append(
                {
                    "loader": case.loader,
                    "version": found.version,
                    "stored": case.stored,
                    "image_size": case.image_size,
                    "round": case.round,
                    "commit": self._commit,
                    "cpu_ms_per_image": round(found.cpu_ms_per_image, 4),
                    "images_per_s": round(found.images_per_s, 1),
                    "first_batch_s": round(found.first_batch_s, 2),
                }
            )
            _replace(options.json, json.dumps(self.document, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    """Write a file whole, or leave the one that is there."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _recorded_table(runs: Path) -> str:
    """Return the table of recorded runs; a program without them ends with a line that says what to do."""
    try:
        return table_of(json.loads(runs.read_text(encoding="utf-8")))
    except FileNotFoundError:
        message = "no such file; measure first, without --csv, or name the file of the runs with --json"
    except ValueError as error:
        message = str(error)
    raise SystemExit(f"{runs}: {message}")


def main() -> None:
    """Measure, or write the table."""
    options = parse_options()
    if options.csv:
        _replace(options.table, _recorded_table(options.json))
        return
    os.environ["NO_GCE_CHECK"] = "true"
    from benchmarks.harness import work_folder

    with work_folder(options, "input-costs") as work:
        bench = Bench(options, work)
        bench.measure()
    print(table_of(bench.document), end="")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, default=1024, help="number of images of the corpus")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2, help="number of processes or threads, and of cores for them")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--taken", type=int, default=512, help="images after the first batches, in each run")
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks", help="folder for the copies")
    parser.add_argument("--json", type=Path, default=DOCUMENT, help="file of the runs")
    parser.add_argument("--csv", action="store_true", help="measure nothing; write the table from the file of the runs")
    parser.add_argument("--table", type=Path, default=TABLE, help="the table that --csv writes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
