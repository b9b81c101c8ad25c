"""LitData, as its README says under "Pause, resume data streaming", with shuffle and drop_last as it asks for.

Every rank stores the state of its StreamingDataLoader and loads it again; the global batch stays the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import litdata
import torch.distributed
from resume_rank import SEED, WORKERS, Contender, Life, run

CHUNK_SAMPLES = 10


class LitData(Contender):
    """Chunks on the disk, read by worker processes."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        torch.distributed.init_process_group("gloo")
        dataset = litdata.StreamingDataset(str(life.data), shuffle=True, drop_last=True, seed=SEED)
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=life.rank_batch, num_workers=WORKERS, collate_fn=_keys
        )

    def steps(self) -> Iterator[list[str]]:
        if (before := self.life.state_before()) is not None:
            self._loader.load_state_dict(torch.load(before))
        yield from self._loader

    def save(self, path: Path) -> None:
        torch.save(self._loader.state_dict(), path)


def _keys(samples: list[dict[str, str]]) -> list[str]:
    return [sample["key"] for sample in samples]


def _sample(entry: tuple[str, str, int]) -> dict[str, object]:
    path, key, _ = entry
    return {"image": litdata.Image(path=path), "key": key}


def write(order: Path, out: Path) -> None:
    """Write chunks with litdata.optimize."""
    entries = [tuple(entry) for shard in json.loads(order.read_bytes())["shards"] for entry in shard]
    litdata.optimize(
        fn=_sample, inputs=entries, output_dir=str(out), num_workers=1, chunk_size=CHUNK_SAMPLES, verbose=False
    )


if __name__ == "__main__":
    run(LitData, write)
