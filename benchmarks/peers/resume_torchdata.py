"""torchdata's StatefulDataLoader, as its tutorial says, with its own StatefulDistributedSampler.

Every rank stores the state of its loader and loads it again; the state is not gathered over ranks, as its documents
say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from resume_rank import SEED, WORKERS, Contender, Life, run
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from torchvision.datasets import ImageFolder


class TorchData(Contender):
    """An image folder; the bytes of its images are read, but not decoded."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self._dataset = ImageFolder(life.data, loader=_key)
        sampler = StatefulDistributedSampler(
            self._dataset, num_replicas=life.world_size, rank=life.rank, shuffle=True, seed=SEED, drop_last=True
        )
        sampler.set_epoch(0)
        self._loader = StatefulDataLoader(
            self._dataset, batch_size=life.rank_batch, sampler=sampler, num_workers=WORKERS
        )

    def steps(self) -> Iterator[list[str]]:
        if (before := self.life.state_before()) is not None:
            self._loader.load_state_dict(torch.load(before, weights_only=False))
        for keys, _ in self._loader:
            yield list(keys)

    def save(self, path: Path) -> None:
        torch.save(self._loader.state_dict(), path)


def _key(path: str) -> str:
    file = Path(path)
    file.read_bytes()
    return f"{file.parent.name}/{file.stem}"


if __name__ == "__main__":
    run(TorchData, None)
