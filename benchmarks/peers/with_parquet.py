"""Parquet as `datasets` writes it for the Hub: load_dataset("imagefolder"), then what push_to_hub does to a shard."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="own-data-hub-")  # no run finds what another one prepared
import datasets
from contest import Task, read_task, run_parts
from datasets.table import embed_table_storage

ROWS = 100
"""Rows of a row group: what push_to_hub takes for images."""


def write_part(pictures: datasets.Dataset, task: Task, index: int) -> int:
    """Write the shards of one process."""
    shards, out, count = len(task.shards), task.folder(index), 0
    for number in range(shards * index // task.processes, shards * (index + 1) // task.processes):
        shard = pictures.shard(num_shards=shards, index=number, contiguous=True)
        looks = shard.format
        embedded = shard.with_format("arrow").map(
            embed_table_storage, batched=True, batch_size=ROWS, keep_in_memory=True
        )
        path = out / f"train-{number:05d}-of-{shards:05d}.parquet"
        embedded.with_format(**looks).to_parquet(path, batch_size=ROWS)
        count += len(shard)
    return count


def main() -> None:
    datasets.disable_progress_bars()
    task = read_task()
    folder = Path(task.shards[0][0].path).parents[1]
    pictures = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train")
    run_parts(task, partial(write_part, pictures))


if __name__ == "__main__":
    main()
