"""What an index larger than its memory costs, if images are drawn one by one from all shards.

    python benchmarks/index_rows.py --json index_rows.json

Datasets whose neighbours may have the same class are read so. `in memory` has an index that fits, of as many shards;
`on the disk` has rows that do not, each shard of which was read once before; `nowhere` may keep them on no disk. All
shards are links to one file, which the page cache holds: reading costs nothing but processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import large_index
from benchmarks.harness import common_options, in_turns, report, work_folder

IMAGE_BYTES = 32_000
"""Room for an image; it takes 16 to 31 kB of it."""
FITTING_ROWS = 1_000_000
FULL_ROWS, FULL_BYTES = 400_000_000, 256 * 2**20
"""Rows that share the memory of a loader in a large dataset; with fewer rows there is less memory in proportion."""
BATCH = 256


def write_dataset(folder: Path, shards: int, shard_rows: int) -> None:
    """Write a dataset whose shards are links to one file of images."""
    import numpy as np
    import pyarrow.parquet as pq
    from PIL import Image

    large_index.IMAGE_BYTES = IMAGE_BYTES
    large_index.write_dataset(folder, shards, shard_rows)
    noise = np.random.default_rng(large_index.SEED).normal(128, 50, (64, 64, 3)).clip(0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(noise).resize((256, 256), Image.Resampling.BICUBIC).save(file, "JPEG", quality=65)
    first, *others = sorted((folder / "train").glob("*.tar"))
    table = pq.ParquetFile(next((folder / "index").glob("train*"))).read_row_group(0, ["image_offset"])
    with first.open("r+b") as shard:
        for offset in table["image_offset"].to_pylist():
            shard.seek(offset)
            shard.write(file.getvalue())  # zeros follow up to the size in the index, which decoders pass over
    for path in others:
        path.unlink()
        path.hardlink_to(first)
    document = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps(document | {"shuffled": False}))


def measure(url: str, max_bytes: int, images: int, fills: str) -> dict[str, float]:
    """Load images in this process, after all rows were read once if `fills`, and return rate and CPU time."""
    import loaders.fetch.index as rows
    from dataprep.dataset import index
    from loaders import open_loader

    rows.MAX_INDEX_BYTES, rows.SPARE_BYTES = max_bytes, 0
    index.MAX_BUFFERED_BYTES = 0  # as an index of 400 million rows, which is larger
    warnings.simplefilter("ignore")
    settings: dict[str, Any] = {"check_digests": False, "region_policy": "off", "threads": os.cpu_count()}
    with open_loader(url, batch_size=BATCH, image_size=224, **settings) as loader:
        for shard in range(len(loader.dataset.split.shards)) if fills else ():
            loader.index.load(shard)
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        count, started_s, cpu_s = -(-images // BATCH), time.monotonic(), time.process_time()
        for _ in range(count):
            next(batches)
        wall_s, cpu_s = time.monotonic() - started_s, time.process_time() - cpu_s
    return {"images_per_s": count * BATCH / wall_s, "cpu_ms": 1e3 * cpu_s / count / BATCH}


def main() -> None:
    """Write the datasets, and load from each in turn."""
    parser = common_options(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, default=40_000_000)
    parser.add_argument("--taken", type=int, default=20_000, help="images of a measurement")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        url, max_bytes, images, fills = options.measure
        print(json.dumps(measure(url, int(max_bytes), int(images), fills)))
        return
    with work_folder(options, "index-rows") as work:
        shards = max(1, options.rows // large_index.SHARD_ROWS)
        write_dataset(work / "large", shards, options.rows // shards)
        write_dataset(work / "fits", shards, min(FITTING_ROWS, options.rows) // shards)

        def loaded(name: str, max_bytes: int, images: int, cache: str) -> dict[str, float]:
            words = [str(work / name), str(max_bytes), str(images), "" if cache == os.devnull else "fill"]
            command = [sys.executable, __file__, "--measure", *words]
            environment = os.environ | {"XDG_CACHE_HOME": cache}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            figures: dict[str, float] = json.loads(done.stdout)
            return figures

        little, cache = FULL_BYTES * options.rows // FULL_ROWS, str(work / "cache")
        runs = {
            "in memory": partial(loaded, "fits", 2**40, options.taken, cache),
            "on the disk": partial(loaded, "large", little, options.taken, cache),
            "nowhere": partial(loaded, "large", little, options.taken // 20, os.devnull),
        }
        rounds = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
    report("index-rows", {"index_rows": options.rows, "memory_bytes": little, "rounds": rounds}, options)


if __name__ == "__main__":
    main()
