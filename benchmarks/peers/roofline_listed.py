"""(e) The roofline after the start of a build: the plain loops of (a), and the steps that no build can leave out.

Python with NumPy and pyarrow in this process and in the server that forks the workers, as in dataprep/builder/pool.py;
the list of the originals with their sizes; a plan, a receipt for each shard and an index as parquet files, and a
manifest, each synced to the disk. No check of names, no resumption, no formats.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path

from contest import Entry, Task, print_samples, read_task, sync_file
from roofline import write_shard

from dataprep.dataset.columns import table_of

PRELOADED = ["numpy", "pyarrow.parquet", "simplejpeg", "roofline"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True, help="folder with train/<wnid>/")
    options, sys.argv[1:] = parser.parse_known_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    import numpy as np

    task = read_task()
    task.out.mkdir(parents=True)
    sizes = list_sizes(options.source / "train")
    np.random.default_rng(0).permutation(len(sizes))  # a plan permutes the list; the order is that of --order
    entries = [entry for shard in task.shards for entry in shard]
    write_rows(task.out / "plan.parquet", entries, sizes)
    write_json(task.out / "plan.json", {"shards": [len(shard) for shard in task.shards]})
    with context.Pool(task.processes) as pool:
        numbers = range(len(task.shards))
        receipts = pool.starmap(build_shard, [(task, number, sizes) for number in numbers], chunksize=1)
    write_rows(task.out / "index.parquet", entries, sizes)
    write_json(task.out / "dataset.json", {"shards": receipts})
    sync_file(task.out)
    print_samples(sum(len(shard) for shard in task.shards))


def list_sizes(root: Path) -> dict[str, int]:
    """Return the size of every image by its path."""
    sizes = {}
    for folder in os.scandir(root):
        for image in os.scandir(folder):
            sizes[image.path] = image.stat(follow_symlinks=False).st_size
    return sizes


def build_shard(task: Task, number: int, sizes: dict[str, int]) -> str:
    """Write one shard and its receipt, and return the receipt's name."""
    shard = task.shards[number]
    write_shard(task.out / f"{number:05d}.bin", shard, decode=task.check == "decode")
    receipt = task.out / f"{number:05d}.parquet"
    write_rows(receipt, shard, sizes)
    return receipt.name


def write_rows(path: Path, entries: list[Entry], sizes: dict[str, int]) -> None:
    """Write a row for each image to a parquet file, and sync it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("path", pa.string()), ("key", pa.string()), ("label", pa.int32()), ("bytes", pa.int64())])
    rows = [(entry.path, entry.key, entry.label, sizes[entry.path]) for entry in entries]
    pq.write_table(table_of(zip(*rows, strict=True), schema), path)  # pa.table would import pandas
    sync_file(path)


def write_json(path: Path, document: dict[str, object]) -> None:
    """Write a JSON file, and sync it."""
    path.write_text(json.dumps(document))
    sync_file(path)


if __name__ == "__main__":
    main()
