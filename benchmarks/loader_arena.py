r"""Our loader and every peer in its fastest documented form, or our formats, on the same images: one run, one JSON.

    python benchmarks/loader_arena.py --corpus DIR --json benchmarks/results/arena.json --picture docs/arena.png
    python benchmarks/loader_arena.py --corpus DIR --json benchmarks/results/formats.json --contenders formats
    python benchmarks/loader_arena.py --contenders ours Lance --minutes 9 --json arena.json      # rows of others stay

A peer is a class in arena/, and a line in CONTENDERS. One that fails is recorded with its last words, and the others go
on. Rounds are interleaved, and ratios are of rounds of one run.
"""

from __future__ import annotations

import argparse
import json
import os
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

from benchmarks.harness import PEERS_PYTHON, ROOT, common_options, machine_facts, report, work_folder
from benchmarks.originals import build, bytes_of, corpus_images, image_folder
from benchmarks.tables import ARENA_FORMATS
from dataprep.host.measure import CommandError
from loaders.bench.round import Job, Round, last_line, measure_round

ARENA = Path(__file__).resolve().parent / "arena"
OURS, ROOFLINE = "dataprep", "decode"
"""Our loader, and full JPEG decoding, in plain threads, of images that are in memory already."""
ARENA_PYTHON = PEERS_PYTHON.parents[1] / "arena/bin/python"
MARKED = "webdataset, restart markers"
BUILT: dict[str, tuple[str, ...]] = {"imagefolder": (), "webdataset": (), "tfrecord": (), MARKED: ("--jpeg", "restart")}
"""Layouts that `dataprep build` writes, and its options."""
SHARDS = 8
HERE, BENCH, OTHER = sys.executable, str(PEERS_PYTHON), str(ARENA_PYTHON)
WRITERS = {
    **dict.fromkeys(("mds", "array_record", "mds-bytes", "litdata", "energon"), BENCH),
    "parquet": HERE,
    "lance": OTHER,
}
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
    form: str = "default"
    """Form of the loader: the default of its documents, or the fastest that they show."""
    interpolation: str = CUBIC
    large: bool = False
    """Whether it is measured at the second image size, too."""


def _ours(layout: str, interpolation: str = CUBIC) -> Entry:
    return Entry(loader=OURS, layout=layout, interpolation=interpolation, large=True, form="")


def _fast(name: str, layout: str, python: str, interpolation: str = CUBIC, *, large: bool = False) -> Entry:
    loader = f"{ARENA}/fast_peers.py:{name}"
    return Entry(loader=loader, layout=layout, python=python, form="fastest", interpolation=interpolation, large=large)


CONTENDERS: dict[str, Entry] = {
    "full decode": Entry(loader=ROOFLINE, layout="imagefolder", large=True, form=""),
    "ours": _ours("webdataset"),
    "ours, bilinear": _ours("webdataset", LINEAR),
    "ours, bilinear without antialiasing": _ours("webdataset", PLAIN),
    "ours, restart markers": _ours(MARKED),
    "ours, restart markers, bilinear": _ours(MARKED, LINEAR),
    "ours, restart markers, bilinear without antialiasing": _ours(MARKED, PLAIN),
    "tf.data": Entry(loader="tf.data", layout="tfrecord", form="as it is", interpolation=PLAIN, large=True),
    "DALI": _fast("Dali", "imagefolder", OTHER, large=True),
    "DALI, bilinear": _fast("Dali", "imagefolder", OTHER, LINEAR, large=True),
    "torchvision, tensors": _fast("TorchvisionTensors", "imagefolder", OTHER, large=True),
    "torchvision, tensors, bilinear": _fast("TorchvisionTensors", "imagefolder", OTHER, LINEAR, large=True),
    "torchcodec": _fast("TorchCodec", "imagefolder", OTHER, large=True),
    "torchcodec, bilinear": _fast("TorchCodec", "imagefolder", OTHER, LINEAR, large=True),
    "SPDL, tensors": _fast("SpdlTensors", "imagefolder", OTHER),
    "SPDL, FFmpeg": _fast("Spdl", "imagefolder", OTHER),
    "webdataset, tensors": _fast("WebDatasetTensors", "webdataset", BENCH),
    "MosaicML, tensors": _fast("MosaicTensors", "mds-bytes", BENCH),
    "Grain, tensors": _fast("GrainTensors", "array_record", BENCH),
    "LitData, tensors": _fast("LitData", "litdata", BENCH),
    "LitData raw, tensors": _fast("LitDataRaw", "imagefolder", BENCH),
    "Lance, tensors": _fast("Lance", "lance", OTHER),
    "Energon, tensors": _fast("Energon", "energon", BENCH),
    "datasets streaming, tensors": _fast("HuggingFaceTensors", "parquet", OTHER),
    "torchvision": Entry(loader="torchvision", layout="imagefolder", python=OTHER),
    "webdataset": Entry(loader="webdataset", layout="webdataset", python=BENCH),
    "MosaicML": Entry(loader="mosaic", layout="mds", python=BENCH),
    "Grain": Entry(loader="grain", layout="array_record", python=BENCH),
    "datasets streaming": Entry(loader=f"{ARENA}/fast_peers.py:HuggingFace", layout="parquet", python=OTHER),
    "ours, tfrecord": _ours("tfrecord"),
    "ours, imagefolder": _ours("imagefolder"),
}
BY_DEFAULT = [name for name in CONTENDERS if name not in ARENA_FORMATS]
"""Contenders of a run without --contenders; our other formats are compared in a run of their own."""
FORMATS = ["full decode", "ours", *ARENA_FORMATS]


