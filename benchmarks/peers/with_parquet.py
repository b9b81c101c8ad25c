"""Parquet as `datasets` writes it for the Hub: load_dataset("imagefolder"), then what push_to_hub does to a shard."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="own-data-hub-")  # no run finds what another one prepared
import datasets
from contest import print_samples, sync_file
from datasets.table import embed_table_storage

ROWS = 100
"""Rows of a row group: what push_to_hub takes for images."""


def write_shards(pictures: datasets.Dataset, shards: int, out: Path, indexes: range) -> int:
    """Write some of the shards."""
    count = 0
    for index in indexes:
        shard = pictures.shard(num_shards=shards, index=index, contiguous=True)
        looks = shard.format
        embedded = shard.with_format("arrow").map(
            embed_table_storage, batched=True, batch_size=ROWS, keep_in_memory=True
        )
        path = out / f"train-{index:05d}-of-{shards:05d}.parquet"
        embedded.with_format(**looks).to_parquet(path, batch_size=ROWS)
        sync_file(path)
        count += len(shard)
    return count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", type=Path, required=True, help="JSON: shards of [path, key, label]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--check", choices=["none"], required=True)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    shards = json.loads(options.order.read_bytes())["shards"]
    folder = Path(shards[0][0][0]).parents[1]
    options.out.mkdir(parents=True)
    pictures = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train")
    count = len(shards)
    parts = [
        range(count * part // options.processes, count * (part + 1) // options.processes)
        for part in range(options.processes)
    ]
    write = partial(write_shards, pictures, count, options.out)
    if options.processes == 1:
        written = [write(parts[0])]
    else:
        with multiprocessing.get_context("fork").Pool(options.processes) as pool:
            written = pool.map(write, parts)
    sync_file(options.out)
    print_samples(sum(written))


if __name__ == "__main__":
    main()
