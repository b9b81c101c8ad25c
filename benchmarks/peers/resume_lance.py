"""LanceDB's StreamingDataset, as its documents say under "Checkpointing" and "Resuming".

Every rank stores its state; all of them are merged, and every rank loads the result. The number of splits is divisible
by every number of ranks, and the global batch has one sample a split. LanceDB starts threads when it is imported, so a
rank imports it after it was forked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow  # noqa: F401  once for all ranks, like torch
from resume_rank import SEED, Contender, Life, photographs, run
from torch.utils.data import DataLoader


class Lance(Contender):
    """A table with the key and the bytes of every photograph."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        import lancedb
        from lancedb.streaming import StreamingDataset

        table = lancedb.connect(str(life.data)).open_table("photographs")
        world = {"rank": life.rank, "world_size": life.world_size}
        self._dataset = StreamingDataset(table, num_splits=life.batch_size, shuffle_seed=SEED, **world)

    def steps(self) -> Iterator[list[str]]:
        if self.life.before is not None:
            paths = [self.life.state_before(rank) for rank in range(self.life.world_before)]
            states = [json.loads(path.read_bytes()) for path in paths if path is not None]
            self._dataset.load_state_dict(self._dataset.merge_state_dicts(states))
        yield from DataLoader(self._dataset, self.life.rank_batch, drop_last=True, collate_fn=_keys)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self._dataset.state_dict()))


def _keys(samples: list[dict[str, str]]) -> list[str]:
    return [sample["key"] for sample in samples]


def write(order: Path, out: Path) -> None:
    """Write a table."""
    import lancedb

    rows = [{"key": key, "image": image} for key, image in photographs(order)]
    lancedb.connect(str(out)).create_table("photographs", rows)


if __name__ == "__main__":
    run(Lance, write)