class Arena:
    """The layouts, and what the rounds measured or why a contender failed."""

    def __init__(self, images: list[Path], options: argparse.Namespace, work: Path) -> None:
        self._options, self._work = options, work
        self._runs: dict[tuple[str, int], list[Round]] = defaultdict(list)
        self._failed: dict[str, str] = {}
        source = image_folder(images, work / "originals")
        for layout in dict.fromkeys(["imagefolder", *(CONTENDERS[name].layout for name in options.contenders)]):
            error = write_layout(source, work, layout)
            self._failed |= {name: error for name, entry in CONTENDERS.items() if error and entry.layout == layout}

    def round(self, deadline_s: float) -> bool:
        """Run every contender once at each size; return False where the time is over before the end."""
        for size in self._options.image_sizes:
            for name in self._options.contenders:
                if size == self._options.image_sizes[0] or CONTENDERS[name].large:
                    if time.monotonic() > deadline_s:
                        return False
                    if name not in self._failed:
                        self._run(name, size)
        return True

    def _run(self, name: str, size: int) -> None:
        entry, options = CONTENDERS[name], self._options
        print(f"{name}, {size}", file=sys.stderr)
        try:
            run = run_entry(entry, self._work, size, options.batch_size, options.workers, options.taken)
            decode_ms = [each.cpu_ms_per_image for each in self._runs["full decode", size]]
            fault = read_ahead(run.cpu_ms_per_image, decode_ms)
        except (CommandError, OSError) as error:
            fault = last_line(error.stderr) if isinstance(error, CommandError) else str(error)
        if fault:
            self._failed[name] = fault
            print(fault, file=sys.stderr)
        else:
            self._runs[name, size].append(run)

    def document(self) -> dict[str, Any]:
        """Return the figures of each contender and size, and the last words of those that failed."""
        rows = [
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
        return {"rows": rows, "errors": {name: said.replace(str(ROOT), ".") for name, said in self._failed.items()}}


def write_layout(source: Path, work: Path, layout: str, *more: str) -> str:
    """Write the images in a layout, unless it is there; return the last words of a writer that failed."""
    if (work / layout).exists():
        return ""
    if layout in BUILT:
        fmt = layout if layout in ("imagefolder", "tfrecord") else "webdataset"
        build(source, work / layout, *BUILT[layout], *more, fmt=fmt, shards=SHARDS)
        return ""
    done = subprocess.run(
        layout_command(layout, "--images", work / "imagefolder/train", "--out", work / layout, "--shards", SHARDS),
        capture_output=True,
        text=True,
        check=False,
    )
    return f"writing {layout}: {last_line(done.stderr)}" if done.returncode else ""


def layout_command(layout: str, *words: object) -> list[str]:
    """Return the command that writes a layout which `dataprep build` does not."""
    return [WRITERS[layout], str(ARENA / "layouts.py"), layout, *map(str, words)]


def run_entry(entry: Entry, work: Path, size: int, batch_size: int, workers: int, taken: int) -> Round:
    """Run one round of a contender. Raises CommandError where it fails; its `stderr` says how."""
    root = work / entry.layout
    if entry.loader != OURS and (root / "train").is_dir():
        root /= "train"
    job = Job(
        url=str(root),
        batch_size=batch_size,
        image_size=size,
        workers=workers,
        images=taken,
        interpolation=entry.interpolation,  # type: ignore[arg-type]  one of the three names above
    )
    words = {**asdict(job), "loader": entry.loader, "started_s": time.monotonic()}
    return measure_round([entry.python, str(ARENA / "arena_round.py")], words)


def read_ahead(cpu_ms: float, full_decode_ms: Sequence[float]) -> str | None:
    """Say so if a loader decoded its images before the clock ran, so that its run shows nothing.

    Args:
        cpu_ms: Processor time of an image.
        full_decode_ms: Processor time of a full decode of the same images, in each round.
    """
    if full_decode_ms and cpu_ms < LEAST_DECODE * statistics.median(full_decode_ms):
        return f"{cpu_ms:.2f} ms of processor time an image: it had decoded its images before the clock ran"
    return None


def main() -> None:
    """Measure; write the JSON after every round, and the picture at the end."""
    options = parse_options()
    os.environ["NO_GCE_CHECK"] = "true"
    facts = machine_facts()
    table = "formats" if options.contenders == FORMATS else "arena"
    with work_folder(options, "arena") as work:
        images = corpus_images(options.corpus, work, options.images)
        facts |= {"images": len(images), "bytes": bytes_of(images)}
        facts |= {name: getattr(options, name) for name in ("taken", "batch_size", "workers")}
        arena = Arena(images, options, work)
        deadline_s = time.monotonic() + 60 * options.minutes
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            whole = arena.round(deadline_s)
            report(table, facts | arena.document(), options)
            if not whole:
                break
    if options.picture:
        drawing = [PEERS_PYTHON, Path(__file__).with_name("pictures.py"), "arena", options.picture]
        subprocess.run(drawing, input=json.dumps(arena.document()), text=True, check=True)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = common_options(__doc__)
    names = [*CONTENDERS, "formats"]
    parser.add_argument("--contenders", nargs="+", choices=names, default=BY_DEFAULT, metavar="NAME")
    parser.add_argument("--image-sizes", type=int, nargs="+", default=[224, 448], help="the second: fast ones only")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="number of processes or threads, and of cores for them")
    parser.add_argument("--taken", type=int, default=640, help="images after the first batches, in each round")
    parser.add_argument("--minutes", type=float, default=60, help="no run begins after so long")
    parser.add_argument("--picture", type=Path, help="file to which the picture is written: .png or .svg")
    options = parser.parse_args()
    if options.contenders == ["formats"]:
        options.contenders = FORMATS
    return options


if __name__ == "__main__":
    main()
