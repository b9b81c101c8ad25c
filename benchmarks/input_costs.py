"""CPU time that an image costs each loader, by delivered and stored size: a table for `dataprep plan-input`.

    python benchmarks/input_costs.py --corpus DIR     # measures, and writes results/input-costs.json after every run
    python benchmarks/input_costs.py --csv            # writes dataprep/data/input_costs.csv from that file

The same command after an interruption goes on with the first run that is missing; more `--rounds` add to those that are
there. Every run is a process that takes batches as fast as they come, as in loader_arena.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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
        raise ValueError(f"no run of {missing}; measure again with the same --json")
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
        from loader_arena import CONTENDERS, commit
        from originals import corpus_images, image_folder

        from dataprep.host.cpu import background_cores
        from dataprep.host.versions import machine_document

        busy_cores = background_cores()
        self._options, self._entries, self._commit = options, CONTENDERS, commit()
        images = corpus_images(options.corpus, work, options.images)
        self._source = work / "images"
        shutil.rmtree(self._source, ignore_errors=True)
        image_folder(images, self._source)
        self._roots = {stored: work / stored for stored in STORED}
        for stored in STORED:
            self._write(stored)
        self.document: dict[str, Any] = {
            "machine": dict(machine_document(busy_cores)),
            "batch_size": options.batch_size,
            "workers": options.workers,
            "taken": options.taken,
            "images": {stored: self._facts(stored) for stored in STORED},
            "runs": [],
        }
        self._resume()

    def _write(self, stored: str) -> None:
        """Write one copy in every layout; those that are there already are left as they are."""
        from loader_arena import BUILT, SHARDS, layout_command
        from originals import DATAPREP

        root = self._roots[stored]
        layouts = dict.fromkeys(self._entries[name].layout for name, _ in LOADERS.values())
        command = [DATAPREP, "build", "imagenet", "--source", self._source, "--split", "train", "--allow-partial"]
        command += ["--max-reject-ratio", "1", "--num-shards", SHARDS, "--json"]
        command += [] if stored == ORIGINALS else ["--resize", stored]
        for layout in [name for name in BUILT if name in layouts]:
            if not (root / layout / "dataset.json").exists():
                _run([*command, "--output", root / layout, *BUILT[layout]])
        for layout in [name for name in layouts if name not in BUILT]:
            if not (root / layout).is_dir():
                new = root / f"{layout}.new"
                shutil.rmtree(new, ignore_errors=True)
                words = ["--images", root / "imagefolder/train", "--out", new, "--shards", SHARDS]
                _run(layout_command(layout, *words))
                new.rename(root / layout)

    def _facts(self, stored: str) -> dict[str, float]:
        """Return count, mean bytes and mean pixels of a copy's images."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        rows = pq.read_table(self._roots[stored] / "webdataset/index/train.parquet")
        pixels = pc.multiply(rows["height"].cast("int64"), rows["width"].cast("int64"))
        return {
            "count": rows.num_rows,
            "bytes_per_image": round(pc.mean(rows["image_bytes"]).as_py(), 1),
            "pixels_per_image": round(pc.mean(pixels).as_py(), 1),
        }

    def _resume(self) -> None:
        """Take the runs that are there already, if they were measured in the same way.

        Raises:
            SystemExit: The file has runs of other images, settings or machines.
        """
        if not self._options.json.exists():
            return
        before = json.loads(self._options.json.read_text(encoding="utf-8"))
        facts = [name for name in self.document if name != "runs"]
        changed = [name for name in facts if _lasting(before, name) != _lasting(self.document, name)]
        if changed:
            others = ", ".join(changed)
            raise SystemExit(f"{self._options.json}: measured with another {others}; remove it to begin again")
        self.document["machine"], self.document["runs"] = before["machine"], before["runs"]

    def measure(self) -> None:
        """Make the runs that are missing; the document is written after each."""
        from loader_arena import OURS, Job, run_entry

        done = {case_of(run) for run in self.document["runs"]}
        missing = [case for case in cases(self._options.rounds) if case not in done]
        for number, case in enumerate(missing, start=1):
            print(f"{number} of {len(missing)}: {case.loader}, {case.stored}, {case.image_size}", file=sys.stderr)
            entry = self._entries[LOADERS[case.loader][0]]
            root = self._roots[case.stored] / entry.layout
            if entry.loader != OURS and (root / "train").is_dir():
                root /= "train"
            job = Job(
                url=str(root),
                batch_size=self._options.batch_size,
                image_size=case.image_size,
                workers=self._options.workers,
                images=self._options.taken,
                interpolation=entry.interpolation,
            )
            found = run_entry(entry, job)
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
            _replace(self._options.json, json.dumps(self.document, indent=1) + "\n")


def _lasting(document: dict[str, Any], name: str) -> Any:
    """Return a fact of a document without what changes from one minute to the next."""
    fact = document.get(name)
    if name != "machine" or fact is None:
        return fact
    return {key: value for key, value in fact.items() if key not in ("busy_cores_before", "measured")}


def _replace(path: Path, text: str) -> None:
    """Write a file whole, or leave the one that is there."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _run(command: list[Any]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")


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
    work = options.work.resolve() / "input-costs"
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options, work)
    bench.measure()
    print(table_of(bench.document), end="")
    shutil.rmtree(work)  # after an interruption it stays, for the command that goes on


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
