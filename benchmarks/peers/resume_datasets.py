"""Hugging Face datasets, streamed, as its documents say under "Save a dataset checkpoint and resume iteration".

Shards are divided among the ranks by `split_dataset_by_node`, and each rank stores and loads its own state. Samples of
a shuffle buffer are lost when a stream resumes, as the documents say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import datasets
import pyarrow
import pyarrow.parquet
from datasets.distributed import split_dataset_by_node
from resume_rank import SEED, Contender, Life, photographs, run

BUFFER = 100
"""Samples of the shuffle buffer."""
SHARD_SAMPLES = 10


class Datasets(Contender):
    """Parquet files with the key and the bytes of every photograph."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        files = sorted(map(str, life.data.glob("*.parquet")))
        rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        rows = rows.shuffle(seed=SEED, buffer_size=BUFFER)
        rows = split_dataset_by_node(rows, rank=life.rank, world_size=life.world_size)
        self._batches = rows.select_columns(["key"]).batch(life.rank_batch, drop_last_batch=True)

    def steps(self) -> Iterator[list[str]]:
        if (before := self.life.state_before()) is not None:
            self._batches.load_state_dict(json.loads(before.read_bytes()))
        for batch in self._batches:
            yield batch["key"]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self._batches.state_dict()))


def write(order: Path, out: Path) -> None:
    """Write parquet files."""
    out.mkdir()
    rows = [{"key": key, "image": image} for key, image in photographs(order)]
    for number, first in enumerate(range(0, len(rows), SHARD_SAMPLES)):
        table = pyarrow.Table.from_pylist(rows[first : first + SHARD_SAMPLES])
        pyarrow.parquet.write_table(table, out / f"{number:05d}.parquet")


if __name__ == "__main__":
    run(Datasets, write)
