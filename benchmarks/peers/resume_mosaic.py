"""MosaicML streaming, as its documents say under "Fast Resumption" and "Elastic Determinism".

StreamingDataLoader has the state, every rank loads that of rank 0, and the global batch stays the same. What a killed
run left in shared memory is removed first, as its documents say under "Troubleshooting".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch.distributed
from resume_rank import SEED, WORKERS, Contender, Life, photographs, run
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

SHARD_BYTES = 1 << 20
SHARED_MEMORY = Path("/dev/shm")


class Mosaic(Contender):
    """All ranks are devices of one node."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        torch.distributed.init_process_group("gloo")
        dataset = StreamingDataset(local=str(life.data), shuffle=True, shuffle_seed=SEED, batch_size=life.rank_batch)
        self._loader = StreamingDataLoader(
            dataset, batch_size=life.rank_batch, num_workers=WORKERS, drop_last=True, collate_fn=_keys
        )

    @classmethod
    def prepare(cls, life: Life) -> None:
        """Remove what a life that was killed has left, as `clean_stale_shared_memory` does, but for this dataset only.

        Others on this machine may be using MosaicML streaming, too.
        """
        for locals_ in SHARED_MEMORY.glob("*_locals"):
            if str(life.data).encode() in locals_.read_bytes():
                for left in SHARED_MEMORY.glob(locals_.name.replace("locals", "*")):
                    left.unlink(missing_ok=True)

    @classmethod
    def clean(cls, life: Life) -> None:
        cls.prepare(life)

    def steps(self) -> Iterator[list[str]]:
        if (before := self.life.state_before(0)) is not None:
            self._loader.load_state_dict(json.loads(before.read_bytes()))
        for keys in self._loader:
            yield list(keys["key"])

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self._loader.state_dict()))


def _keys(samples: list[dict[str, object]]) -> dict[str, list[object]]:
    return {"key": [sample["key"] for sample in samples]}


def write(order: Path, out: Path) -> None:
    """Write MDS."""
    with MDSWriter(out=str(out), columns={"key": "str", "image": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for key, image in photographs(order):
            writer.write({"key": key, "image": image})


if __name__ == "__main__":
    run(Mosaic, write)
