r"""Our loader and every peer in its fastest documented form, or our formats, on the same images: one run, one JSON.

python benchmarks/loader_arena.py --corpus DIR --json benchmarks/results/arena.json
python benchmarks/loader_arena.py --corpus DIR --json benchmarks/results/formats.json \
    --contenders "full decode" ours "ours, tfrecord" "ours, imagefolder"

A peer is a file in arena/ with a class like those of arena/arena_peers.py, and a line in CONTENDERS. One that fails
is recorded with its last words, and the others go on. Rounds are interleaved, and ratios are of rounds of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.originals import DATAPREP, PEERS_PYTHON, commit, corpus_images, image_folder
from benchmarks.tables import ARENA_FORMATS
from dataprep.host.cpu import background_cores
from dataprep.host.measure import CommandError
from dataprep.host.versions import machine_document
from loaders.bench.round import Job, Round, last_line, measure_round

ROOT = Path(__file__).resolve().parents[1]
ARENA = Path(__file__).resolve().parent / "arena"
OURS, ROOFLINE = "dataprep", "decode"
"""Our loader, and full JPEG decoding, in plain threads, of images that are in memory already."""
ARENA_PYTHON = PEERS_PYTHON.parents[1] / "arena/bin/python"
MARKED = "webdataset, restart markers"
BUILT: dict[str, tuple[str, ...]] = {
    "imagefolder": ("--format", "imagefolder"),
    "webdataset": ("--format", "webdataset"),
    "tfrecord": ("--format", "tfrecord"),
    MARKED: ("--format", "webdataset", "--jpeg", "restart"),
}
"""Options of `dataprep build` for the layouts that it writes."""
SHARDS = 8
HERE, BENCH, OTHER = sys.executable, str(PEERS_PYTHON), str(ARENA_PYTHON)
WRITERS = {"mds": BENCH, "array_record": BENCH, "mds-bytes": BENCH, "litdata": BENCH, "energon": BENCH, "parquet": HERE}
"""Interpreters that write the layouts which `dataprep build` does not."""
LEAST_DECODE = 0.25
"""Share of a full decode's processor time below which no image was decoded while the clock ran."""
CUBIC, LINEAR, PLAIN = "bicubic", "bilinear", "bilinear-no-antialias"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row of the table."""

    loader: str
    layout: str
    python: str = HERE
    form: str = ""
    """Form of the loader: the default of its documents, or the fastest that they show."""
    interpolation: str = CUBIC
    large: bool = False
    """Whether it is measured at the second image size, too."""


def _fast(file: str, layout: str, python: str = BENCH, interpolation: str = CUBIC, *, large: bool = False) -> Entry:
    return Entry(
        loader=f"{ARENA}/{file}",
        layout=layout,
        python=python,
        form="fastest",
        interpolation=interpolation,
        large=large,
    )


CONTENDERS: dict[str, Entry] = {
    "full decode": Entry(loader=ROOFLINE, layout="imagefolder", large=True),
    "ours": Entry(loader=OURS, layout="webdataset", large=True),
    "ours, bilinear": Entry(loader=OURS, layout="webdataset", interpolation=LINEAR, large=True),
    "ours, bilinear without antialiasing": Entry(loader=OURS, layout="webdataset", interpolation=PLAIN, large=True),
    "ours, restart markers": Entry(loader=OURS, layout=MARKED, large=True),
    "ours, restart markers, bilinear": Entry(loader=OURS, layout=MARKED, interpolation=LINEAR, large=True),
    "ours, restart markers, bilinear without antialiasing": Entry(
        loader=OURS, layout=MARKED, interpolation=PLAIN, large=True
    ),
    "tf.data": Entry(loader="tf.data", layout="tfrecord", form="as it is", interpolation=PLAIN, large=True),
    "DALI": _fast("dali_cpu.py:Dali", "imagefolder", OTHER, large=True),
    "DALI, bilinear": _fast("dali_cpu.py:Dali", "imagefolder", OTHER, LINEAR, large=True),
    "torchvision, tensors": _fast("torchvision_tensors.py:TorchvisionTensors", "imagefolder", HERE, large=True),
    "torchvision, tensors, bilinear": _fast(
        "torchvision_tensors.py:TorchvisionTensors", "imagefolder", HERE, LINEAR, large=True
    ),
    "torchcodec": _fast("torchcodec_images.py:TorchCodec", "imagefolder", OTHER, large=True),
    "torchcodec, bilinear": _fast("torchcodec_images.py:TorchCodec", "imagefolder", OTHER, LINEAR, large=True),
    "SPDL, tensors": _fast("spdl_tensors.py:SpdlTensors", "imagefolder", OTHER),
    "SPDL, FFmpeg": _fast("spdl_threads.py:Spdl", "imagefolder", OTHER),
    "webdataset, tensors": _fast("webdataset_tensors.py:WebDatasetTensors", "webdataset"),
    "MosaicML, tensors": _fast("mosaic_tensors.py:MosaicTensors", "mds-bytes"),
    "Grain, tensors": _fast("grain_tensors.py:GrainTensors", "array_record"),
    "LitData, tensors": _fast("litdata_streaming.py:LitData", "litdata"),
    "Energon, tensors": _fast("energon_loader.py:Energon", "energon"),
    "datasets streaming, tensors": _fast("hf_streaming.py:HuggingFaceTensors", "parquet", OTHER),
    "Ray Data, tensors": _fast("ray_data.py:RayData", "parquet", OTHER),
    "torchvision": Entry(loader="torchvision", layout="imagefolder", form="default"),
    "webdataset": Entry(loader="webdataset", layout="webdataset", python=BENCH, form="default"),
    "MosaicML": Entry(loader="mosaic", layout="mds", python=BENCH, form="default"),
    "Grain": Entry(loader="grain", layout="array_record", python=BENCH, form="default"),
    "datasets streaming": Entry(
        loader=f"{ARENA}/hf_streaming.py:HuggingFace", layout="parquet", python=OTHER, form="default"
    ),
    "ours, tfrecord": Entry(loader=OURS, layout="tfrecord", large=True),
    "ours, imagefolder": Entry(loader=OURS, layout="imagefolder", large=True),
}
BY_DEFAULT = [name for name in CONTENDERS if name not in ARENA_FORMATS]
"""Contenders of a run without --contenders; our other formats are compared in a run of their own."""


class Arena:
    """The layouts, and what the rounds measured or why a contender failed."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options = options
        images = corpus_images(options.corpus, work, options.images)
        self.num_images, self.num_bytes = len(images), sum(image.stat().st_size for image in images)
        self._errors: dict[str, str] = {}
        self._runs: dict[tuple[str, int], list[Round]] = defaultdict(list)
        self._roots: dict[str, Path] = {}
        _build(images, work, self._roots)
        for layout in dict.fromkeys(CONTENDERS[name].layout for name in options.contenders):
            self._write(layout, work)

    def _write(self, layout: str, work: Path) -> None:
        if layout in self._roots:
            return
        root = self._roots[layout] = work / layout
        words = ["--images", work / "imagefolder/train", "--out", root, "--shards", SHARDS]
        done = subprocess.run(layout_command(layout, *words), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            for name, entry in CONTENDERS.items():
                if entry.layout == layout:
                    self._errors[name] = f"writing {layout}: {last_line(done.stderr)}"

    def round(self, deadline_s: float) -> bool:
        """Run every contender once at each size; return False where the time is over before the end."""
        for size in self._options.image_sizes:
            for name in self._options.contenders:
                if size == self._options.image_sizes[0] or CONTENDERS[name].large:
                    if time.monotonic() > deadline_s:
                        return False
                    self._run(name, size)
        return True

    def _run(self, name: str, size: int) -> None:
        if name in self._errors:
            return
        entry, options = CONTENDERS[name], self._options
        root = self._roots[entry.layout]
        if entry.loader != OURS and (root / "train").is_dir():
            root /= "train"
        job = Job(
            url=str(root),
            batch_size=options.batch_size,
            image_size=size,
            workers=options.workers,
            images=options.taken,
            interpolation=entry.interpolation,
        )
        print(f"{name}, {size}", file=sys.stderr)
        try:
            run = run_entry(entry, job)
        except (CommandError, OSError) as error:
            self._errors[name] = last_line(error.stderr) if isinstance(error, CommandError) else str(error)
            print(self._errors[name], file=sys.stderr)
            return
        fault = read_ahead(run.cpu_ms_per_image, [each.cpu_ms_per_image for each in self._runs["full decode", size]])
        if fault:
            self._errors[name] = fault
            print(fault, file=sys.stderr)
        else:
            self._runs[name, size].append(run)

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures of each contender and size."""
        return [
            {
                "name": name,
                "image_size": size,
                "layout": CONTENDERS[name].layout,
                "form": CONTENDERS[name].form,
                "interpolation": CONTENDERS[name].interpolation if CONTENDERS[name].loader != ROOFLINE else "",
                "version": runs[0].version,
                "rounds_images_per_s": [round(run.images_per_s, 1) for run in runs],
                "rounds_cpu_ms": [round(run.cpu_ms_per_image, 4) for run in runs],
                "first_batch_s": [round(run.first_batch_s, 2) for run in runs],
                "sum_mb": [round(run.sum_mb) for run in runs],
            }
            for (name, size), runs in self._runs.items()
            if runs
        ]

    @property
    def errors(self) -> dict[str, str]:
        """Last words of the contenders that failed, without the paths of this machine."""
        return {name: said.replace(str(ROOT), ".") for name, said in self._errors.items()}


def run_entry(entry: Entry, job: Job) -> Round:
    """Run one round of a contender. Raises CommandError where it fails; its `stderr` says how."""
    words = {**asdict(job), "loader": entry.loader, "started_s": time.monotonic()}
    return measure_round([entry.python, str(ARENA / "arena_round.py")], words)


def layout_command(layout: str, *words: object) -> list[str]:
    """Return the command that writes a layout which `dataprep build` does not."""
    return [WRITERS[layout], str(ARENA / "layouts.py"), layout, *map(str, words)]


def read_ahead(cpu_ms: float, full_decode_ms: Sequence[float]) -> str | None:
    """Say so if a loader decoded its images before the clock ran, so that its run shows nothing.

    Args:
        cpu_ms: Processor time of an image.
        full_decode_ms: Processor time of a full decode of the same images, in each round.
    """
    if full_decode_ms and cpu_ms < LEAST_DECODE * statistics.median(full_decode_ms):
        return f"{cpu_ms:.2f} ms of processor time an image: it had decoded its images before the clock ran"
    return None


def _build(images: list[Path], work: Path, roots: dict[str, Path]) -> None:
    source = image_folder(images, work / "originals")
    for layout, kind in BUILT.items():
        roots[layout] = work / layout
        command = [DATAPREP, "build", "imagenet", "--source", source, "--output", roots[layout], *kind]
        command += ["--split", "train", "--allow-partial", "--max-reject-ratio", "1", "--num-shards", str(SHARDS)]
        subprocess.run([*command, "--json"], capture_output=True, check=True)


def main() -> None:
    """Measure, and write the JSON after every round."""
    options = parse_options()
    os.environ["NO_GCE_CHECK"] = "true"
    work = options.work.resolve() / f"arena-{os.getpid()}"
    work.mkdir(parents=True)
    facts: dict[str, Any] = {"machine": dict(machine_document(background_cores())), "commit": commit()}
    try:
        arena = Arena(options, work)
        deadline_s = time.monotonic() + 60 * options.minutes
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            whole = arena.round(deadline_s)
            settings = {
                "images": arena.num_images,
                "bytes": arena.num_bytes,
                "taken": options.taken,
                "batch_size": options.batch_size,
                "workers": options.workers,
            }
            document = facts | settings | {"rows": arena.rows(), "errors": arena.errors}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
            if not whole:
                break
    finally:
        shutil.rmtree(work)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, help="number of images of the corpus; default: all, 4,000 of demo data")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=BY_DEFAULT)
    parser.add_argument("--image-sizes", type=int, nargs="+", default=[224, 448], help="the second: fast ones only")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="number of processes or threads, and of cores for them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--taken", type=int, default=640, help="images after the first batches, in each round")
    parser.add_argument("--minutes", type=float, default=60, help="no run begins after so long")
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks", help="folder for the layouts")
    parser.add_argument("--json", type=Path, required=True, help="file to which the figures are written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
