"""How fast a loader is through columns, beside the same loader without them: one table.

    python benchmarks/columns.py --json columns.json

Pictures of 2 kB, and those of the demo, each with three columns of 1 kB a sample, from a disk and from a bucket. The
bucket is an emulator on the same machine, which delays every request and takes a share of the cores: so CPU time of the
loader's process says more there.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import common_options, in_turns, report, work_folder
from benchmarks.originals import corpus_images, image_folder
from benchmarks.scale import numbered, pictures
from benchmarks.tables import _table
from tests.support.gcs_emulator import GCSEmulator

BUCKET = "dataprep-benchmark"
COLUMNS = ("one", "two", "three")
COLUMN_BYTES = 1024
SMALL_IMAGES = 20_000
SIZES = {"2 kB": 96, "demo": 224}
"""Size at which the pictures of a dataset are loaded."""
BATCH = 256
LATENCY_MS = 10.0
TARGET = 0.95
"""Target for the rate through columns, as a share of the rate without."""


def small_pictures(folder: Path, count: int) -> Path:
    """Write small pictures in folders of classes."""
    made = pictures()
    for number in range(count):
        path = folder / f"n{number % 10:08d}" / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbered(made[number % len(made)], number))
    return folder


def build(originals: Path, url: str) -> str:
    """Build a dataset, and give it columns."""
    import numpy as np

    import dataprep
    from dataprep.dataset.column_files import ColumnType
    from tests.support.columns import write_column

    dataprep.build_folder(source=originals, output=url, format="webdataset", num_shards=16)
    value = np.arange(COLUMN_BYTES).astype(np.uint8)
    for name in COLUMNS:
        write_column(url, name, ColumnType("array", "uint8", (COLUMN_BYTES,)), lambda kind, key: value)
    return url


def load(url: str, size: int, seconds: float, fields: tuple[str, ...]) -> dict[str, float]:
    """Load for some seconds after the first batches, and return the rate and the CPU time."""
    from loaders import open_loader

    with open_loader(url, batch_size=BATCH, image_size=size, fields=fields, region_policy="off") as loader:
        images, begun_s, cpu_s = -2 * BATCH, 0.0, 0.0
        while True:
            for batch in loader:
                images += len(batch.keys)
                if images == 0:
                    begun_s, cpu_s = time.perf_counter(), time.process_time()
                elif images > 0 and time.perf_counter() - begun_s > seconds:
                    took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
                    return {"images_per_s": images / took_s, "cpu_ms": 1e3 * cpu_s / images}


def columns_table(document: dict[str, Any]) -> list[str]:
    """Return rates without and with columns by pictures and place, with the median ratio of the rounds."""
    lines = []
    for row in document["rows"]:
        pairs = zip(row["images_per_s_columns"], row["images_per_s"], strict=True)
        ratio = statistics.median(after / before for after, before in pairs)
        below = f", below {row['target']:g}" if ratio < row["target"] else ""
        rates = [f"{statistics.median(row[name]):,.0f}" for name in ("images_per_s", "images_per_s_columns")]
        lines.append([row["pictures"], row["place"], *rates, f"{ratio:.2f}{below}"])
        lines[-1] += [f"{row[name]:.3f}" for name in ("cpu_ms", "cpu_ms_columns")]
    header = ["`columns.py`", "place", "images/s", "with 3 columns of 1 kB", "ratio", "CPU ms an image", "with columns"]
    return _table(header, lines)


def main() -> None:
    """Build, and load in turns."""
    parser = common_options(__doc__)
    parser.add_argument("--small", type=int, default=SMALL_IMAGES, help=f"pictures of 2 kB; default: {SMALL_IMAGES}")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement; default: 5")
    options = parser.parse_args()
    with work_folder(options, "columns") as work, GCSEmulator() as emulator:
        os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
        emulator.create_bucket(BUCKET)
        originals = {
            "2 kB": small_pictures(work / "small", options.small),
            "demo": image_folder(corpus_images(options.corpus, work, options.images or 1000), work / "demo") / "train",
        }
        runs = {}
        for name, folder in originals.items():
            for place in (str(work / f"{name}-shards"), f"gs://{BUCKET}/{name.replace(' ', '')}"):
                url = build(folder, place)
                for fields in ((), COLUMNS):
                    case = name, "bucket" if url.startswith("gs:") else "disk", bool(fields)
                    runs[case] = partial(load, url, SIZES[name], options.seconds, fields)
        emulator.set_latency(LATENCY_MS)
        rounds = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
        emulator.set_latency(0)
    rows: list[dict[str, Any]] = []
    for (name, place, has_columns), with_columns in rounds.items():
        if has_columns:
            without = rounds[name, place, False]
            rows.append(
                {
                    "pictures": name,
                    "place": place,
                    "images_per_s": [each["images_per_s"] for each in without],
                    "images_per_s_columns": [each["images_per_s"] for each in with_columns],
                    "cpu_ms": statistics.median(each["cpu_ms"] for each in without),
                    "cpu_ms_columns": statistics.median(each["cpu_ms"] for each in with_columns),
                    "target": TARGET,
                }
            )
    document = {"latency_ms": LATENCY_MS, "rows": rows}
    print(*columns_table(document), sep="\n")
    report("columns", document, options)


if __name__ == "__main__":
    main()
